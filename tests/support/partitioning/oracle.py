"""The best value over every pipeline and every choice of devices, from the contract's words alone."""

import random
from dataclasses import replace
from itertools import permutations, product

from tests.support.partitioning.cases import random_request
from torchsplit_core.values import PartitionRequest
from torchsplit_core.values.partition import Objective


def placed_request(seed: int, objective: Objective, speeds: bool) -> PartitionRequest:
    """At most 6 nodes on at most 3 devices, with a memory limit more often than not."""
    rng = random.Random(1000 + seed)
    while len((request := random_request(rng.randrange(10**6))).nodes) > 6:
        pass
    count = request.devices.count
    factors = tuple(rng.choice((1.0, 1.5, 3.0, 0.5)) for _ in range(count)) if speeds else None
    total = sum(node.memory_bytes for node in request.nodes)
    memory = request.devices.memory_bytes or rng.choice((None, max(total // 2, 1), max(total * 2 // 3, 1)))
    devices = replace(request.devices, time_factors=factors, memory_bytes=memory)
    return replace(request, devices=devices, objective=objective)


def best_value(request: PartitionRequest) -> float | None:
    """The least largest load or latency; None when no pipeline is allowed."""
    devices = request.devices
    factors = devices.time_factors
    orders = list(permutations(range(devices.count))) if factors else [tuple(range(devices.count))]
    link = devices.link_gb_per_s
    size = {n.id: n.output_bytes / (link * 1e6) if link else 0.0 for n in request.nodes}
    best: float | None = None
    for choice in product(range(devices.count), repeat=len(request.nodes)):
        at = {node.id: stage for node, stage in zip(request.nodes, choice, strict=True)}
        if any(at[e.target] < at[e.source] for e in request.edges):
            continue
        if any(
            a.group and a.group == b.group and at[a.id] != at[b.id]
            for a in request.nodes
            for b in request.nodes
        ):
            continue
        stages = [[n for n in request.nodes if at[n.id] == s] for s in range(devices.count)]
        limit = devices.memory_bytes
        if limit is not None and any(sum(n.memory_bytes for n in stage) > limit for stage in stages):
            continue
        enters = [
            {e.source for e in request.edges if at[e.source] != at[e.target] == s} for s in range(len(stages))
        ]
        leaves = [
            {e.source for e in request.edges if at[e.target] != at[e.source] == s} for s in range(len(stages))
        ]
        for order in orders:
            loads = []
            through = 0.0
            for s, stage in enumerate(stages):
                busy = sum(n.time_ms for n in stage) * (factors[order[s]] if factors else 1.0)
                came = sum(size[name] for name in enters[s])
                through += busy + came
                loads.append(busy + came + sum(size[name] for name in leaves[s]))
            value = through if request.objective == "latency" else max(loads)
            best = value if best is None else min(best, value)
    return best
