"""The tab Memory: the peak memory of one model in parts, and the slices that it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from app.charts.memory import PARTS, Limit, MemoryBar, memory, unit_of, visible_limits
from app.components import saving
from app.models.profile import rows as profile_rows
from app.models.profile.rows import CPU, Place, place_of
from app.shell import widgets
from torchsplit_core.hardware import catalogue, plain_profiles
from torchsplit_core.pictures.numbers import counted, escape_markdown, short
from torchsplit_core.values import Profile, ProfileRow


def render(profiles: Mapping[str, Profile]) -> None:
    """The whole tab."""
    left, right = st.columns([4, 12], gap="medium")
    with left, st.container(border=True):
        st.header("Show", anchor=False)
        names = sorted(profiles)
        known = (name for name in profiles if any(row.memory_gib is not None for row in profiles[name].rows))
        name = widgets.single_choice("Model", names, next(known, names[0]), "profile-memory-model")
        profile = profiles[name]
        labels = {place.label: place for place in profile_rows.places({name: profile})}
        options = list(labels)
        key, first = "profile-memory-place", next(iter(labels), "")
        place = labels.get(widgets.single_choice("Measured or estimated on", options, first, key))
        kinds = list(catalogue())
        preferred = place.gpu_type if place and place.gpu_type in kinds else "A100-80GB"
        kind = widgets.single_choice("Against the slices of", kinds, preferred, "profile-memory-kind")
    with right:
        if place is None:
            st.info("This profile has no row.")
            return
        bars, failed = bars_of(profile, place)
        if not bars and not failed:
            st.info(
                f"The rows of {escape_markdown(name)} on {escape_markdown(place.label)} do not say how much memory "
                "they needed. Measure the model here, or import a table with a memory column."
            )
            return
        _picture(name, place, bars, failed, kind)


def bars_of(profile: Profile, place: Place) -> tuple[tuple[MemoryBar, ...], tuple[int, ...]]:
    """A bar for each batch size of one process on a place, and the batch sizes that ran out of memory there."""
    single = [
        row for row in profile.rows if place_of(row) == place and row.processes == 1 and row.stage == "whole"
    ]
    rows = [(profile.source, row) for row in single if row.memory_gib is not None]
    bars = tuple(_bar(row) for line in profile_rows.lines(rows).values() for row in line)
    failed = (item for item in profile.failures if place_of(item) == place and item.processes == 1)
    return bars, tuple(sorted({item.batch_size for item in failed if item.reason == "out_of_memory"}))


def _bar(row: ProfileRow) -> MemoryBar:
    parts = row.memory_parts_gib
    if parts is None:
        assert row.memory_gib is not None  # the caller leaves others out
        return MemoryBar(row.batch_size, (("peak", row.memory_gib),), row.basis == "estimated")
    sizes = tuple((name, float(getattr(parts, name))) for name in PARTS)
    return MemoryBar(row.batch_size, sizes, parts.basis == "estimated")


def limits_of(kind: str) -> tuple[Limit, ...]:
    """The memory of every plain slice of a GPU type, the smallest first."""
    known = [(entry.name, entry.memory_gib) for entry in plain_profiles(catalogue()[kind])]
    return tuple(Limit(name, gib) for name, gib in sorted(known, key=lambda entry: entry[1] or 0.0) if gib)


def largest_batches(
    bars: Sequence[MemoryBar], limits: Sequence[Limit]
) -> tuple[tuple[Limit, int | None], ...]:
    """The largest batch size of the bars that fits each limit; None where none fits."""
    return tuple(
        (limit, max((bar.batch_size for bar in bars if bar.total <= limit.gib), default=None))
        for limit in limits
    )


def _picture(name: str, place: Place, bars: Sequence[MemoryBar], failed: Sequence[int], kind: str) -> None:
    limits = limits_of(kind)
    estimated = sum(bar.estimated for bar in bars)
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"**{escape_markdown(name)}** on {escape_markdown(place.label)}", width="content")
            if len(bars) > estimated:
                widgets.badge(counted(len(bars) - estimated, "peak measured", "peaks measured"), "green")
            if estimated:
                widgets.badge(counted(estimated, "peak estimated", "peaks estimated"), "yellow")
        drawn = memory(bars, limits, failed, dark=widgets.is_dark())
        alt = (
            f"Peak memory of {name} by batch size against the slices of {kind}; the tables below say the same"
        )
        widgets.chart(drawn, "Memory", f"{name}.memory", key="profile-memory-chart", alt=alt)
        words = "Dotted: what the slices have. Hatched: estimated from the graph."
        smallest = limits[0] if limits else None
        if smallest and not visible_limits(limits, max((bar.total for bar in bars), default=0.0)):
            words = (
                f"The smallest slice, {smallest.name}, has {short(smallest.gib, 'GiB')}: far above this picture. "
                "Hatched: estimated from the graph."
            )
        if place.label == CPU:
            words += " Measured on the processor: on a GPU the CUDA context comes on top."
        st.caption(words)
    first, second = st.columns([3, 2], gap="medium")
    figures = table(bars)
    units = [name for name in figures.columns if name.endswith("iB")]
    config = {name: st.column_config.NumberColumn(format="%.4g") for name in units}
    with first:
        alt = "Peak memory by batch size"
        saving.table(figures, f"{name}.memory", key="profile-memory-table", alt=alt, column_config=config)
    with second:
        largest = [
            (limit, "none" if batch is None else str(batch)) for limit, batch in largest_batches(bars, limits)
        ]
        rows = [
            {"slice": limit.name, "GiB": limit.gib, "largest batch known to fit": text}
            for limit, text in largest
        ]
        alt = f"The largest batch size that fits each slice of {kind}"
        saving.table(rows, f"{name}.fits", key="profile-fits-table", alt=alt)
    if failed:
        batches = ", ".join(short(size) for size in failed)
        st.caption(f"Out of memory on {escape_markdown(place.label)}: batch {batches}.")


def table(bars: Sequence[MemoryBar]) -> pd.DataFrame:
    """A row for each batch size, in the unit of the chart."""
    unit, scale = unit_of(max((bar.total for bar in bars), default=0.0))
    return pd.DataFrame(
        [
            {
                "batch": bar.batch_size,
                **{f"{name} {unit}": value * scale for name, value in bar.parts if name != "peak"},
                f"peak {unit}": bar.total * scale,
                "basis": "estimated" if bar.estimated else "measured",
            }
            for bar in bars
        ]
    )
