"""Solves a partition request: good cuts quickly, then the proof if possible.

1. prefixes of several topological orders, each solved exactly (`prefix_dp`);
2. contiguous: windows of the cuts, their kernel, all its ideals if they are few, a search near the best, and bisection
   of the load (`gap_closing`); otherwise any assignment (`free_assignment`), proven for few blocks;
3. the bound: the optimum if proven, else the largest load that step 2 ruled out, else the larger of an equal share of
   all time and the longest block.

Status: `optimal` only if the best meets the bound, `feasible` with a gap, `infeasible` with the node or group at fault,
`timeout` if nothing was found and nothing proven.
"""

from __future__ import annotations

import time
from dataclasses import replace

from torchsplit_core.partitioning.blocks.block_graph import BlockGraph, check_request, contract
from torchsplit_core.partitioning.blocks.topological_orders import topological_orders
from torchsplit_core.partitioning.candidates import (
    fits_memory,
    make_candidate,
    objective_value,
    rank_distinct,
)
from torchsplit_core.partitioning.search.device_placement import search_placements
from torchsplit_core.partitioning.search.free_assignment import EXACT_BLOCKS, best_free_assignment
from torchsplit_core.partitioning.search.gap_closing import close_gap
from torchsplit_core.partitioning.search.prefix_dp import best_prefix_cuts
from torchsplit_core.partitioning.verify import RELATIVE, verify_outcome
from torchsplit_core.values import (
    PartitionCandidate,
    PartitionOutcome,
    PartitionRequest,
    Progress,
    ignore_progress,
)

MAX_IDEALS = 200_000
_ORDERS = 16
_SEARCH_SHARE = 0.95  # of the time limit: computing figures and verification take the rest
_PREFIX_SHARE = 0.15  # of the search
_PIPELINE_SHARE = 0.5  # of the rest, if no order of stages is required

Parts = tuple[tuple[int, ...], ...]


def solve_partition(request: PartitionRequest, progress: Progress = ignore_progress) -> PartitionOutcome:
    """The best `top_k` distinct candidates found, verified, and a proven lower bound.

    The bound applies to the first candidate; the others are good distinct ones, not a proven second and third. Raises
    InputFault as `check_request` does.
    """
    check_request(request)
    outcome = _solve(request, progress)
    return replace(outcome, devices=request.devices, objective=request.objective)


def _solve(request: PartitionRequest, progress: Progress) -> PartitionOutcome:
    started = time.monotonic()
    deadline = started + _SEARCH_SHARE * request.solver.time_limit_s
    graph = contract(request)
    statistics: dict[str, str | int | float] = {"nodes": len(request.nodes), "blocks": len(graph.blocks)}
    cause = memory_shortfall(graph)
    if cause:
        return _infeasible(cause, statistics, started)
    progress(0.05, f"{len(graph.blocks)} blocks, cutting prefixes of topological orders")
    if request.objective == "latency" or request.devices.time_factors is not None:
        unranked, bound, proved = search_placements(graph, deadline, progress, statistics)
    else:
        unranked, bound, proved = _equal_devices(graph, started, deadline, progress, statistics)
    candidates = rank_distinct(unranked, request.top_k, request.objective)
    statistics["wall_s"] = time.monotonic() - started
    progress(1.0, "done")
    if not candidates:
        if proved:
            return _infeasible(_format_packing_failure(graph), statistics, started)
        return PartitionOutcome(
            "timeout",
            (),
            bound,
            None,
            "No cut that fits the memory was found in the time given.",
            statistics=statistics,
        )
    value = objective_value(candidates[0], request.objective)
    bound = value if proved else min(bound, value)
    gap = (value - bound) / value if value > 0 else 0.0
    status = "optimal" if gap <= RELATIVE else "feasible"
    outcome = PartitionOutcome(status, candidates, bound, gap, statistics=statistics)  # type: ignore[arg-type]
    verify_outcome(request, outcome)
    return outcome


def _equal_devices(
    graph: BlockGraph,
    started: float,
    deadline: float,
    progress: Progress,
    statistics: dict[str, str | int | float],
) -> tuple[list[PartitionCandidate], float, bool]:
    """Candidates of least largest load, the bound, and whether the best is proven."""
    prefix_candidates = _prefix_candidates(
        graph, started + _PREFIX_SHARE * (deadline - started), progress, statistics
    )
    bound = simple_bound_ms(graph)
    best = min((candidate.max_load_ms for candidate in prefix_candidates), default=float("inf"))
    if best <= bound * (1 + RELATIVE):
        return prefix_candidates, bound, False
    progress(0.4, "searching beyond single orders")
    if graph.request.contiguous:
        more, bound, proved = _contiguous_candidates(
            graph, prefix_candidates, bound, deadline, progress, statistics
        )
    else:
        more, proved = _free_candidates(graph, prefix_candidates, deadline, progress, statistics)
    return prefix_candidates + more, bound, proved


def simple_bound_ms(graph: BlockGraph) -> float:
    """The larger of the longest block and an equal share of the time."""
    return max(graph.total_ms / graph.request.devices.count, max(block.time_ms for block in graph.blocks))


def memory_shortfall(graph: BlockGraph) -> str:
    """Why no assignment can fit the memory, naming the node or group; empty if none is evident."""
    devices = graph.request.devices
    if devices.memory_bytes is None:
        return ""
    largest = max(graph.blocks, key=lambda block: block.memory_bytes)
    if largest.memory_bytes > devices.memory_bytes:
        return f"{largest.name} needs {largest.memory_bytes} bytes, a device has {devices.memory_bytes}."
    total = sum(block.memory_bytes for block in graph.blocks)
    if total > devices.count * devices.memory_bytes:
        return (
            f"All nodes need {total} bytes, {devices.count} devices have {devices.count * devices.memory_bytes}; "
            f"the largest is {largest.name} with {largest.memory_bytes}."
        )
    return ""


def _format_packing_failure(graph: BlockGraph) -> str:
    largest = max(graph.blocks, key=lambda block: block.memory_bytes)
    return (
        f"No division into {graph.request.devices.count} stages fits {graph.request.devices.memory_bytes} bytes each; "
        f"the largest is {largest.name} with {largest.memory_bytes} bytes."
    )


def _infeasible(message: str, statistics: dict[str, str | int | float], started: float) -> PartitionOutcome:
    statistics["wall_s"] = time.monotonic() - started
    return PartitionOutcome("infeasible", (), None, None, message, statistics=statistics)


def _prefix_candidates(
    graph: BlockGraph, deadline: float, progress: Progress, statistics: dict[str, str | int | float]
) -> list[PartitionCandidate]:
    """Contiguous candidates; a non-contiguous request uses them as starts if its blocks allow an order."""
    if not graph.request.contiguous:
        ordered = contract(_as_contiguous(graph.request))
        parts = [p for p in _prefix_parts(ordered, deadline, progress, statistics) if fits_memory(ordered, p)]
        return [make_candidate(graph, _parts_of(graph, ordered.stages(p))) for p in parts]
    return [make_candidate(graph, parts) for parts in _prefix_parts(graph, deadline, progress, statistics)]


def _as_contiguous(request: PartitionRequest) -> PartitionRequest:
    return replace(request, contiguous=True)


def _prefix_parts(
    graph: BlockGraph, deadline: float, progress: Progress, statistics: dict[str, str | int | float]
) -> list[Parts]:
    cuts: list[Parts] = []
    best = float("inf")
    tried = 0
    for tried, order in enumerate(topological_orders(graph, _ORDERS), start=1):
        for value, parts in best_prefix_cuts(graph, order, graph.request.top_k, at_most_ms=best):
            best = min(best, value)
            cuts.append(parts)
        progress(0.05 + 0.35 * tried / _ORDERS, f"order {tried}: largest load {best:.4g} ms")
        if time.monotonic() > deadline:
            break
    statistics["orders"] = tried
    return cuts


def _contiguous_candidates(
    graph: BlockGraph,
    prefix_candidates: list[PartitionCandidate],
    bound_ms: float,
    deadline: float,
    progress: Progress,
    statistics: dict[str, str | int | float],
) -> tuple[list[PartitionCandidate], float, bool]:
    """Candidates, the bound, and whether the best is proven."""
    best = min(prefix_candidates, key=lambda candidate: candidate.max_load_ms, default=None)
    start = None if best is None else (best.max_load_ms, _parts_of(graph, best.stages))
    gap = close_gap(
        graph,
        start,
        bound_ms,
        MAX_IDEALS,
        graph.request.top_k,
        deadline,
        lambda share, line: progress(0.4 + 0.55 * share, line),
        statistics,
    )
    return [make_candidate(graph, parts) for _, parts in gap.cuts], gap.bound_ms, gap.proved


def _parts_of(graph: BlockGraph, stages: tuple[tuple[str, ...], ...]) -> Parts:
    """The blocks of every stage, in the order of the stages."""
    stage_of = {name: i for i, stage in enumerate(stages) for name in stage}
    parts: list[list[int]] = [[] for _ in stages]
    for b, block in enumerate(graph.blocks):
        parts[stage_of[graph.request.nodes[block.nodes[0]].id]].append(b)
    return tuple(tuple(part) for part in parts)


def _free_candidates(
    graph: BlockGraph,
    start_candidates: list[PartitionCandidate],
    deadline: float,
    progress: Progress,
    statistics: dict[str, str | int | float],
) -> tuple[list[PartitionCandidate], bool]:
    if len(graph.blocks) > EXACT_BLOCKS:  # then the best pipeline is the best start
        ordered = contract(_as_contiguous(graph.request))
        until = time.monotonic() + _PIPELINE_SHARE * (deadline - time.monotonic())
        pipelines, _, _ = _equal_devices(ordered, time.monotonic(), until, progress, statistics)
        start_candidates = [make_candidate(graph, _parts_of(graph, c.stages)) for c in pipelines]
    starts = [_parts_of(graph, candidate.stages) for candidate in rank_distinct(start_candidates, 3)]
    result = best_free_assignment(graph, starts, deadline)
    statistics["exhaustive"] = int(result.complete)
    return [make_candidate(graph, parts) for _, parts in result.assignments], result.complete
