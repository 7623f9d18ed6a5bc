"""Two profiles point by point: ratios of throughput, and whether the intervals overlap. No streamlit in here."""

from __future__ import annotations

from collections.abc import Iterable
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
    """A point that both sides have. `ratio` is the second side's throughput over the first's.

    `low` and `high` bound the ratio where both intervals are known. `verdict` is about the second side.
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
    """The points that both profiles have on equal places, or the first on the one place and the second on the other."""
    left, right = _rows(first, places and places[0]), _rows(second, places and places[1])
    shared = [key for key in left if key in right and left[key].throughput_rps > 0]
    return tuple(_pair(key, left[key], right[key]) for key in shared)


def middle(pairs: Iterable[Pair]) -> float | None:
    """The median ratio; None where there is no common point."""
    ratios = [pair.ratio for pair in pairs]
    return median(ratios) if ratios else None


def _rows(profile: Profile, wanted: Place | None) -> dict[PointKey, ProfileRow]:
    """The rows on the `wanted` place, or on every place."""
    return {
        (key.stage, key.place if wanted is None else None, key.processes, row.batch_size): row
        for key, line in lines((profile.source, row) for row in profile.rows).items()
        if wanted in (None, key.place)
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
