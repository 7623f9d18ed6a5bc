"""Manual cuts: after values that a person names, with the figures of any candidate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from torchsplit_core.partitioning.blocks.block_graph import BlockGraph, contract
from torchsplit_core.partitioning.candidates import make_candidate, rank_distinct
from torchsplit_core.partitioning.provider import PartitionProvider
from torchsplit_core.partitioning.verify import verify_candidate
from torchsplit_core.values import InputFault, PartitionCandidate, PartitionDevices, PartitionRequest
from torchsplit_core.values.errors import quoted, suggestion
from torchsplit_core.values.partition import Objective


def cut_behind(
    provider: PartitionProvider,
    values: Iterable[str],
    *,
    link_gb_per_s: float | None = None,
    objective: Objective = "throughput",
    time_factors: Sequence[float] | None = None,
) -> PartitionCandidate:
    """Stages that end after the named values (operations or inputs of the graph), in pipeline order.

    The predecessors of a value are before its cut, its successors after. The rest goes to the earlier or the later
    stage, whichever is better by the objective; unused results stay with what they read. If speeds differ, the longest
    stage runs on the fastest device. Raises InputFault for a value that cannot end a stage.
    """
    chosen = tuple(dict.fromkeys(values))
    request = provider.request(len(chosen) + 1, 1, link_gb_per_s, objective=objective)
    graph = contract(request)
    block_of = {request.nodes[i].id: b for b, block in enumerate(graph.blocks) for i in block.nodes}
    for name in chosen:
        if name not in block_of:
            raise InputFault(
                "cut behind",
                f"{quoted(name)} is no operation or input of the model",
                suggestion(name, block_of, "values"),
            )
    ends = sorted({block_of[name]: name for name in reversed(chosen)}.items())
    if len(ends) < len(chosen):
        doubled = next(name for name in chosen if name not in dict(ends).values())
        raise InputFault(
            "cut behind",
            f"{quoted(doubled)} is in the same unit as another of the values, so no cut lies between",
            "Drop one of the two.",
        )
    if time_factors is not None:
        request = _on_devices(request, time_factors)
        graph = replace(graph, request=request)
    candidates = []
    dead = [block_of[name] for name in provider.prepared.dead]
    for home in (_earliest_stages(graph, [b for b, _ in ends]), _latest_stages(graph, [b for b, _ in ends])):
        parts = _parts(_with_dead_values(graph, home, dead), len(ends))
        empty = next((i for i, part in enumerate(parts) if not part), None)
        if empty is not None:
            name = ends[min(empty, len(ends) - 1)][1]
            raise InputFault(
                "cut behind", f"nothing is computed behind {quoted(name)}", "Choose an earlier value."
            )
        candidate = make_candidate(graph, parts, _devices(graph, parts))
        verify_candidate(request, candidate)
        candidates.append(provider.with_costs(candidate))
    return rank_distinct(candidates, 1, objective)[0]


def _on_devices(request: PartitionRequest, time_factors: Sequence[float]) -> PartitionRequest:
    if len(time_factors) < request.devices.count:
        raise InputFault(
            "cut behind",
            f"gives {request.devices.count} stages for {len(time_factors)} devices",
            "Drop a value, or give a time factor for each stage.",
        )
    devices = PartitionDevices(
        len(time_factors), None, request.devices.link_gb_per_s, tuple(map(float, time_factors))
    )
    return replace(request, devices=devices)


def _devices(graph: BlockGraph, parts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The longest part on the fastest device and so on; empty if all devices are equal."""
    factors = graph.request.devices.time_factors
    if factors is None:
        return ()
    fastest = sorted(range(len(factors)), key=lambda d: factors[d])
    longest = sorted(range(len(parts)), key=lambda i: -sum(graph.blocks[b].time_ms for b in parts[i]))
    on = dict(zip(longest, fastest, strict=False))
    return tuple(on[i] for i in range(len(parts)))


def _earliest_stages(graph: BlockGraph, ends: Sequence[int]) -> list[int]:
    """The stage of every block if each has only what its cut needs, and the last one the rest."""
    reads = _reads(graph)
    home = [len(ends)] * len(graph.blocks)
    for stage, end in enumerate(ends):
        for b in _reachable(reads, (end,)):
            home[b] = min(home[b], stage)
    return home


def _latest_stages(graph: BlockGraph, ends: Sequence[int]) -> list[int]:
    """The stage of every block if each but the first has only what must follow the cut before it."""
    readers: list[list[int]] = [[] for _ in graph.blocks]
    for source, reader in graph.edges:
        readers[source].append(reader)
    home = [0] * len(graph.blocks)
    for stage, end in enumerate(ends):
        behind = _reachable(readers, (end,)) - {end}
        for b in behind:
            home[b] = max(home[b], stage + 1)
        if stage:  # the value ends its own stage, and its successors are there or later
            for b in (end, *behind):
                home[b] = max(home[b], stage)
    return home


def _with_dead_values(graph: BlockGraph, home: list[int], dead: Iterable[int]) -> list[int]:
    """The stages with every unused result moved to the last stage that it reads from."""
    reads = _reads(graph)
    for b in dead:  # in execution order, so unused results that it reads have moved already
        home[b] = max((home[source] for source in reads[b]), default=0)
    return home


def _reads(graph: BlockGraph) -> list[list[int]]:
    reads: list[list[int]] = [[] for _ in graph.blocks]
    for source, reader in graph.edges:
        reads[reader].append(source)
    return reads


def _reachable(following: Sequence[Sequence[int]], starts: Iterable[int]) -> set[int]:
    seen = set(starts)
    stack = list(seen)
    while stack:
        for b in following[stack.pop()]:
            if b not in seen:
                seen.add(b)
                stack.append(b)
    return seen


def _parts(home: Sequence[int], last: int) -> list[list[int]]:
    return [[b for b, stage in enumerate(home) if stage == part] for part in range(last + 1)]
