"""A valid partition request, contracted to blocks that no cut may divide.

Nodes of one group form a block. In a contiguous pipeline, blocks on a cycle of the contracted graph share a stage too
(everything between two nodes of a stage is in that stage), so strongly connected blocks are merged. A `Source` is a
node whose value leaves its block: the load rule counts it once for each device it enters, and once when it leaves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from torchsplit_core.values import InputFault, PartitionRequest
from torchsplit_core.values.errors import quoted
from torchsplit_core.values.limits import LARGEST_MAGNITUDE, check_number, check_whole


@dataclass(frozen=True, slots=True)
class Block:
    """Positions of request nodes that stay together; `name` identifies it in messages."""

    nodes: tuple[int, ...]
    name: str
    time_ms: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Source:
    """A node whose value other blocks read. `transfer_ms` is paid per device it enters, and once leaving."""

    block: int
    readers: tuple[int, ...]
    transfer_ms: float


@dataclass(frozen=True, slots=True)
class BlockGraph:
    """Blocks (in topological order when the request is contiguous) and the values between them."""

    request: PartitionRequest
    blocks: tuple[Block, ...]
    sources: tuple[Source, ...]

    @property
    def total_ms(self) -> float:
        """The time of all nodes."""
        return math.fsum(block.time_ms for block in self.blocks)

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """(block, reading block), each once."""
        return tuple(dict.fromkeys((s.block, reader) for s in self.sources for reader in s.readers))

    def stages(self, parts: Iterable[Iterable[int]]) -> tuple[tuple[str, ...], ...]:
        """Node ids of each part (a set of blocks), in the order of the request."""
        nodes = self.request.nodes
        return tuple(
            tuple(nodes[i].id for i in sorted(i for b in part for i in self.blocks[b].nodes))
            for part in parts
        )


MOST_DEVICES = 4096
MOST_CANDIDATES = 10_000


def check_request(request: PartitionRequest) -> None:
    """Raise InputFault for no nodes, a duplicate or unknown id, a cycle, a negative or infinite number, no device."""
    if not request.nodes:
        raise InputFault("nodes", "are none", "Add the nodes of the graph.")
    seen: set[str] = set()
    for node in request.nodes:
        where = f"node {node.id}"
        if node.id in seen:
            raise InputFault("nodes", f"name {quoted(node.id)} twice", "Rename one of the two.")
        seen.add(node.id)
        check_whole(f"{where} memory_bytes", node.memory_bytes)
        check_whole(f"{where} output_bytes", node.output_bytes)
        if isinstance(node.time_ms, bool) or not 0 <= node.time_ms <= LARGEST_MAGNITUDE:
            raise InputFault(
                f"{where} time_ms",
                f"is {quoted(node.time_ms)}, not a number from 0 to {LARGEST_MAGNITUDE:g}",
                "Correct the number.",
            )
    for edge in request.edges:
        for end in (edge.source, edge.target):
            if end not in seen:
                raise InputFault(
                    "edges", f"name {quoted(end)}, which is no node", "Add the node or drop the edge."
                )
    devices = request.devices
    check_whole("devices.count", devices.count, least=1, most=MOST_DEVICES)
    if devices.memory_bytes is not None:
        check_whole("devices.memory_bytes", devices.memory_bytes, least=1)
    if devices.link_gb_per_s is not None:
        check_number("devices.link_gb_per_s", devices.link_gb_per_s, positive=True)
    _check_speeds(request)
    check_whole("top_k", request.top_k, least=1, most=MOST_CANDIDATES)
    check_number("solver.time_limit_s", request.solver.time_limit_s, positive=True)
    index = {node.id: i for i, node in enumerate(request.nodes)}
    edges = [(index[e.source], index[e.target]) for e in request.edges]
    component = strong_components(len(index), edges)
    sizes: dict[int, int] = {}
    for c in component:
        sizes[c] = sizes.get(c, 0) + 1
    for a, b in edges:
        if a == b or (component[a] == component[b] and sizes[component[a]] > 1):
            raise InputFault(
                "edges",
                f"close a cycle through {quoted(request.nodes[a].id)}",
                "Remove the edge that closes it.",
            )


def _check_speeds(request: PartitionRequest) -> None:
    factors, count = request.devices.time_factors, request.devices.count
    if factors is not None:
        if len(factors) != count:
            raise InputFault(
                "devices.time_factors",
                f"has {len(factors)} factors for {count} devices",
                "Give one for each device.",
            )
        for factor in factors:
            check_number("devices.time_factors", factor, positive=True)
    if request.objective not in ("throughput", "latency"):
        raise InputFault(
            "objective", f"is {quoted(request.objective)}, no known one", "Choose throughput or latency."
        )
    if not request.contiguous and (factors is not None or request.objective == "latency"):
        raise InputFault(
            "contiguous",
            "is false, and the objective latency and time_factors are for contiguous stages alone",
            "Set contiguous to true, or leave objective and time_factors out.",
        )


def contract(request: PartitionRequest) -> BlockGraph:
    """The blocks of a request that passed `check_request`."""
    nodes = request.nodes
    index = {node.id: i for i, node in enumerate(nodes)}
    groups: dict[str, int] = {}
    block_of = [groups.setdefault(n.group, len(groups)) if n.group is not None else -1 for n in nodes]
    next_block = len(groups)
    for i, h in enumerate(block_of):
        if h < 0:
            block_of[i], next_block = next_block, next_block + 1
    edges = [(index[e.source], index[e.target]) for e in request.edges]
    if request.contiguous:
        merged = strong_components(next_block, [(block_of[a], block_of[b]) for a, b in edges])
        block_of = [merged[h] for h in block_of]
    numbers = {h: i for i, h in enumerate(sorted(set(block_of)))}
    block_of = [numbers[h] for h in block_of]
    members: list[list[int]] = [[] for _ in numbers]
    for i, h in enumerate(block_of):
        members[h].append(i)
    readers: dict[int, dict[int, None]] = {}
    for a, b in edges:
        if block_of[a] != block_of[b]:
            readers.setdefault(a, {})[block_of[b]] = None
    link = request.devices.link_gb_per_s
    return BlockGraph(
        request=request,
        blocks=tuple(
            Block(
                tuple(block_nodes),
                _name(request, block_nodes),
                math.fsum(nodes[i].time_ms for i in block_nodes),
                sum(nodes[i].memory_bytes for i in block_nodes),
            )
            for block_nodes in members
        ),
        sources=tuple(
            Source(block_of[a], tuple(sorted(reading_blocks)), transfer_ms(nodes[a].output_bytes, link))
            for a, reading_blocks in readers.items()
        ),
    )


def transfer_ms(output_bytes: float, link_gb_per_s: float | None) -> float:
    """Milliseconds to send a value over a link in GB/s (10^9 bytes a second); 0 without a link speed."""
    return 0.0 if link_gb_per_s is None else output_bytes / (link_gb_per_s * 1e6)


def _name(request: PartitionRequest, members: list[int]) -> str:
    groups = sorted({request.nodes[i].group or "" for i in members} - {""})
    if len(members) == 1 and not groups:
        return f"node {request.nodes[members[0]].id}"
    if len(groups) == 1:
        return f"group {groups[0]}" + (
            "" if all(request.nodes[i].group for i in members) else " with what lies between its nodes"
        )
    return "groups " + ", ".join(groups) + " (interleaved, so on one stage)"


def strong_components(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """The strongly connected component of each vertex, numbered in topological order."""
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(reversed(range(count)))  # backwards, so that unrelated vertices keep their order
    graph.add_edges_from(edges)
    # Tarjan's algorithm, which networkx uses, ends a component after all components that it leads to.
    components = list(nx.strongly_connected_components(graph))
    number = {vertex: place for place, component in enumerate(reversed(components)) for vertex in component}
    return [number[vertex] for vertex in range(count)]
