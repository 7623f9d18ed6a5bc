"""Sets that the start of a fractional solution does not reach, by minimum cuts."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from torchsplit_core.placement.search.patterns import SegmentPatterns

_SCALE = 1_000_000
"""Units of a flow of 1: SciPy's maximum flow uses 32-bit integers."""

_SLACK = 0.01
"""A set is unreached if this much of its use of a class, in classes, does not arrive: smaller cuts change a relaxation
little. In benchmarks/placement_constants.py 0.0025 and 0.04 make no difference beyond the noise (a third)."""


def violated_cuts(
    patterns: SegmentPatterns, visits: np.ndarray, starts: np.ndarray, passes: np.ndarray, sizes: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """(patterns, gates, class) of sets that use more of the class's GPUs than what leads into them allows.

    The share of a class's GPUs in use must be able to flow from the start to the patterns that use it, through the
    passes of the solution; if less arrives, the far side of a minimum cut is returned, each set once. visits, starts
    and passes may be fractional; sizes: GPUs of each class.
    """
    count, gates = len(visits), patterns.gates
    used = np.flatnonzero(visits)
    arcs = np.flatnonzero(passes)
    begun = np.flatnonzero(starts)
    source, sink = count + gates, count + gates + 1
    tails = np.concatenate([used, count + patterns.arcs[0][arcs], np.full(len(begun), source)])
    heads = np.concatenate([count + patterns.gate_of[used], patterns.arcs[1][arcs], begun])
    amounts = np.concatenate([visits[used], passes[arcs], starts[begun]])
    nodes, numbers = np.unique(np.concatenate([tails, heads, [source, sink]]), return_inverse=True)
    tail, head = numbers[: len(tails)], numbers[len(tails) : 2 * len(tails)]
    first, last = int(numbers[-2]), int(numbers[-1])
    capacity = np.rint(amounts * _SCALE).astype(np.int32)
    cuts: dict[bytes, tuple[np.ndarray, np.ndarray, int]] = {}
    for gpu_class in np.flatnonzero(patterns.counts[used].any(axis=0)).tolist():
        using = used[patterns.counts[used, gpu_class] > 0]
        share = patterns.counts[using, gpu_class] * visits[using] / sizes[gpu_class]
        ends = np.searchsorted(nodes, using)
        graph = csr_matrix(
            (
                np.concatenate([capacity, np.rint(share * _SCALE).astype(np.int32)]),
                (np.concatenate([tail, ends]), np.concatenate([head, np.full(len(ends), last)])),
            ),
            shape=(len(nodes), len(nodes)),
        )
        flow = maximum_flow(graph, first, last)
        if flow.flow_value >= (share.sum() - _SLACK) * _SCALE:
            continue
        rest = graph - flow.flow
        rest.data[rest.data < 0] = 0
        rest.eliminate_zeros()
        near = np.zeros(len(nodes), dtype=bool)
        near[breadth_first_order(rest, first, return_predecessors=False)] = True
        far = nodes[~near]
        cuts.setdefault(
            far.tobytes(), (far[far < count], far[(far >= count) & (far < source)] - count, gpu_class)
        )
    return list(cuts.values())
