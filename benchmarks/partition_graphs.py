"""Costed graphs of any size for the partition benchmarks: synthetic ones, and ones shaped like models.

Times are in ms with a mean near 1. Sending a value takes about half as long as running a node, so that the place of
a cut matters as much as the balance of the stages. Every graph has a memory limit of 1.3 equal shares and a few groups
of neighbours. The same arguments give the same graph.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from torchsplit_core.values import GraphEdge, PartitionDevices, PartitionNode, PartitionRequest, SolverOptions

_BYTES_PER_MS = 1e6  # at 1 GB/s


@dataclass
class _Draft:
    """Nodes and edges of a graph under construction; `add` returns the new node's number."""

    rng: random.Random
    times: list[float] = field(default_factory=list)
    sends: list[float] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, time_ms: float, send_ms: float, *inputs: int) -> int:
        self.times.append(time_ms * self.rng.uniform(0.8, 1.2))
        self.sends.append(send_ms * self.rng.uniform(0.8, 1.2))
        self.reads.append(tuple(dict.fromkeys(inputs)))
        return len(self.times) - 1

    def request(self, count: int, seconds: float) -> PartitionRequest:
        memory = [self.rng.randrange(1000, 10_000) if t > 0.5 else 0 for t in self.times]
        groups: dict[int, str] = {}
        for g, b in enumerate(self.rng.sample(range(len(self.times)), len(self.times) // 50)):
            if self.reads[b] and b not in groups and self.reads[b][0] not in groups:
                groups[b] = groups[self.reads[b][0]] = f"g{g}"
        nodes = tuple(
            PartitionNode(f"v{i}", t, memory[i], round(self.sends[i] * _BYTES_PER_MS), groups.get(i))
            for i, t in enumerate(self.times)
        )
        edges = tuple(GraphEdge(f"v{a}", f"v{b}") for b, inputs in enumerate(self.reads) for a in inputs)
        room = int(1.3 * sum(memory) / count)
        return PartitionRequest(
            nodes, edges, PartitionDevices(count, room, 1.0), solver=SolverOptions(seconds)
        )


def layered(draft: _Draft, nodes: int) -> None:
    """Layers of 8 to 24 nodes; every node reads one to three nodes of the two layers before."""
    before: list[list[int]] = [[draft.add(0.1, 0.5)]]
    while len(draft.times) < nodes:
        near = [b for layer in before[-2:] for b in layer]
        width = min(draft.rng.randint(8, 24), nodes - len(draft.times))
        before.append(
            [
                draft.add(
                    draft.rng.lognormvariate(-0.3, 0.8),
                    draft.rng.uniform(0.1, 0.9),
                    *draft.rng.sample(near, min(len(near), draft.rng.randint(1, 3))),
                )
                for _ in range(width)
            ]
        )


def transformer(draft: _Draft, nodes: int) -> None:
    """Blocks of 21 operations with two residuals, and one mask that every block reads."""
    mask = draft.add(0.0, 0.2)
    x = draft.add(0.3, 0.5, draft.add(0.0, 0.01))
    while len(draft.times) + 21 <= nodes:
        normed = draft.add(0.2, 0.5, x)
        q, k, v = (draft.add(0.05, 0.5, draft.add(0.05, 0.5, draft.add(1.5, 0.5, normed))) for _ in range(3))
        scores = draft.add(0.3, 1.5, draft.add(0.8, 1.5, q, k), mask)
        mixed = draft.add(0.1, 0.5, draft.add(0.8, 0.5, draft.add(0.4, 1.5, scores), v))
        x = draft.add(0.1, 0.5, draft.add(1.5, 0.5, mixed), x)
        wide = draft.add(6.0, 2.0, draft.add(0.2, 0.5, x))
        x = draft.add(0.1, 0.5, draft.add(6.0, 0.5, draft.add(0.5, 2.0, wide)), x)
    while len(draft.times) < nodes:
        x = draft.add(0.2, 0.5, x)


def unet(draft: _Draft, nodes: int) -> None:
    """Residual blocks down and up; blocks on the way up also read values from the same level on the way down."""
    x = draft.add(0.1, 1.0)
    skips: list[int] = []
    steps = max(2, nodes // 12)
    for step in range(2 * steps):
        if len(draft.times) + 6 > nodes:
            break
        size = 1.5 - abs(step - steps) / steps
        inputs = (x, skips.pop()) if step >= steps and skips else (x,)
        first = draft.add(2.0, size, *inputs)
        x = draft.add(0.2, size, draft.add(2.0, size, draft.add(0.2, size, first)), first)
        side = draft.add(0.3, size, x)
        x = draft.add(0.1, size, x, side)
        if step < steps and step % 3 == 0:
            skips.append(x)
    while len(draft.times) < nodes:
        x = draft.add(0.2, 0.5, x)


def towers(draft: _Draft, nodes: int) -> None:
    """Two chains of residual blocks that only the last operation joins."""
    ends: list[int] = []
    for size in (nodes * 6 // 10, nodes - 1):
        x = draft.add(0.1, 0.3)
        while len(draft.times) < size:
            left, right = draft.add(1.5, 0.6, x), draft.add(0.5, 0.6, x)
            x = draft.add(0.1, 0.5, draft.add(1.5, 0.6, left, right), x)
        ends.append(x)
    draft.add(0.1, 0.1, *ends)


SHAPES: dict[str, Callable[[_Draft, int], None]] = {
    "layered": layered,
    "transformer": transformer,
    "unet": unet,
    "towers": towers,
}


def shaped_request(shape: str, nodes: int, count: int, seconds: float, seed: int = 0) -> PartitionRequest:
    """A request of about `nodes` nodes for `count` devices; `shape` is a key of `SHAPES`."""
    draft = _Draft(random.Random(f"{shape} {nodes} {seed}"))
    SHAPES[shape](draft, nodes)
    return draft.request(count, seconds)
