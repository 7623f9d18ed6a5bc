"""Random partition requests and an oracle that tries every assignment."""

import json
import random
from itertools import product
from typing import Any

from tests.support.paths import ROOT
from torchsplit_core.values import GraphEdge, PartitionDevices, PartitionNode, PartitionRequest, SolverOptions

DATA = ROOT / "tests" / "partitioning" / "data"


def load_request(name: str, **changes: Any) -> PartitionRequest:
    told = json.loads((DATA / name).read_text()) | changes
    return PartitionRequest(
        tuple(PartitionNode(**node) for node in told["nodes"]),
        tuple(GraphEdge(**edge) for edge in told["edges"]), PartitionDevices(**told["devices"]),
        told["contiguous"], told["top_k"], SolverOptions(**told["solver"]),
    )  # fmt: skip


def random_request(seed: int, contiguous: bool = True) -> PartitionRequest:
    """At most 8 nodes on at most 3 devices, often with groups, zero times and a tight memory."""
    rng = random.Random(seed)
    n = rng.randint(1, 8)
    density = rng.choice((0.15, 0.3, 0.5))
    groups = rng.choice((0, 0, 1, 2))
    nodes = tuple(
        PartitionNode(
            f"v{i}", rng.choice((0.0, 1.0, 2.0, rng.random() * 5)), rng.randint(0, 5),
            rng.choice((0, 500_000, 1_000_000, 3_000_000)),
            f"g{rng.randrange(groups)}" if groups and rng.random() < 0.4 else None,
        )
        for i in range(n)
    )  # fmt: skip
    edges = [GraphEdge(f"v{i}", f"v{j}") for i in range(n) for j in range(i + 1, n) if rng.random() < density]
    order = list(nodes)
    rng.shuffle(order)
    count = rng.randint(1, 3)
    memory = rng.choice(
        (None, rng.randint(1, 6), sum(x.memory_bytes for x in nodes) // count + rng.randint(1, 3))
    )
    devices = PartitionDevices(count, memory, rng.choice((None, 1.0, 1.0, 4.0)))
    return PartitionRequest(tuple(order), tuple(edges), devices, contiguous, rng.choice((1, 3)))


def least_load(request: PartitionRequest) -> float | None:
    """The least largest load over every assignment of nodes to devices; None when none is allowed."""
    names = [node.id for node in request.nodes]
    link = request.devices.link_gb_per_s
    best: float | None = None
    for choice in product(range(request.devices.count), repeat=len(names)):
        at = dict(zip(names, choice, strict=True))
        if request.contiguous and any(at[e.target] < at[e.source] for e in request.edges):
            continue
        group_at: dict[str, set[int]] = {}
        for node in request.nodes:
            if node.group:
                group_at.setdefault(node.group, set()).add(at[node.id])
        if any(len(devices) > 1 for devices in group_at.values()):
            continue
        loads = []
        for device in range(request.devices.count):
            inside = [node for node in request.nodes if at[node.id] == device]
            limit = request.devices.memory_bytes
            if limit is not None and sum(node.memory_bytes for node in inside) > limit:
                break
            moved = {e.source for e in request.edges if (at[e.source] == device) != (at[e.target] == device)}
            size = sum(node.output_bytes for node in request.nodes if node.id in moved)
            loads.append(sum(node.time_ms for node in inside) + (size / (link * 1e6) if link else 0.0))
        else:
            best = max(loads) if best is None else min(best, max(loads))
    return best
