"""A better pipeline near a given one: everything but a zone around every cut is fixed, and the zones are solved again.

A zone is the neighbourhood of a cut in an order that lists the stages one after the other, each along one of the
topological orders; the rest is merged (`kernel`). In the remaining small graph, least cuts at several prices of time
make a chain of ideals with few bytes across. The prefix program solves an order along that chain, and the ideal program
all of it if the ideals are few. No proof.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from torchsplit_core.partitioning.blocks.block_graph import BlockGraph
from torchsplit_core.partitioning.blocks.topological_orders import topological_orders
from torchsplit_core.partitioning.search.cut_windows import CutWindows
from torchsplit_core.partitioning.search.heterogeneous_dp import DevicePlacement
from torchsplit_core.partitioning.search.ideal_dp import best_ideal_cuts
from torchsplit_core.partitioning.search.kernel import Kernel, chain_order, kernelize
from torchsplit_core.partitioning.search.min_cuts import CutNetwork
from torchsplit_core.partitioning.search.prefix_dp import best_prefix_cuts

Parts = tuple[tuple[int, ...], ...]
ValuedCut = tuple[float, Parts]
ValuedPipeline = TypeVar("ValuedPipeline", ValuedCut, DevicePlacement)
"""A pipeline with its value, and with the devices of its stages if speeds differ."""

_PRICES = (
    -0.6,
    -0.3,
    -0.15,
    -0.06,
    -0.02,
    0.0,
    0.02,
    0.06,
    0.15,
    0.3,
    0.6,
)  # ms of transfer for a ms of time
_WIDTHS = (0.05, 0.15, 0.02, 0.3, 0.08, 0.8)  # of an equal share of the time, to either side of a cut
_FEW_IDEALS = 1500
_IDEALS_S = 2.0
_STALLED = 40  # tries without a gain before the search ends


def improve(
    graph: BlockGraph,
    start: ValuedPipeline,
    orders: Sequence[Sequence[int]],
    bound_ms: float,
    deadline: float,
    seed: int,
    solve: Callable[[Kernel, float, float], ValuedPipeline | None],
) -> Iterator[ValuedPipeline]:
    """Ever better pipelines from `start` until there is no more gain.

    `orders`: topological orders of the blocks. Ends early at `bound_ms` or the deadline. `solve` gives a good pipeline
    of the whole graph from a kernel, the best value so far and the deadline.
    """
    rng = random.Random(seed)
    value, parts = start[0], start[1]
    stalled = tries = 0
    if graph.request.devices.count == 1 or len(graph.blocks) == 1:
        return
    while stalled < _STALLED and value > bound_ms * (1 + 1e-9) and time.monotonic() < deadline:
        width = _WIDTHS[tries % len(_WIDTHS)] * graph.total_ms / graph.request.devices.count
        order = orders[0] if tries < len(_WIDTHS) else rng.choice(orders)
        kernel = kernelize(graph, _windows_around_cuts(graph, parts, order, width, rng))
        solution = solve(kernel, value, deadline)
        tries += 1
        stalled += 1
        if solution is not None and solution[0] < value * (1 - 1e-9):
            value, parts = solution[0], solution[1]
            stalled = 0
            yield solution


def _windows_around_cuts(
    graph: BlockGraph, parts: Parts, order: Sequence[int], width_ms: float, rng: random.Random
) -> CutWindows:
    """Windows that leave up to `width_ms` undecided on both sides of every cut.

    An unused device gets a random cut.
    """
    n = len(graph.blocks)
    stage = np.empty(n, dtype=np.int64)
    for i, part in enumerate(parts):
        stage[list(part)] = i
    at = np.empty(n, dtype=np.int64)
    at[list(order)] = np.arange(n)
    line = np.lexsort((at, stage))
    passed = np.cumsum(np.array([graph.blocks[b].time_ms for b in line]))
    ends = np.cumsum([len(part) for part in parts])[:-1].tolist()
    if len(parts) < min(graph.request.devices.count, n):
        ends.append(rng.randrange(1, n))
    sizes = np.array(sorted(ends), dtype=np.int64)
    inside, outside = np.zeros((len(sizes), n), dtype=bool), np.ones((len(sizes), n), dtype=bool)
    for j, size in enumerate(sizes):
        middle = passed[size - 1]
        low = np.searchsorted(passed, middle - width_ms * rng.uniform(0.3, 1.0), side="right")
        high = np.searchsorted(passed, middle + width_ms * rng.uniform(0.3, 1.0), side="right")
        inside[j, line[: min(low, size)]] = True
        outside[j, line[: max(high, size)]] = False
    return CutWindows(tuple(inside), tuple(outside), passed[sizes - 1], passed[sizes - 1], ())


def minimize_max_load(kernel: Kernel, incumbent_ms: float, deadline: float) -> ValuedCut | None:
    """The pipeline of least largest load from a kernel's least cuts, its orders or its ideals."""
    graph = kernel.graph
    best: ValuedCut | None = None
    for order in (chain_order(graph, parametric_cuts(kernel)), *topological_orders(graph, 2)):
        limit = incumbent_ms if best is None else best[0]
        for cut in best_prefix_cuts(graph, order, 1, at_most_ms=limit):
            if best is None or cut[0] < best[0]:
                best = cut
    limit = min(incumbent_ms, best[0] if best else incumbent_ms)
    until = min(deadline, time.monotonic() + _IDEALS_S)
    for cut in best_ideal_cuts(graph, 1, limit, _FEW_IDEALS, until).cuts:
        if best is None or cut[0] < best[0]:
            best = cut
    return best and (best[0], kernel.expand(best[1]))


def parametric_cuts(kernel: Kernel) -> list[np.ndarray]:
    """Least cuts of the kernel's zones at several prices of time, sorted by their time.

    Merged blocks belong to a stage; every zone lies between two of them.
    """
    graph, windows = kernel.graph, kernel.windows
    network = CutNetwork(graph)
    time_ms = np.array([block.time_ms for block in graph.blocks])
    ideals = [
        network.min_cut(inside, outside, network.cost_ms, price * time_ms).ideal
        for inside, outside in zip(windows.inside, windows.outside, strict=True)
        for price in _PRICES
    ]
    return sorted(ideals, key=lambda ideal: float(time_ms[ideal].sum()))
