"""Two profiles point by point: ratios of throughput, and whether the intervals tell them apart. No streamlit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Literal

from app.models.profile.rows import Place, lines
from torchsplit_core.values import Profile, ProfileRow

Verdict = Literal["faster", "slower", "within noise", "no interval"]
PointKey = tuple[str, Place | None, int, int]
"""Stage, place (None where two places are compared), processes, batch size."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One point that both sides have. `ratio` is the second side's throughput over the first's.

    `low` and `high` bound it where both intervals are known. `verdict` is about the second side.
    """

    stage: str
    place: Place | None
    processes: int
    batch_size: int
    first: ProfileRow
    second: ProfileRow
    ratio: float
    low: float | None
    high: float | None
    verdict: Verdict


def common_points(
    first: Profile, second: Profile, places: tuple[Place, Place] | None = None
) -> tuple[Pair, ...]:
    """The points of both profiles on equal places, or of the first on one place and the second on the other."""
    if places is None:
        left = _rows(first, lambda place: True, keep_place=True)
        right = _rows(second, lambda place: True, keep_place=True)
    else:
        left = _rows(first, lambda place: place == places[0], keep_place=False)
        right = _rows(second, lambda place: place == places[1], keep_place=False)
    shared = [key for key in left if key in right and left[key].throughput_rps > 0]
    return tuple(_pair(key, left[key], right[key]) for key in shared)


def middle(pairs: Iterable[Pair]) -> float | None:
    """The median ratio; None where there is no common point."""
    ratios = [pair.ratio for pair in pairs]
    return median(ratios) if ratios else None


def _rows(
    profile: Profile, wanted: Callable[[Place], bool], *, keep_place: bool
) -> dict[PointKey, ProfileRow]:
    return {
        (key.stage, key.place if keep_place else None, key.processes, row.batch_size): row
        for key, line in lines((profile.source, row) for row in profile.rows).items()
        if wanted(key.place)
        for row in line
    }


def _pair(key: PointKey, first: ProfileRow, second: ProfileRow) -> Pair:
    stage, place, processes, batch_size = key
    ratio = second.throughput_rps / first.throughput_rps
    if not (first.low_rps and first.high_rps and second.low_rps and second.high_rps):
        return Pair(stage, place, processes, batch_size, first, second, ratio, None, None, "no interval")
    low, high = second.low_rps / first.high_rps, second.high_rps / first.low_rps
    verdict: Verdict = "within noise" if low <= 1 <= high else "faster" if low > 1 else "slower"
    return Pair(stage, place, processes, batch_size, first, second, ratio, low, high, verdict)
