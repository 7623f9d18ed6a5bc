"""Check a candidate from the request alone, without any of the code that found it."""

from __future__ import annotations

import math

from torchsplit_core.values import InternalFault, PartitionCandidate, PartitionOutcome, PartitionRequest

RELATIVE = 1e-6  # values closer than this are equal (file contract)


def verify_outcome(request: PartitionRequest, outcome: PartitionOutcome) -> None:
    """Every candidate, their order, and the bound below the best. Raises InternalFault."""
    for candidate in outcome.candidates:
        verify_candidate(request, candidate)
    loads = [candidate.max_load_ms for candidate in outcome.candidates]
    if loads != sorted(loads):
        raise InternalFault("candidates are not in order of their largest load")
    if len({candidate.stages for candidate in outcome.candidates}) < len(loads):
        raise InternalFault("a candidate stands twice")
    if loads and (outcome.bound_ms is None or outcome.bound_ms > loads[0] * (1 + RELATIVE) + 1e-12):
        raise InternalFault(f"bound {outcome.bound_ms} ms is above the best load {loads[0]} ms")
    if (outcome.status == "optimal") != bool(loads and outcome.gap is not None and outcome.gap <= RELATIVE):
        raise InternalFault(f"status {outcome.status} does not go with gap {outcome.gap}")


def verify_candidate(request: PartitionRequest, candidate: PartitionCandidate) -> None:
    """Recompute loads, cut bytes and memory and check every rule. Raises InternalFault with the one broken."""
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
    groups: dict[str, int] = {}
    memory = [0] * count
    times: list[list[float]] = [[] for _ in range(count)]
    for node in request.nodes:
        here = stage_of[node.id]
        if node.group is not None and groups.setdefault(node.group, here) != here:
            raise InternalFault(f"group {node.group} is on two stages")
        memory[here] += node.memory_bytes
        times[here].append(node.time_ms)
    limit = request.devices.memory_bytes
    if limit is not None and max(memory) > limit:
        raise InternalFault(f"a stage holds {max(memory)} bytes, a device {limit}")
    entering: list[set[str]] = [set() for _ in range(count)]
    leaving: list[set[str]] = [set() for _ in range(count)]
    for edge in request.edges:
        here, there = stage_of[edge.source], stage_of[edge.target]
        if request.contiguous and there < here:
            raise InternalFault(f"edge {edge.source} -> {edge.target} runs back from stage {here} to {there}")
        if here != there:
            leaving[here].add(edge.source)
            entering[there].add(edge.source)
    size = {node.id: node.output_bytes for node in request.nodes}
    link = request.devices.link_gb_per_s
    cost = 0.0 if link is None else 1 / (link * 1e6)
    loads = [
        math.fsum(times[i]) + cost * (sum(size[s] for s in entering[i]) + sum(size[s] for s in leaving[i]))
        for i in range(count)
    ]
    _equal("loads_ms", candidate.loads_ms, tuple(loads))
    _equal("max_load_ms", (candidate.max_load_ms,), (max(loads),))
    _equal(
        "cut_bytes", candidate.cut_bytes, tuple(sum(size[s] for s in leaving[i]) for i in range(count - 1))
    )
    if len(candidate.peak_memory_bytes) != count:
        raise InternalFault("peak_memory_bytes has not one figure a stage")
    if any(told < needed for told, needed in zip(candidate.peak_memory_bytes, memory, strict=True)):
        raise InternalFault(f"peak_memory_bytes {candidate.peak_memory_bytes} is below the nodes' {memory}")


def _equal(name: str, told: tuple[float, ...], found: tuple[float, ...]) -> None:
    if len(told) != len(found) or any(
        not math.isclose(a, b, rel_tol=RELATIVE, abs_tol=1e-9) for a, b in zip(told, found, strict=True)
    ):
        raise InternalFault(f"{name} is {told}, recomputed {found}")
