"""Least cuts of a block graph: the cheapest ideal between two given sets, by maximum flow.

An ideal J must contain `inside` and avoid `outside`. Its cost is the weight of every source that crosses (made in J,
read outside), plus `tilt` of its blocks. As a flow: an edge of a source's weight runs from its maker to a vertex of the
source, and infinite ones from there to its readers; an infinite edge from every reader back to the maker keeps J closed
under predecessors (the project selection of Picard, "Maximal closure of a graph", 1976). Capacities are rounded down to
integers, so the flow's value never exceeds the true least cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from torchsplit_core.partitioning.blocks.block_graph import BlockGraph

_LARGEST = 2**29  # all finite capacities together; infinite ones are just above: 32-bit flows cannot overflow
_INFINITE = _LARGEST + 1


@dataclass(frozen=True)
class MinCut:
    """`cost_ms`: proven lower bound on the cost of every allowed ideal. `ideal`: one of about that cost."""

    cost_ms: float
    ideal: np.ndarray


class CutNetwork:
    """The readers of every source as arrays, built once for many least cuts of one graph."""

    def __init__(self, graph: BlockGraph) -> None:
        self.blocks = len(graph.blocks)
        self.home = np.array([source.block for source in graph.sources], dtype=np.int64)
        self.pair_source = np.array(
            [s for s, source in enumerate(graph.sources) for _ in source.readers], dtype=np.int64
        )
        self.pair_reader = np.array([r for source in graph.sources for r in source.readers], dtype=np.int64)
        self.cost_ms = np.array([source.transfer_ms for source in graph.sources], dtype=float)

    def may_cross(self, inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
        """For every source, whether it crosses the cut of some allowed ideal: maker in, some reader out."""
        left = np.zeros(len(self.home), dtype=bool)
        left[self.pair_source[~inside[self.pair_reader]]] = True
        crossing: np.ndarray = left & ~outside[self.home]
        return crossing

    def crossed(self, ideal: np.ndarray) -> np.ndarray:
        """For every source, whether it crosses the cut of this ideal."""
        return self.may_cross(ideal, ~ideal)

    def min_cut(
        self,
        inside: np.ndarray,
        outside: np.ndarray,
        weight_ms: np.ndarray,
        tilt_ms: np.ndarray | None = None,
    ) -> MinCut:
        """The least cost of ideals that contain `inside` (an ideal) and avoid `outside` (closed under readers).

        `weight_ms`: one figure a source; `tilt_ms`: one a block (any sign; None for none).
        """
        free = np.flatnonzero(~inside & ~outside)
        vertex = np.full(self.blocks, 0)
        vertex[outside] = 1
        vertex[free] = 2 + np.arange(len(free))
        crossing = np.flatnonzero(self.may_cross(inside, outside) & (weight_ms > 0))
        of_source = np.full(len(self.home), -1)
        of_source[crossing] = 2 + len(free) + np.arange(len(crossing))
        count = 2 + len(free) + len(crossing)
        tilt = np.zeros(len(free)) if tilt_ms is None else tilt_ms[free]
        fixed = 0.0 if tilt_ms is None else float(tilt_ms[inside].sum()) + float(tilt[tilt < 0].sum())
        positive, negative = np.flatnonzero(tilt > 0), np.flatnonzero(tilt < 0)
        finite = np.concatenate((weight_ms[crossing], tilt[positive], -tilt[negative]))
        if not finite.sum() > 0:
            return MinCut(fixed, inside.copy())
        scale = _LARGEST / finite.sum()
        reads = (of_source[self.pair_source] >= 0) & ~inside[self.pair_reader]
        back = (vertex[self.pair_reader] > 1) & (vertex[self.home[self.pair_source]] > 1)
        tails = (
            vertex[self.home[crossing]],
            2 + positive,
            np.zeros(len(negative), dtype=np.int64),
            of_source[self.pair_source[reads]],
            vertex[self.pair_reader[back]],
        )
        heads = (
            of_source[crossing],
            np.ones(len(positive), dtype=np.int64),
            2 + negative,
            vertex[self.pair_reader[reads]],
            vertex[self.home[self.pair_source[back]]],
        )
        infinite = np.full(int(reads.sum() + back.sum()), _INFINITE)
        capacity = np.concatenate((np.floor(finite * scale).astype(np.int64), infinite))
        network = csr_matrix((capacity, (np.concatenate(tails), np.concatenate(heads))), (count, count))
        network.data = np.minimum(network.data, _INFINITE).astype(np.int32)  # parallel edges were added up
        flow = maximum_flow(network, 0, 1)
        residual = network - flow.flow
        residual.data = np.where(residual.data > 0, 1, 0)
        residual.eliminate_zeros()
        reached = np.zeros(count, dtype=bool)
        reached[breadth_first_order(residual, 0, return_predecessors=False)] = True
        ideal = inside.copy()
        ideal[free] = reached[2 : 2 + len(free)]
        return MinCut(fixed + flow.flow_value / scale, ideal)
