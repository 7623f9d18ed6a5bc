"""Verifies candidates from the request alone, without any code of the search."""

from __future__ import annotations

import math

from torchsplit_core.values import InternalFault, PartitionCandidate, PartitionOutcome, PartitionRequest

RELATIVE = 1e-6  # values closer than this are equal (file contract)


def verify_outcome(request: PartitionRequest, outcome: PartitionOutcome) -> None:
    """Verify every candidate, their order, and the bound. Raises InternalFault."""
    for candidate in outcome.candidates:
        verify_candidate(request, candidate)
    latency = request.objective == "latency"
    values = [(c.latency_ms or 0.0) if latency else c.max_load_ms for c in outcome.candidates]
    if values != sorted(values):
        raise InternalFault(f"candidates are not in order of their {request.objective}")
    if len({candidate.stages for candidate in outcome.candidates}) < len(values):
        raise InternalFault("a candidate stands twice")
    if values and (outcome.bound_ms is None or outcome.bound_ms > values[0] * (1 + RELATIVE) + 1e-12):
        raise InternalFault(f"bound {outcome.bound_ms} ms is above the best value {values[0]} ms")
    if (outcome.status == "optimal") != bool(values and outcome.gap is not None and outcome.gap <= RELATIVE):
        raise InternalFault(f"status {outcome.status} does not go with gap {outcome.gap}")


def verify_candidate(request: PartitionRequest, candidate: PartitionCandidate) -> None:
    """Recompute loads, cut bytes and memory and check every rule. Raises InternalFault for a broken one."""
    stage_of: dict[str, int] = {}
    for i, stage in enumerate(candidate.stages):
        if not stage:
            raise InternalFault(f"stage {i} is empty")
        for name in stage:
            if name in stage_of:
                raise InternalFault(f"node {name} is in two stages")
            stage_of[name] = i
    if set(stage_of) != {node.id for node in request.nodes}:
        raise InternalFault("the stages do not hold exactly the nodes of the request")
    count = len(candidate.stages)
    if count > request.devices.count:
        raise InternalFault(f"{count} stages for {request.devices.count} devices")
    factors = _stage_time_factors(request, candidate)
    groups: dict[str, int] = {}
    memory = [0] * count
    times: list[list[float]] = [[] for _ in range(count)]
    for node in request.nodes:
        node_stage = stage_of[node.id]
        if node.group is not None and groups.setdefault(node.group, node_stage) != node_stage:
            raise InternalFault(f"group {node.group} is on two stages")
        memory[node_stage] += node.memory_bytes
        times[node_stage].append(node.time_ms * factors[node_stage])
    limit = request.devices.memory_bytes
    if limit is not None and max(memory) > limit:
        raise InternalFault(f"a stage holds {max(memory)} bytes, a device {limit}")
    entering: list[set[str]] = [set() for _ in range(count)]
    leaving: list[set[str]] = [set() for _ in range(count)]
    for edge in request.edges:
        node_stage, target_stage = stage_of[edge.source], stage_of[edge.target]
        if request.contiguous and target_stage < node_stage:
            raise InternalFault(
                f"edge {edge.source} -> {edge.target} runs back from stage {node_stage} to {target_stage}"
            )
        if node_stage != target_stage:
            leaving[node_stage].add(edge.source)
            entering[target_stage].add(edge.source)
    size = {node.id: node.output_bytes for node in request.nodes}
    link = request.devices.link_gb_per_s
    cost = 0.0 if link is None else 1 / (link * 1e6)
    loads = [
        math.fsum(times[i]) + cost * (sum(size[s] for s in entering[i]) + sum(size[s] for s in leaving[i]))
        for i in range(count)
    ]
    _check_equal("loads_ms", candidate.loads_ms, tuple(loads))
    _check_equal("max_load_ms", (candidate.max_load_ms,), (max(loads),))
    latency_ms = math.fsum(
        math.fsum(times[i]) + cost * sum(size[s] for s in entering[i]) for i in range(count)
    )
    if candidate.latency_ms is not None or request.objective == "latency":
        _check_equal(
            "latency_ms", (-1.0 if candidate.latency_ms is None else candidate.latency_ms,), (latency_ms,)
        )
    _check_equal(
        "cut_bytes", candidate.cut_bytes, tuple(sum(size[s] for s in leaving[i]) for i in range(count - 1))
    )
    if len(candidate.peak_memory_bytes) != count:
        raise InternalFault("peak_memory_bytes has not one figure a stage")
    if any(stated < needed for stated, needed in zip(candidate.peak_memory_bytes, memory, strict=True)):
        raise InternalFault(f"peak_memory_bytes {candidate.peak_memory_bytes} is below the nodes' {memory}")


def _stage_time_factors(request: PartitionRequest, candidate: PartitionCandidate) -> tuple[float, ...]:
    """The factor of each stage's time. Raises InternalFault if a device is used twice or unknown."""
    time_factors, used = request.devices.time_factors, candidate.devices
    if time_factors is None:
        if used:
            raise InternalFault(f"devices {used} are named where all are equal")
        return (1.0,) * len(candidate.stages)
    if len(used) != len(candidate.stages) or len(set(used)) < len(used):
        raise InternalFault(
            f"devices {used} are not one of its own for each of {len(candidate.stages)} stages"
        )
    if not set(used) <= set(range(len(time_factors))):
        raise InternalFault(f"devices {used} are not all among the {len(time_factors)} of the request")
    return tuple(time_factors[d] for d in used)


def _check_equal(name: str, stated: tuple[float, ...], recomputed: tuple[float, ...]) -> None:
    if len(stated) != len(recomputed) or any(
        not math.isclose(a, b, rel_tol=RELATIVE, abs_tol=1e-9)
        for a, b in zip(stated, recomputed, strict=True)
    ):
        raise InternalFault(f"{name} is {stated}, recomputed {recomputed}")
