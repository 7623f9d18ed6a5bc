"""The day of a model in pieces of one rate and the same servers, and which parts of them are simulated.

Where all requests are too many, each piece gets as many seconds as bring in a multiple of the requests that its servers
hold at once, the same multiple everywhere, since that is what a queue takes to find its balance. They are in parts that
stand at drawn places of equal strata: each such second stands for the seconds of its stratum. The rest is left out of
the axis of simulated time, and reckoned as a flow: what a queue gains or loses meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.tables.demand_trace.trace_csv import DAY_S, Rate

Floats = NDArray[np.float64]
HOUR_S = 3600
STRATUM_S = 150.0
"""A piece that is not simulated whole has a part in each so many seconds, if it is short in up to four of them, of at
least the next."""
LEAST_STRATUM_S, SHORT_STRATA = 30.0, 4
LEAST_UNIT = 500
"""At a level of 1 each piece has so many requests beside those that its servers hold at once."""
SETTLING = 0.25
"""Of the sampled requests of a piece: so many more go before them where queues settle."""


@dataclass(frozen=True, slots=True)
class ReplayPiece:
    """A stretch of the day, in seconds of the trace. `rate_rps` None: a hole, of which nothing is known.

    `capacities`: requests/s of each stage in full batches, by the variants that have servers for all their stages.
    `step`: the number of the trace's value. `held`: requests that its servers work on at once, at most. `whole`: it is
    simulated in full. `hour`: of the day, UTC.
    """

    begin_s: float
    end_s: float
    step: int
    rate_rps: Rate
    capacities: Mapping[str, tuple[float, ...]]
    open_servers: int = 0
    held: int = 0
    whole: bool = False
    hour: int = 0

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s

    @property
    def requests(self) -> float:
        """That arrive in it, expected."""
        return (self.rate_rps or 0.0) * self.length_s

    @property
    def unit(self) -> int:
        """Requests that one unit of a sample's level is in this piece."""
        return self.held + LEAST_UNIT

    @property
    def capacity_rps(self) -> float:
        """What its servers carry, all variants together."""
        return sum(min(stages) for stages in self.capacities.values())


@dataclass(frozen=True, slots=True)
class SampledStretch:
    """A part of a piece: `simulated`, or left out. Each answer of it stands for `weight`; none of them counts where
    queues settle at a new rate."""

    piece: ReplayPiece
    begin_s: float
    end_s: float
    weight: float
    simulated: bool = True
    number: int = 0

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s


PieceGroup = tuple[ReplayPiece, ...]
"""Neighbours of one hour with the same servers, none of them overloaded, of which one is simulated for all."""


def group_pieces(pieces: Sequence[ReplayPiece], most: int) -> list[PieceGroup]:
    """The pieces in order, up to so many neighbours together."""
    groups: list[list[ReplayPiece]] = []
    for piece in pieces:
        last = groups[-1] if groups else []
        joins = last and len(last) < most and _is_calm(piece) and _is_calm(last[0])
        if joins and (piece.hour, piece.capacities) == (last[0].hour, last[0].capacities):
            last.append(piece)
        else:
            groups.append([piece])
    return [tuple(group) for group in groups]


def _is_calm(piece: ReplayPiece) -> bool:
    """Whether requests come, and fewer than its servers carry."""
    return not piece.whole and 0 < (piece.rate_rps or 0.0) < piece.capacity_rps


def sample_level(groups: Sequence[tuple[PieceGroup, float]], most_work: float) -> float:
    """The level at which all groups together make at most so much work: a piece of each has all of its requests, or the
    level times its unit. `groups`: with the work of a request of theirs. Infinite where all of that is simulated."""
    left, sampled = most_work, []
    for group, work in groups:
        requests = sum(piece.requests for piece in group) / len(group)
        if group[0].whole:
            left -= work * requests
        else:
            sampled.append((requests / group[0].unit, work * group[0].unit))
    sampled.sort()
    units = sum(work for _, work in sampled)
    if sum(level * work for level, work in sampled) <= left:
        return math.inf
    for level, work in sampled:
        if level * units > left:
            return max(left, 0.0) / units
        left -= level * work
        units -= work
    return math.inf


def sample_stretches(
    groups: Sequence[PieceGroup], level: float, rng: np.random.Generator
) -> list[SampledStretch]:
    """The pieces in parts, in order: simulated and left out. Of a group one piece, drawn, stands for all."""
    stretches: list[SampledStretch] = []
    before: ReplayPiece | None = None
    for group in groups:
        chosen = group[int(rng.integers(len(group)))] if len(group) > 1 else group[0]
        stands_for = sum(piece.requests for piece in group) / chosen.requests if len(group) > 1 else 1.0
        for piece in group:
            if piece is chosen:
                stretches += _sampled(piece, before, level, stands_for, rng)
            else:
                stretches.append(SampledStretch(piece, piece.begin_s, piece.end_s, 0.0, simulated=False))
            before = piece
    return [stretch for stretch in stretches if stretch.length_s > 0]


def _sampled(
    piece: ReplayPiece, before: ReplayPiece | None, level: float, stands_for: float, rng: np.random.Generator
) -> list[SampledStretch]:
    """A piece whose requests stand for so many each, in parts."""
    taken = level * piece.unit
    if piece.whole or piece.rate_rps is None or piece.requests <= taken:
        return [SampledStretch(piece, piece.begin_s, piece.end_s, stands_for)]
    short = min(piece.length_s // LEAST_STRATUM_S, SHORT_STRATA)
    strata = int(max(1, short, piece.length_s // STRATUM_S))
    begin, stretches = piece.begin_s, []
    if before is not None and _settles(before, piece):
        begin += SETTLING * piece.length_s * taken / piece.requests
        stretches.append(SampledStretch(piece, piece.begin_s, begin, 0.0, number=strata))
    stratum = (piece.end_s - begin) / strata
    simulated = stratum * taken / piece.requests
    for number in range(strata):
        at = begin + float(rng.random()) * (stratum - simulated)
        end = piece.end_s if number == strata - 1 else begin + stratum
        stretches += [
            SampledStretch(piece, begin, at, 0.0, simulated=False),
            SampledStretch(piece, at, at + simulated, stands_for * stratum / simulated, number=number),
            SampledStretch(piece, at + simulated, end, 0.0, simulated=False),
        ]
        begin = end
    return stretches


def _settles(before: ReplayPiece, piece: ReplayPiece) -> bool:
    """Whether the rate alone is another, with no backlog of an overload: then queues find a new balance, which takes a
    small part of the piece, and would take much of its sample."""
    return before.capacities == piece.capacities and (before.rate_rps or 0.0) < before.capacity_rps


class SimulatedAxis:
    """Seconds of the trace on the axis of simulated milliseconds, on which stretches left out and holes take none."""

    def __init__(self, stretches: Sequence[SampledStretch]) -> None:
        self._days = np.array([0.0, *(stretch.end_s for stretch in stretches)])
        lengths = [
            1e3 * stretch.length_s if stretch.simulated and stretch.piece.rate_rps is not None else 0.0
            for stretch in stretches
        ]
        self._axis = np.concatenate(([0.0], np.cumsum(lengths)))

    def to_ms(self, moment_s: float) -> float:
        """Of a moment of the day; before its beginning and after its end without limit."""
        if moment_s <= 0:
            return -float("inf")
        if moment_s >= DAY_S:
            return float("inf")
        return float(np.interp(moment_s, self._days, self._axis))


class RateOverDay:
    """How many requests arrive up to a moment, expected, and when the last so many arrived."""

    def __init__(self, pieces: Sequence[ReplayPiece]) -> None:
        self._moments = np.array([0.0, *(piece.end_s for piece in pieces)])
        self._arrived = np.concatenate(([0.0], np.cumsum([piece.requests for piece in pieces])))

    @property
    def total(self) -> float:
        """Of the day."""
        return float(self._arrived[-1])

    def arrival_s(self, moment_s: float, before: Floats) -> Floats:
        """When the requests arrived that are so many before a moment."""
        ranks = float(np.interp(moment_s, self._moments, self._arrived)) - before
        return np.asarray(np.interp(np.maximum(ranks, 0.0), self._arrived, self._moments))

    def last_arrivals_s(self, moment_s: float, count: float, parts: int) -> Floats:
        """When the last `count` requests before a moment arrived, evenly, as so many parts from the oldest on."""
        return self.arrival_s(moment_s, count * (1 - (np.arange(parts) + 0.5) / parts))


def with_whole_pieces(
    pieces: Sequence[ReplayPiece], stretches: Sequence[tuple[float, float]]
) -> tuple[ReplayPiece, ...]:
    """The pieces; those that touch one of these stretches are simulated in full."""
    return tuple(
        replace(piece, whole=True)
        if any(begin < piece.end_s and end > piece.begin_s for begin, end in stretches)
        else piece
        for piece in pieces
    )
