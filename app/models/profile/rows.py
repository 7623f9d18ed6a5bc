"""Rows of profiles by place, and as lines over batch sizes. No streamlit in here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.session.scenario import short_name
from torchsplit_core.values import Profile, ProfileFailure, ProfileRow
from torchsplit_core.values.profile import BASES

Entry = tuple[str, ProfileRow]
"""The name of a stored profile, and one of its rows."""
CPU = "CPU"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A GPU type and a slice of it; the slice is "" for a whole GPU or a processor."""

    gpu_type: str
    profile: str

    @property
    def label(self) -> str:
        """ "A100-80GB · 3g.40gb", "A100-80GB · whole" or "CPU"."""
        if self.gpu_type.upper() == CPU and not self.profile:
            return CPU
        return f"{self.gpu_type} · {self.profile or 'whole'}"


@dataclass(frozen=True, slots=True, order=True)
class Series:
    """One line of a chart: a stored profile, a stage, a place and a number of processes."""

    name: str
    stage: str
    place: Place
    processes: int


def place_of(row: ProfileRow | ProfileFailure) -> Place:
    """The place of a row."""
    return Place(row.gpu_type, row.profile or "")


def places(profiles: Mapping[str, Profile]) -> tuple[Place, ...]:
    """Every place of these profiles: measured ones first, then by name."""
    measured: dict[Place, bool] = {}
    for profile in profiles.values():
        for row in profile.rows:
            place = place_of(row)
            measured[place] = measured.get(place, False) or row.basis != "estimated"
    return tuple(sorted(measured, key=lambda place: (not measured[place], place)))


def lines(entries: Iterable[Entry]) -> dict[Series, tuple[ProfileRow, ...]]:
    """The rows of each line by batch size; a measurement hides the estimate of its point."""
    by_series: dict[Series, dict[int, ProfileRow]] = {}
    for name, row in sorted(entries, key=lambda entry: BASES.index(entry[1].basis)):
        line = by_series.setdefault(Series(name, row.stage, place_of(row), row.processes), {})
        line.setdefault(row.batch_size, row)
    return {
        key: tuple(by_series[key][batch] for batch in sorted(by_series[key])) for key in sorted(by_series)
    }


def labels(keys: Sequence[Series]) -> dict[Series, str]:
    """A name for each line: the model, and what else tells the lines apart."""
    several_kinds = len({key.place.gpu_type for key in keys}) > 1
    several_counts = len({key.processes for key in keys}) > 1
    short = short_names(key.name for key in keys)
    by_key = {}
    for key in keys:
        where = key.place.label if several_kinds or not key.place.profile else key.place.profile
        parts = [short[key.name], where]
        parts += [f"{key.processes} proc."] if several_counts else []
        parts += [key.stage] if key.stage != "whole" else []
        by_key[key] = " · ".join(parts)
    return by_key


def short_names(names: Iterable[str]) -> dict[str, str]:
    """A model's short name for each profile; the whole name where two profiles share a short one."""
    unique = tuple(dict.fromkeys(names))
    short = {name: short_name(name) for name in unique}
    return {name: text if list(short.values()).count(text) == 1 else name for name, text in short.items()}
