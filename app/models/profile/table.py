"""The tab Table: every row and failure of the profiles, with filters and downloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import streamlit as st

from app.components import saving
from app.models.profile import row_details
from app.models.profile.rows import Entry, place_of
from app.shell import widgets
from torchsplit_core.pictures.numbers import exact
from torchsplit_core.tables import write_profile_csv
from torchsplit_core.values import Profile, ProfileFailure, ProfileRow
from torchsplit_core.values.profile import BASES
from torchsplit_core.workspace.store import Workspace

FAILED, UNTRIED = "failed", "not tried"
KINDS = (*BASES, FAILED, UNTRIED)
MOST_ROWS = 20_000
"""A longer table would take the browser seconds; the filters and the download have the rest."""
_FIGURES = {
    name: st.column_config.NumberColumn(format="%.6g")
    for name in ("req/s", "low req/s", "high req/s", "p50 ms", "p95 ms", "p99 ms", "GiB")
}

Item = tuple[str, ProfileRow | ProfileFailure]
"""The name of a stored profile, and one of its rows or failures."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rows are wanted; an empty tuple wants all. Each word of `text` must be in some text of the row."""

    models: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    batches: tuple[int, int] | None = None
    text: str = ""

    def matches(self, name: str, item: ProfileRow | ProfileFailure) -> bool:
        """Whether a row or failure of that profile is wanted."""
        words = _words(name, item)
        return (
            (not self.models or name in self.models)
            and (not self.places or place_of(item).label in self.places)
            and (not self.bases or basis_of(item) in self.bases)
            and (self.batches is None or self.batches[0] <= item.batch_size <= self.batches[1])
            and all(part in words for part in self.text.lower().split())
        )


def render(workspace: Workspace, profiles: Mapping[str, Profile]) -> None:
    """The whole tab."""
    everything: list[Item] = [
        (name, item)
        for name, profile in profiles.items()
        for items in (profile.rows, profile.failures)
        for item in items
    ]
    wanted = _filter(profiles, everything)
    selected = [(name, item) for name, item in everything if wanted.matches(name, item)]
    selected.sort(key=_order)
    count = f"{exact(len(selected))} of {exact(len(everything))} rows"
    st.markdown(count + (f"; the first {exact(MOST_ROWS)} are shown" if len(selected) > MOST_ROWS else ""))
    frame = table(selected[:MOST_ROWS])
    chosen = st.dataframe(
        frame, hide_index=True, height=440, placeholder="n/a", key="profile-table", alt="Rows of the profiles",
        on_select="rerun", selection_mode="single-row", column_config=saving.column_config(frame, _FIGURES),
    )  # fmt: skip
    rows = chosen["selection"]["rows"]
    if rows and rows[0] < len(selected):
        name, item = selected[rows[0]]
        row_details.render(name, item, profiles[name])
    else:
        st.caption("Select a row for its percentiles, the parts of its memory and where it was measured.")
    _downloads(workspace, profiles, selected)


def rows_behind(entries: Sequence[Entry], alt: str) -> None:
    """The rows behind a chart as a table."""
    rows = table(sorted(entries, key=_order))
    look: dict[str, Any] = {"height": "auto", "column_config": _FIGURES}
    saving.table(rows, "profile-rows", key="profile-rows-behind", alt=alt, **look)


def _order(entry: tuple[str, Any]) -> tuple[Any, ...]:
    name, item = entry
    return name, place_of(item), item.processes, item.batch_size


def basis_of(item: ProfileRow | ProfileFailure) -> str:
    """The basis of a row, or whether a failure was tried."""
    if isinstance(item, ProfileRow):
        return item.basis
    return FAILED if item.tried else UNTRIED


def table(items: Sequence[tuple[str, Any]]) -> pd.DataFrame:
    """Rows and failures with their basis, in the given order. A failure has words and no figure, never a zero."""
    return pd.DataFrame([_record(name, item) for name, item in items])


def _record(name: str, item: ProfileRow | ProfileFailure) -> dict[str, Any]:
    record: dict[str, Any] = {
        "model": name,
        "stage": item.stage,
        "device": item.gpu_type,
        "slice": item.profile or "whole",
        "batch": item.batch_size,
        "processes": item.processes,
        "basis": basis_of(item),
    }
    if isinstance(item, ProfileFailure):
        return record | {"why": f"{item.reason.replace('_', ' ')}: {item.message}"}
    percentiles = item.percentiles_ms
    return record | {
        "req/s": item.throughput_rps,
        "low req/s": item.low_rps,
        "high req/s": item.high_rps,
        "p50 ms": percentiles.p50.value if percentiles else None,
        "p95 ms": item.latency_ms,
        "p99 ms": percentiles.p99.value if percentiles else None,
        "GiB": item.memory_gib,
        "why": "",
    }


def _words(name: str, item: ProfileRow | ProfileFailure) -> str:
    parts = [name, item.stage, item.gpu_type, item.profile or "whole", basis_of(item), item.device or ""]
    parts += [item.reason, item.message] if isinstance(item, ProfileFailure) else []
    return " ".join(parts).lower()


def _filter(profiles: Mapping[str, Profile], items: Sequence[Item]) -> Filter:
    places = sorted({place_of(item).label for _, item in items})
    first, second, third, fourth = st.columns([3, 3, 2, 3])
    choose = widgets.multi_choice
    with first:
        models = choose("Models", sorted(profiles), (), "profile-table-models", placeholder="All models")
    with second:
        chosen = choose("Devices and slices", places, (), "profile-table-places", placeholder="All devices")
    with third:
        bases = [basis for basis in KINDS if any(basis_of(item) == basis for _, item in items)]
        wanted = choose("Basis", bases, (), "profile-table-bases", placeholder="Every basis")
    with fourth:
        key, hint = "profile-table-text", "Words of a row"
        text = st.text_input("Text", key=key, placeholder=hint, persist_state="session")
    batches = sorted({item.batch_size for _, item in items})
    span = widgets.range_choice("Batch sizes", batches, "profile-table-batches")
    return Filter(tuple(models), tuple(chosen), tuple(wanted), span, text)


def _downloads(workspace: Workspace, profiles: Mapping[str, Profile], selected: Sequence[Item]) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.download_button(
            "These rows (CSV)", lambda: csv_of(profiles, selected), "profiles-filtered.csv", "text/csv",
            on_click="ignore", key="profile-csv-filtered", disabled=not selected,
        )  # fmt: skip
        st.download_button(
            "All rows (CSV)", lambda: write_profile_csv(list(profiles.values())), "profiles.csv", "text/csv",
            on_click="ignore", key="profile-csv-all",
        )  # fmt: skip
        st.space("stretch")
        name = widgets.single_choice("Profile", sorted(profiles), sorted(profiles)[0], "profile-json")
        st.download_button(
            "This profile (JSON)", workspace.get_bytes("profile", name),
            f"{saving.file_name(name)}.profile.json", "application/json",
            on_click="ignore", key="profile-json-button",
        )  # fmt: skip


def csv_of(profiles: Mapping[str, Profile], selected: Sequence[Item]) -> str:
    """The CSV of the selected rows and failures, by profile in the order of the workspace."""
    parts = []
    for name, profile in profiles.items():
        profile_items = [item for owner, item in selected if owner == name]
        rows = tuple(item for item in profile_items if isinstance(item, ProfileRow))
        failures = tuple(item for item in profile_items if isinstance(item, ProfileFailure))
        if profile_items:
            parts.append(replace(profile, rows=rows, failures=failures))
    return write_profile_csv(parts)
