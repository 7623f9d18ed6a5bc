"""The search for least latency, or with devices of different speeds, and its bound.

Candidates come from the device programs over several orders, including one along the least cuts that the memory allows,
and over all ideals if they are few, which proves the optimum; otherwise from zones around the best candidate's cuts
(`neighbourhood_search`). Then the bound is the relaxed problem's:

    throughput   all time divided in proportion to the speeds; the longest block on the fastest device
    latency      blocks divisible, those with most time for their memory on the fastest devices that
                 have room, plus the least transfers over the cuts that the memory forces (`cut_windows`)
"""

from __future__ import annotations

import math
import time

from torchsplit_core.partitioning.blocks.block_graph import BlockGraph
from torchsplit_core.partitioning.blocks.topological_orders import topological_orders
from torchsplit_core.partitioning.candidates import make_candidate, objective_value
from torchsplit_core.partitioning.search.cut_windows import MOST_BLOCKS, CutBounds, open_windows
from torchsplit_core.partitioning.search.heterogeneous_dp import (
    DevicePlacement,
    best_ideal_placements,
    best_prefix_placements,
)
from torchsplit_core.partitioning.search.kernel import Kernel, chain_order
from torchsplit_core.partitioning.search.neighbourhood_search import improve, parametric_cuts
from torchsplit_core.values import PartitionCandidate, Progress

_ORDERS = 8
_MOST_IDEALS = 4_000  # every pair of them is evaluated
_FEW_IDEALS = 300  # of a kernel
_PREFIX_SHARE = 0.3  # of the time limit


def search_placements(
    graph: BlockGraph, deadline: float, progress: Progress, statistics: dict[str, str | int | float]
) -> tuple[list[PartitionCandidate], float, bool]:
    """Candidates, a lower bound in ms, and whether the best is proven (without any: that there is none)."""
    started = time.monotonic()
    is_large = len(graph.blocks) > MOST_BLOCKS
    windows = open_windows(graph) if is_large else CutBounds(graph).windows(math.inf, deadline)
    if windows is None:
        return [], 0.0, True
    objective = graph.request.objective
    bound = placement_bound_ms(graph, windows.transfer_ms)
    orders = [chain_order(graph, windows.ideals), *topological_orders(graph, _ORDERS)]
    candidates: list[PartitionCandidate] = []
    best = math.inf
    start: DevicePlacement | None = None
    for tried, order in enumerate(orders, start=1):
        for value, parts, devices in best_prefix_placements(graph, order, deadline=deadline):
            if value < best:
                best, start = value, (value, parts, devices)
            candidates.append(make_candidate(graph, parts, devices))
        statistics["orders"] = tried
        progress(0.05 + 0.45 * tried / len(orders), f"order {tried}: {objective} {best:.4g} ms")
        if best <= bound or time.monotonic() > started + _PREFIX_SHARE * (deadline - started):
            break
    if best <= bound:
        return candidates, bound, False
    half = (time.monotonic() + deadline) / 2
    complete, more = best_ideal_placements(graph, _MOST_IDEALS, best * (1 + 1e-9), half)
    statistics["ideals"] = "all" if complete else f"more than {_MOST_IDEALS} or out of time"
    candidates += [make_candidate(graph, parts, devices) for _, parts, devices in more]
    if complete and candidates:
        bound = min(objective_value(candidate, objective) for candidate in candidates)
    elif start is not None:
        for value, parts, devices in improve(graph, start, orders, bound, deadline, 0, _solve_kernel):
            candidates.append(make_candidate(graph, parts, devices))
            progress(0.7, f"{objective} {value:.4g} ms")
    return candidates, bound, complete


def _solve_kernel(kernel: Kernel, most_ms: float, deadline: float) -> DevicePlacement | None:
    """The best placement of a kernel by its least cuts or its ideals."""
    graph = kernel.graph
    order = chain_order(graph, parametric_cuts(kernel))
    complete, ideal_placements = best_ideal_placements(graph, _FEW_IDEALS, most_ms, deadline)
    placements = (
        ideal_placements if complete else best_prefix_placements(graph, order, None, most_ms, deadline)
    )
    return (placements[0][0], kernel.expand(placements[0][1]), placements[0][2]) if placements else None


def placement_bound_ms(graph: BlockGraph, transfer_ms: float) -> float:
    """The relaxed problem's value. `transfer_ms`: lower bound of the transfers over cuts that memory forces."""
    devices = graph.request.devices
    factors = sorted(devices.time_factors or (1.0,) * devices.count)
    if graph.request.objective == "throughput":
        speed = math.fsum(1 / factor for factor in factors)
        return max(graph.total_ms / speed, max(block.time_ms for block in graph.blocks) * factors[0])
    if devices.memory_bytes is None:
        return graph.total_ms * factors[0] + transfer_ms
    densest = sorted(
        graph.blocks, key=lambda b: -(b.time_ms / b.memory_bytes if b.memory_bytes else math.inf)
    )
    relaxed: list[float] = []
    room, device = float(devices.memory_bytes), 0
    for block in densest:
        left = float(block.memory_bytes)
        if not left:
            relaxed.append(block.time_ms * factors[0])
        while left > 0:
            taken = min(left, room)
            relaxed.append(block.time_ms * taken / block.memory_bytes * factors[device])
            left -= taken
            room -= taken
            if room <= 0 and device + 1 < len(factors):
                room, device = float(devices.memory_bytes), device + 1
    return math.fsum(relaxed) + transfer_ms
