"""Windows of the cuts of any pipeline with a load of at most U, and so a lower bound on the load.

A pipeline of k stages (some may be empty) is a chain of ideals J1 ⊆ … ⊆ J(k−1). With m_j the least cost of crossing cut
j, c_s the transfer of source s and every load at most U:

    T(J_j) + Σ_{i<j} inner_i + edge_j ≤ j·U                    (the first j stages)
    T − T(J_j) + Σ_{i>j} inner_i + edge_j ≤ (k − j)·U          (the other stages)
    T + Σ_j 2·edge_j ≤ k·U                                      (all)

edge_j is the least weight of sources that cross cut j, at the share y_sj of c_s, Σ_j y_sj ≤ c_s: a source costs once
leaving and at least once entering, however many cuts it crosses. inner_j has the weight y_sj + c_s for a source that
can cross no cut but j: it costs at both ends inside the first j' > j stages, others certainly only at one.

The first two inequalities bound the time of J_j. A block is outside J_j if its ancestors, with all blocks known to be
in J_j, take longer; it is inside if its descendants, with all known to be outside, leave too little. The same holds for
memory. Known blocks raise the least cuts, which narrow the windows again, until nothing changes or a contradiction
proves that every pipeline has a load above U.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from torchsplit_core.partitioning.blocks.block_graph import BlockGraph
from torchsplit_core.partitioning.search.min_cuts import CutNetwork

_ROUNDS = 6
_SUBGRADIENT_STEPS = 5  # steps a round of the shares towards the best bound
_SLACK = 1e-9  # relative to all time: sum of rounding errors
_CHUNK = 512
MOST_BLOCKS = 20_000  # ancestors and descendants as bits: 100 MB, and four times that at twice as many

Limit = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Cost of every block, the most of it inside each cut, the most of it outside each cut."""


@dataclass(frozen=True)
class CutWindows:
    """`inside[j]`, `outside[j]`: blocks known to be in the first j + 1 stages, or not in them.

    `low_ms`, `high_ms`: limits of the time of the first j + 1 stages; `ideals`: a least cut of each window;
    `transfer_ms`: lower bound of the transfers over all cuts, every value once.
    """

    inside: tuple[np.ndarray, ...]
    outside: tuple[np.ndarray, ...]
    low_ms: np.ndarray
    high_ms: np.ndarray
    ideals: tuple[np.ndarray, ...]
    transfer_ms: float = 0.0


def open_windows(graph: BlockGraph) -> CutWindows:
    """Windows without knowledge, for a graph of more than `MOST_BLOCKS` blocks."""
    n, cuts = len(graph.blocks), min(graph.request.devices.count, len(graph.blocks)) - 1
    none = np.zeros(n, dtype=bool)
    return CutWindows((none,) * cuts, (none,) * cuts, np.full(cuts, -math.inf), np.full(cuts, math.inf), ())


class CutBounds:
    """Ancestors and descendants of every block, for windows and bounds of one contiguous graph."""

    def __init__(self, graph: BlockGraph) -> None:
        self.graph = graph
        self.network = CutNetwork(graph)
        n = len(graph.blocks)
        before = [1 << b for b in range(n)]
        after = [1 << b for b in range(n)]
        for a, b in sorted(graph.edges, key=lambda edge: edge[1]):
            before[b] |= before[a]
        for a, b in sorted(graph.edges, key=lambda edge: -edge[0]):
            after[a] |= after[b]
        self.before, self.after = _packed(before), _packed(after)
        self.time = np.array([block.time_ms for block in graph.blocks])
        self.memory = np.array([block.memory_bytes for block in graph.blocks], dtype=float)
        self.total = graph.total_ms
        self.count = min(graph.request.devices.count, n)

    def windows(self, load_ms: float, deadline: float = math.inf) -> CutWindows | None:
        """Windows of all pipelines with every load at most `load_ms`; None: provably there are none.

        With an infinite load only the memory narrows them. Narrowing stops at the deadline.
        """
        n, cuts = len(self.time), self.count - 1
        slack = _SLACK * max(self.total, 1e-300)
        u = load_ms + slack
        limit = self.graph.request.devices.memory_bytes
        stages = np.arange(1, self.count)
        inside, outside = np.zeros((cuts, n), dtype=bool), np.zeros((cuts, n), dtype=bool)
        edge, inner = np.zeros(cuts), np.zeros(cuts)
        ideals: list[np.ndarray] = []
        share = np.zeros((cuts, len(self.network.cost_ms)))
        if self.total > self.count * u or self.time.max() > u:
            return None
        if not cuts:
            return CutWindows((), (), edge, edge, ())
        for _ in range(_ROUNDS):
            before_cut = np.concatenate(([0.0], np.cumsum(inner)))[:-1]
            after_cut = np.concatenate((np.cumsum(inner[::-1])[::-1], [0.0]))[1:]
            high = stages * u - before_cut - edge
            low = self.total - (self.count - stages) * u + after_cut + edge
            low = np.maximum.accumulate(low)
            high = np.minimum.accumulate(high[::-1])[::-1]
            if (low > high).any():
                return None
            known = inside.sum() + outside.sum()
            limits: list[Limit] = [(self.time, high + slack, self.total - low + slack)]
            if limit is not None:
                limits.append((self.memory, stages * limit + 0.5, (self.count - stages) * limit + 0.5))
            self._propagate(inside, outside, limits)
            if (inside & outside).any():
                return None
            if ideals and (inside.sum() + outside.sum() == known or time.monotonic() > deadline):
                break
            ideals, edge, inner, share = self._min_cuts(inside, outside, share, deadline)
            if self.total + 2 * edge.sum() > self.count * u:
                return None
        return CutWindows(tuple(inside), tuple(outside), low, high, tuple(ideals), float(edge.sum()))

    def _propagate(self, inside: np.ndarray, outside: np.ndarray, limits: list[Limit]) -> None:
        """Mark every block that would exceed a limit on what is inside, or outside, of a cut's ideal."""
        n, cuts = len(self.time), self.count - 1
        for packed, have, other, side in (
            (self.before, inside, outside, 1),
            (self.after, outside, inside, 2),
        ):
            open_blocks = np.flatnonzero(~(inside | outside).all(axis=0))
            missing = np.concatenate([(limit[0] * ~have)[:, open_blocks].T for limit in limits], axis=1)
            room = np.concatenate([limit[side] - have @ limit[0] for limit in limits])
            full: np.ndarray = np.any(room.reshape(-1, cuts) < 0, axis=0)
            other[full] = True
            for start in range(0, len(open_blocks), _CHUNK):
                rows = open_blocks[start : start + _CHUNK]
                bits = np.unpackbits(packed[rows], axis=1, bitorder="little")[:, open_blocks]
                brought: np.ndarray = bits @ missing
                above = (brought > room).reshape(len(rows), -1, cuts).any(axis=1)
                other[:, rows] |= above.T
        for closed, members in ((self.before, inside), (self.after, outside)):
            for row in members:  # rounding may have marked a block without one that must go with it
                every: np.ndarray = np.bitwise_or.reduce(closed[row], axis=0, initial=0)
                row |= np.unpackbits(every, bitorder="little")[:n].astype(bool)

    def _min_cuts(
        self, inside: np.ndarray, outside: np.ndarray, share: np.ndarray, deadline: float
    ) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
        """Least cuts, edge_j, inner_j and the shares; subgradient steps move these from `share` to crossed cuts."""
        network, cuts = self.network, self.count - 1
        possible = np.array([network.may_cross(inside[j], outside[j]) for j in range(cuts)])
        times = np.maximum(possible.sum(axis=0), 1)
        share = share * possible
        share = share + possible * ((network.cost_ms - share.sum(axis=0)) / times)
        best: tuple[float, np.ndarray, list[np.ndarray], np.ndarray] | None = None
        for iteration in range(_SUBGRADIENT_STEPS if (times > 1).any() else 1):
            min_cuts = [network.min_cut(inside[j], outside[j], share[j]) for j in range(cuts)]
            edge = np.array([cut.cost_ms for cut in min_cuts])
            if best is None or edge.sum() > best[0]:
                best = (float(edge.sum()), edge, [cut.ideal for cut in min_cuts], share)
            if time.monotonic() > deadline:
                break
            crossed = np.array([network.crossed(cut.ideal) for cut in min_cuts]) & possible
            push = (crossed - crossed.sum(axis=0) / times) * network.cost_ms / (iteration + 2)
            share = _project_onto_simplex(np.where(possible, share + push, -np.inf), network.cost_ms)
        assert best is not None
        _, edge, ideals, share = best
        single = np.where(times == 1, network.cost_ms, 0.0)
        inner = np.array(
            [network.min_cut(inside[j], outside[j], share[j] + single).cost_ms for j in range(cuts)]
        )
        return ideals, edge, inner, share


def _project_onto_simplex(wanted: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """The nearest shares that are 0 or more and sum to at most `whole`, column by column.

    Projection onto a simplex by sorting (Held, Wolfe, Crowder 1974); -inf stays at 0.
    """
    falling = -np.sort(-wanted, axis=0)
    rank = np.arange(1, len(wanted) + 1)[:, None]
    with np.errstate(invalid="ignore"):
        spare = (np.cumsum(falling, axis=0) - whole) / rank
        support = (np.isfinite(falling) & (falling > spare)).sum(axis=0)
        level = np.take_along_axis(spare, np.maximum(support, 1)[None] - 1, axis=0)[0]
        shares: np.ndarray = np.where(
            np.isfinite(wanted) & (support > 0), np.maximum(wanted - level, 0.0), 0.0
        )
    above = np.maximum(shares.sum(axis=0) / np.maximum(whole, 1e-300), 1.0)
    fitted: np.ndarray = shares / above
    return fitted


def _packed(masks: list[int]) -> np.ndarray:
    width = (len(masks) + 7) // 8
    raw = b"".join(mask.to_bytes(width, "little") for mask in masks)
    return np.frombuffer(raw, dtype=np.uint8).reshape(len(masks), width)
