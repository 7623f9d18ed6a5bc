"""A relaxation of the least latency in any network: walks over groups of GPUs, with prices instead of disjointness.

The GPUs of a component are divided into groups of one kind. A pattern is a segment's multiset of groups; a hop between
two patterns takes no less than over the best links between their groups. A walk visits patterns that hold all layers,
as often as it likes, and pays μ_g for each GPU of group g. For any μ >= 0,

    least latency >= least cost of a walk - Σ_g μ_g · (GPUs of g),

because a pipeline uses no GPU twice. So that walks do not circle over fast links, a state counts the GPUs visited since
the walk came into the home of its pattern (GPUs of one kind joined by the fastest links): it leaves after all of them.
The least cost is found by dynamic programming over (layers, last state), forwards and backwards; their sum bounds
every pipeline with a certain state, so states above the best plan known are left out (walk_search.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, islice, product

import numpy as np

from torchsplit_core.placement.latency.pipeline_plan import PassCosts
from torchsplit_core.placement.latency.walk_hops import WalkHops
from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.segment_table import SegmentTable

MOST_PATTERNS = 1_500
"""Patterns of a relaxation: a sweep over 80 layers then takes about 0.4 s. Chosen, not measured."""

_WORK = 2e9
"""Elementary steps of all sweeps for the prices of a division of the GPUs: about 6 s. Chosen, not measured."""

_PATIENCE, _LEAST_STEP = 4, 0.05
"""Sweeps without a better bound before steps are halved, and the step at which prices are left. Chosen, not
measured."""

Groups = tuple[tuple[int, ...], ...]
"""GPUs of one kind each."""


@dataclass(frozen=True)
class WalkPatterns:
    """One row a state: a pattern, and how many GPUs of its home were visited since the walk came in.

    groups: of the component. sizes: GPUs of each. counts: (patterns, groups). rows: of the table.

    seconds: (patterns, layers), column c - 1 the time of a segment of c layers, infinite if it is not allowed.
    """

    groups: Groups
    sizes: np.ndarray
    counts: np.ndarray
    rows: np.ndarray
    seconds: np.ndarray
    hops: WalkHops

    def only(self, keep: np.ndarray) -> WalkPatterns:
        """Only these patterns."""
        return WalkPatterns(
            self.groups,
            self.sizes,
            self.counts[keep],
            self.rows[keep],
            self.seconds[keep],
            self.hops.only(keep),
        )

    def keys(self) -> set[tuple[int, bytes]]:
        """Rows and counts of the patterns."""
        return {(int(row), count.tobytes()) for row, count in zip(self.rows, self.counts, strict=True)}


def walk_patterns(
    instance: ProblemInstance,
    costs: PassCosts,
    table: SegmentTable,
    seconds: np.ndarray,
    groups: Groups,
    threshold: float,
    homes: Groups,
    coarse: WalkPatterns | None = None,
) -> WalkPatterns | None:
    """The states of some groups; None if they are too many. seconds: of every row and layer count, infinite if not
    allowed. homes: these are divided into groups. coarse: patterns of groups that these divide, which alone are
    divided."""
    listed = _list_patterns(instance, table, seconds, groups)
    counts_rows = _of_coarse(listed, groups, coarse) if coarse is not None else listed
    home_of = {gpu: number for number, gpus in enumerate(homes) for gpu in gpus}
    home_of_group = np.array([home_of[gpus[0]] for gpus in groups])
    chosen = list(islice(counts_rows, MOST_PATTERNS + 1))
    if len(chosen) > MOST_PATTERNS:
        return None
    counts = np.array([count for count, _ in chosen], dtype=np.int64).reshape(len(chosen), len(groups))
    rows = np.array([row for _, row in chosen], dtype=np.int64)
    homes_used = [np.unique(home_of_group[np.flatnonzero(count)]) for count in counts]
    home = np.array([inside[0] if len(inside) == 1 else -1 for inside in homes_used], dtype=np.int64)
    sizes = np.array([len(gpus) for gpus in groups])
    hop_s = _hop_seconds(instance, costs, groups, counts, threshold)
    pattern, visited = _states(counts.sum(axis=1), home, homes)
    same = (home[:, None] == home) & (home >= 0)
    inside_s = np.where(same, hop_s, np.inf)
    tail, head = np.nonzero(
        np.isfinite(inside_s[np.ix_(pattern, pattern)])
        & (visited[:, None] + counts.sum(axis=1)[pattern] == visited)
    )
    hops = WalkHops(
        pattern,
        visited == counts.sum(axis=1)[pattern],
        np.where(same, np.inf, hop_s),
        tail,
        head,
        inside_s[pattern[tail], pattern[head]],
    )
    return WalkPatterns(groups, sizes, counts[pattern], rows[pattern], seconds[rows[pattern]], hops)


def _hop_seconds(
    instance: ProblemInstance, costs: PassCosts, groups: Groups, counts: np.ndarray, threshold: float
) -> np.ndarray:
    """(patterns, patterns): the least seconds of a hop from row to column."""
    sizes = np.array([len(gpus) for gpus in groups])
    links = _best_links(instance.links, groups)
    hop_s = np.full((len(counts), len(counts)), np.inf)
    reach = np.array([links[np.flatnonzero(count)].min(axis=0) for count in counts]).reshape(counts.shape)
    for number, count in enumerate(counts):
        value = reach[:, np.flatnonzero(count)].min(axis=1)
        able = (value >= threshold) & (value > 0) & (counts + count <= sizes).all(axis=1)
        hop_s[able, number] = costs.link_s(value[able])
    return hop_s


def _states(gpus: np.ndarray, home: np.ndarray, homes: Groups) -> tuple[np.ndarray, np.ndarray]:
    """(pattern, GPUs of its home visited) of each state. home -1: the pattern has several, and one state."""
    states = [
        (number, visited)
        for number, (size, inside) in enumerate(zip(gpus.tolist(), home.tolist(), strict=True))
        for visited in range(size, (len(homes[inside]) if inside >= 0 else size) + 1)
    ]
    pattern, visited = np.array(states, dtype=np.int64).reshape(-1, 2).T
    return pattern, visited


def _list_patterns(
    instance: ProblemInstance, table: SegmentTable, seconds: np.ndarray, groups: Groups
) -> Iterator[tuple[np.ndarray, int]]:
    of_kind: dict[int, list[int]] = {}
    for number, gpus in enumerate(groups):
        of_kind.setdefault(instance.kinds[gpus[0]], []).append(number)
    sizes = np.array([len(gpus) for gpus in groups])
    for row in np.flatnonzero(np.isfinite(seconds).any(axis=1)).tolist():
        kinds = np.flatnonzero(table.counts[row]).tolist()
        parts = [
            combinations_with_replacement(of_kind.get(kind, ()), int(table.counts[row, kind]))
            for kind in kinds
        ]
        for chosen in product(*parts):
            count = np.bincount(np.concatenate(chosen).astype(np.int64), minlength=len(groups))
            if (count <= sizes).all():
                yield count, row


def _of_coarse(
    listed: Iterable[tuple[np.ndarray, int]], groups: Groups, coarse: WalkPatterns
) -> Iterator[tuple[np.ndarray, int]]:
    """Those within a coarse pattern."""
    group_of = {gpu: number for number, gpus in enumerate(coarse.groups) for gpu in gpus}
    owner = np.zeros((len(groups), len(coarse.groups)), dtype=np.int64)
    for number, gpus in enumerate(groups):
        owner[number, group_of[gpus[0]]] = 1
    known = coarse.keys()
    for count, row in listed:
        if (row, (count @ owner).tobytes()) in known:
            yield count, row


def _best_links(links: np.ndarray, groups: Groups) -> np.ndarray:
    """(groups, groups): the best link from a GPU of one to another of the other."""
    inside = links.copy()
    np.fill_diagonal(inside, 0.0)
    return np.array([[inside[np.ix_(left, right)].max() for right in groups] for left in groups])


class WalkSweeps:
    """Sweeps over the layers at prices of the groups."""

    def __init__(self, patterns: WalkPatterns, layers: int) -> None:
        self.patterns, self.layers = patterns, layers
        able = np.isfinite(patterns.seconds)
        self._most = int(np.flatnonzero(able.any(axis=0))[-1]) + 1 if able.any() else 0

    def forward(self, prices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(layers + 1, patterns): the least cost of walks that hold so many layers and end with the pattern, and the
        least before a visit of it at so many layers."""
        paid, width = self._paid(prices), len(self.patterns.rows)
        ended, before = (np.full((self.layers + 1, width), np.inf) for _ in range(2))
        before[0] = 0.0
        for done in range(1, self.layers + 1):
            least = max(0, done - self._most)
            # Row k: k + 1 layers in the last segment.
            ended[done] = (before[least:done][::-1] + paid[: done - least]).min(axis=0, initial=np.inf)
            if done < self.layers:
                before[done] = self.patterns.hops.forward(ended[done])
        return ended, before

    def backward(self, prices: np.ndarray) -> np.ndarray:
        """(layers + 1, patterns): the least cost after a visit of the pattern at so many layers."""
        paid = self._paid(prices)
        after = np.full((self.layers + 1, len(self.patterns.rows)), np.inf)
        after[self.layers] = 0.0
        for done in range(self.layers - 1, 0, -1):
            most = min(self._most, self.layers - done)
            visit = (after[done + 1 : done + most + 1] + paid[:most]).min(axis=0, initial=np.inf)
            after[done] = self.patterns.hops.backward(visit)
        return after

    def walk(self, ended: np.ndarray, before: np.ndarray, prices: np.ndarray) -> Iterator[tuple[int, int]]:
        """(state, layer count) of the cheapest walk, from the last."""
        paid, done = self._paid(prices), self.layers
        pattern = int(np.argmin(ended[done]))
        while True:
            most = min(self._most, done)
            count = int(np.argmin(before[done - most : done, pattern][::-1] + paid[:most, pattern])) + 1
            yield pattern, count
            done -= count
            if not done:
                return
            pattern = int(np.argmin(ended[done] + self.patterns.hops.into(pattern)))

    def _paid(self, prices: np.ndarray) -> np.ndarray:
        """(layer counts, patterns): seconds and prices."""
        seconds = self.patterns.seconds[:, : self._most].T
        paid: np.ndarray = seconds + (self.patterns.counts @ prices)[None, :]
        return paid


@dataclass(frozen=True)
class WalkBound:
    """bound_s: no pipeline takes less, at these prices; infinite if there is none."""

    bound_s: float
    prices: np.ndarray


def priced_bound(
    sweeps: WalkSweeps, prices: np.ndarray, beaten_s: float, rounds: int, clock: SearchClock
) -> WalkBound:
    """The best of some bounds by subgradient steps from some prices; ends where it reaches `beaten_s`."""
    patterns, step, waited = sweeps.patterns, 1.0, 0
    rounds = max(2, min(rounds, int(_WORK / (sweeps.layers * max(len(patterns.hops.between_s), 1) ** 2))))
    best = WalkBound(0.0, prices)
    for number in range(rounds):
        ended, before = sweeps.forward(prices)
        least = float(ended[-1].min(initial=np.inf))
        bound_s = least - float(prices @ patterns.sizes) if np.isfinite(least) else np.inf
        if bound_s > best.bound_s or not number:
            best, waited = WalkBound(bound_s, prices), 0
        else:
            waited += 1
            if waited == _PATIENCE:
                step, waited, prices = step / 2, 0, best.prices
        if best.bound_s >= beaten_s or step < _LEAST_STEP or clock.over():
            break
        visited = [state for state, _ in sweeps.walk(ended, before, prices)]
        over = patterns.counts[visited].sum(axis=0) - patterns.sizes
        over = np.where((over < 0) & (prices <= 0), 0, over)
        square = float(over @ over)
        if not square:
            break
        wanted_s = beaten_s if np.isfinite(beaten_s) else 1.1 * bound_s
        prices = np.maximum(0.0, prices + step * max(wanted_s - bound_s, 0.0) / square * over)
    return best


def groups_of(labels: Sequence[int], gpus: Sequence[int], kinds: Sequence[int]) -> Groups:
    """GPUs of one kind and label, one group each."""
    groups: dict[tuple[int, int], list[int]] = {}
    for gpu in gpus:
        groups.setdefault((labels[gpu], kinds[gpu]), []).append(gpu)
    return tuple(sorted(tuple(members) for members in groups.values()))
