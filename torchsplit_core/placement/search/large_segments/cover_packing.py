"""Can segments from a fleet hold all layers if every link is fast enough? With covers beside fixed multisets.

n_a integer: segments of cover a, y_aκ integer: their GPUs of kind κ, s_aκ: the share of the batch of one; n_i integer:
segments of item i, which has fixed GPUs.

| row | formula |
|---|---|
| sizes_least[a] | Σ_κ y_aκ ≥ least_a · n_a, equal if least_a is most_a |
| sizes_most[a] | Σ_κ y_aκ ≤ most_a · n_a if it is more than least_a |
| batch[a] | Σ_κ s_aκ · y_aκ ≥ n_a if the cover is not even, in 1,024ths |
| gpus[κ] | Σ_a y_aκ + Σ_i (GPUs of kind κ in i) · n_i ≤ GPUs of kind κ |
| layers_least | Σ low · n ≤ M |
| layers_most | Σ high · n ≥ M |
| segments | least ≤ Σ n ≤ most, if their number is limited |
| minimise | Σ_aκ y_aκ + Σ_i (GPUs of i) · n_i |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.large_segments.covers import ROUNDING, Covers
from torchsplit_core.placement.search.packing import greedy_items
from torchsplit_core.placement.search.segment_table import Items
from torchsplit_core.solver.highs import INF
from torchsplit_core.solver.row_program import RowProgram
from torchsplit_core.values.status import SearchVerdict

_SCALE = 1024.0
"""Units of a batch in the program's rows: HiGHS's tolerance of 1e-6 is then a billionth of it."""


GpuSet = tuple[tuple[int, ...], int, int]
"""Of a segment: kinds ascending, first and last layer count."""


@dataclass(frozen=True)
class CoverPacking:
    """chosen: a set for each segment. gpus: their number. status none: there is no packing."""

    status: SearchVerdict
    chosen: tuple[GpuSet, ...] = ()
    gpus: int = 0


def pack_covers(
    covers: Covers,
    items: Items,
    fleet: np.ndarray,
    layers: int,
    clock: SearchClock,
    *,
    fewest: bool = False,
    segments: tuple[int, int] | None = None,
) -> CoverPacking:
    """Segments within the GPUs of each kind that hold all layers; `fewest`: no packing has fewer GPUs.

    fleet: (kinds,). A packing with covers that are not even may be no set of segments, since the batch is summed over
    all segments of a cover. segments: the least and the most of them; None: any number.
    """
    covers, items = _usable(covers, items, fleet, layers)
    if not len(covers.low) + len(items.low):
        return CoverPacking("none")
    quick = () if fewest else _greedy(covers, items, fleet, layers)
    if quick and (segments is None or segments[0] <= len(quick) <= segments[1]):
        return CoverPacking("found", quick, sum(len(part) for part, _, _ in quick))
    kinds = np.flatnonzero(fleet)
    shares = covers.shares[:, kinds]
    low, high = np.concatenate([covers.low, items.low]), np.concatenate([covers.high, items.high])
    sizes = np.concatenate([covers.least, items.sizes])
    program = RowProgram()
    cost = np.concatenate([np.zeros(len(covers.low)), items.sizes if fewest else np.zeros(len(items.low))])
    program.add_columns(cost.tolist(), np.minimum(layers // low, int(fleet.sum()) // sizes).tolist())
    most = np.where(shares > 0, fleet[kinds], 0)
    first = program.add_columns([float(fewest)] * most.size, most.ravel().tolist())
    _add_covers(program, covers, shares, first)
    for index, kind in enumerate(kinds.tolist()):
        using, holding = np.flatnonzero(shares[:, index]), np.flatnonzero(items.counts[:, kind])
        columns = np.concatenate([first + using * len(kinds) + index, len(covers.low) + holding])
        if len(columns):
            amounts = np.concatenate([np.ones(len(using)), items.counts[holding, kind]])
            program.add_row(-INF, int(fleet[kind]), columns, amounts)
    program.add_row(-INF, layers, np.arange(len(low)), low)
    program.add_row(layers, INF, np.arange(len(low)), high)
    if segments is not None:
        program.add_row(*segments, np.arange(len(low)), np.ones(len(low)))
    clock.count("packings")
    # The linear relaxation refutes most thresholds that are too high in a hundredth of the time.
    if program.solve(clock.left_s(), integer=False).status == "infeasible":
        return CoverPacking("none")
    solution = program.solve(clock.left_s(), first=not fewest)
    if solution.status == "infeasible":
        return CoverPacking("none")
    if solution.status == "unknown" or (fewest and solution.status != "optimal"):
        return CoverPacking("unknown")
    values = np.rint(solution.values).astype(np.int64)
    times, taken = values[:first], values[first:].reshape(shares.shape)
    chosen: list[GpuSet] = []
    for column in np.flatnonzero(times).tolist():
        if column < len(covers.low):
            dealt = _distribute_gpus(
                shares[column], taken[column], int(times[column]), int(covers.most[column])
            )
            sets = [tuple(int(kinds[index]) for index in sorted(part)) for part in dealt]
        else:
            sets = [kinds_of(items, column - len(covers.low))] * int(times[column])
        chosen += [(part, int(low[column]), int(high[column])) for part in sets]
    return CoverPacking("found", tuple(chosen), sum(len(part) for part, _, _ in chosen))


def _usable(covers: Covers, items: Items, fleet: np.ndarray, layers: int) -> tuple[Covers, Items]:
    """The covers and items for which the fleet has GPUs."""
    parts = np.where(fleet > 0, covers.shares, 0.0)
    able = (np.minimum(fleet, covers.most[:, None]) * parts).sum(axis=1) >= 1 - ROUNDING
    able &= ((parts > 0) @ fleet >= covers.least) & (covers.low <= layers)
    fits = (items.counts <= fleet).all(axis=1) & (items.low <= layers)
    return covers.only(np.flatnonzero(able)), items.only(np.flatnonzero(fits))


def concatenate_items(first: Items, second: Items) -> Items:
    """Both one after the other."""
    pairs = (
        (first.multiset, second.multiset),
        (first.counts, second.counts),
        (first.sizes, second.sizes),
        (first.low, second.low),
        (first.high, second.high),
    )
    return Items(*(np.concatenate(pair) for pair in pairs))


def single_kind_items(covers: Covers, fleet: np.ndarray) -> Items:
    """The sets of a single kind in every cover for which the fleet has the GPUs."""
    needed = np.ceil((1 - ROUNDING) / np.where(covers.shares > 0, covers.shares, 1e-9)).astype(np.int64)
    needed = np.maximum(needed, covers.least[:, None])
    cover, kind = np.nonzero((covers.shares > 0) & (needed <= np.minimum(covers.most[:, None], fleet)))
    sizes = needed[cover, kind]
    counts = np.zeros((len(cover), len(fleet)), dtype=np.int64)
    counts[np.arange(len(cover)), kind] = sizes
    return Items(np.arange(len(cover)), counts, sizes, covers.low[cover], covers.high[cover])


def _greedy(covers: Covers, items: Items, fleet: np.ndarray, layers: int) -> tuple[GpuSet, ...]:
    """Sets for all layers, most layers a GPU first; empty if they do not hold all."""
    both = concatenate_items(items, single_kind_items(covers, fleet))
    chosen = greedy_items(both, np.flatnonzero(both.low <= layers), fleet, layers)
    return tuple((kinds_of(both, item), int(both.low[item]), int(both.high[item])) for item in chosen)


def kinds_of(items: Items, item: int) -> tuple[int, ...]:
    """The kinds of an item, ascending."""
    counts = items.counts[item]
    return tuple(np.repeat(np.arange(len(counts)), counts).tolist())


def _add_covers(program: RowProgram, covers: Covers, shares: np.ndarray, first: int) -> None:
    """The rows of sizes and batch; column `index` counts a cover's segments, its GPUs are from `first` on."""
    even = covers.even()
    for index, (least, most) in enumerate(zip(covers.least.tolist(), covers.most.tolist(), strict=True)):
        using = np.flatnonzero(shares[index])
        columns = np.append(first + index * shares.shape[1] + using, index)
        ones = np.ones(len(using))
        program.add_row(0, 0 if least == most else INF, columns, np.append(ones, -least))
        if least < most:
            program.add_row(-INF, 0, columns, np.append(ones, -most))
        if not even[index]:
            program.add_row(0, INF, columns, _SCALE * np.append(shares[index][using], -(1.0 - ROUNDING)))


def _distribute_gpus(shares: np.ndarray, taken: np.ndarray, segments: int, most: int) -> list[list[int]]:
    """A cover's GPUs distributed to its segments, the largest shares first, each to the segment with the least."""
    dealt: list[list[int]] = [[] for _ in range(segments)]
    held = [0.0] * segments
    for index in np.argsort(-shares, kind="stable").tolist():
        for _ in range(int(taken[index])):
            segment = min((at for at in range(segments) if len(dealt[at]) < most), key=held.__getitem__)
            dealt[segment].append(index)
            held[segment] += float(shares[index])
    return dealt
