"""Peak memory of one instance of a model at a batch size, from its graph alone.

peak = weights + max over nodes of (values alive at that node + what the node needs while it runs).

Lifetime of a value, as Python runs a model of modules:
- A value lives from the node that makes it to the last node that reads it, a view of it, or the result
  of an operation in place on it. The caller keeps the inputs alive, and the outputs live to the end.
- A module's arguments are held by the frame of its call until it returns, even if the module reads them only at
  its start.
- Local names are not in a graph: a value that a variable holds past its last reader does not count that long.
  Nor does a key-value cache that a run fills and its trace left out.
A program that runs without its modules (an exported one) may free values earlier.

`transients` has what a node needs while it runs. An allocator's fragmentation is ignored.
`benchmarks/memory_accuracy.py` compares with measured peaks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchsplit_core.graph.sizes import Sizes
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.profiling.flops import NodeCost, branches, check_batch_size, node_costs
from torchsplit_core.profiling.transients import Layouts, is_view, transient_bytes
from torchsplit_core.values import GraphNode
from torchsplit_core.values.units import GIB

CUDA_CONTEXT_BYTES = 512 * 2**20
"""Assumption: a CUDA context with PyTorch's kernels and the cuBLAS workspace takes about half a GiB of a GPU.

It depends on driver and GPU, and shows in nvidia-smi, not in torch.cuda.max_memory_allocated.
"""

_WEIGHT_KINDS = ("parameter", "buffer", "constant")


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of one instance. `peak_bytes` is all of it but the device's context.

    `node_peak_bytes`: the live values while a node runs and its transient, without weights.
    """

    peak_bytes: int
    weight_bytes: int
    activation_bytes: int
    transient_bytes: int
    peak_node: str
    node_peak_bytes: Mapping[str, int]

    def instance_gib(self, *, cuda: bool) -> float:
        """GiB of one instance, including the CUDA context on such a device."""
        return (self.peak_bytes + (CUDA_CONTEXT_BYTES if cuda else 0)) / GIB


def estimate_memory(graph: TorchGraph, batch_size: int) -> MemoryEstimate:
    """The peak at a batch size. Raises InputFault as `flops.node_costs` does."""
    check_batch_size(batch_size)
    return _estimate(graph, Sizes(graph, batch_size), node_costs(graph, batch_size))


def _estimate(
    graph: TorchGraph, sizes: Sizes, costs: tuple[NodeCost, ...], *, is_body: bool = False
) -> MemoryEstimate:
    """The inputs of a cond's body are values of the outer graph, which counts them."""
    cost_of = {cost.id: cost for cost in costs}
    layouts = Layouts(graph, sizes)
    owner = _owners(graph, cost_of, layouts)
    last_use = _last_uses(graph, owner)
    weights = sum(sizes.bytes(node.id) for node in graph.nodes if node.kind in _WEIGHT_KINDS)
    alive = 0.0 if is_body else sum(sizes.bytes(node.id) for node in graph.input_nodes)
    freed_at: dict[int, list[str]] = {}
    for name, position in last_use.items():
        freed_at.setdefault(position, []).append(name)

    peaks: dict[str, int] = {}
    peak = (alive, 0.0, "")
    for position, node in enumerate(graph.nodes):
        if node.kind == "op":
            if owner[node.id] == node.id:
                alive += sizes.bytes(node.id)
            transient = transient_bytes(graph, node, cost_of[node.id], sizes, layouts)
            transient += _body_peak_bytes(graph, node, sizes)
            peaks[node.id] = round(alive + transient)
            if alive + transient > peak[0] + peak[1]:
                peak = (alive, transient, node.id)
        for name in freed_at.get(position, ()):
            alive -= sizes.bytes(name)
    return MemoryEstimate(
        peak_bytes=round(weights + peak[0] + peak[1]),
        weight_bytes=round(weights),
        activation_bytes=round(peak[0]),
        transient_bytes=round(peak[1]),
        peak_node=peak[2],
        node_peak_bytes=peaks,
    )


def _owners(graph: TorchGraph, cost_of: Mapping[str, NodeCost], layouts: Layouts) -> dict[str, str]:
    """The value whose memory a value uses: its own id, or that of its view's source."""
    owner: dict[str, str] = {}
    for node in graph.nodes:
        shared = node.kind == "op" and is_view(node, cost_of[node.id], layouts)
        owner[node.id] = owner[node.inputs[0]] if shared else node.id
    return owner


def _last_uses(graph: TorchGraph, owner: Mapping[str, str]) -> dict[str, int]:
    """For every op value with its own memory, the position after which it is freed; outputs never are."""
    returned = {owner[name] for node in graph.nodes if node.kind == "output" for name in node.inputs}
    last: dict[str, int] = {}
    for position, node in enumerate(graph.nodes):
        if node.kind == "op" and owner[node.id] == node.id:
            last[node.id] = position
        for name in node.inputs:
            if owner[name] in last:
                last[owner[name]] = position
    for name, position in _returns(graph):
        if owner[name] in last:
            last[owner[name]] = max(last[owner[name]], position)
    return {name: position for name, position in last.items() if name not in returned}


@dataclass(slots=True)
class _Call:
    """A module call that has not returned: where it began, and what it read from before."""

    part: str
    start: int
    is_call: bool
    passed: set[str]


def _returns(graph: TorchGraph) -> Iterator[tuple[str, int]]:
    """For every value passed to a module call, the position of that call's last operation.

    A call is a run of operations whose modules lie in one; the outermost is left out, since inputs stay alive.
    """
    paths = {node.module for node in graph.nodes if node.kind == "op"}
    containers = _containers(paths)
    position_of = {node.id: position for position, node in enumerate(graph.nodes)}
    calls: list[_Call] = []
    last = 0
    for position, node in enumerate(graph.nodes):
        if node.kind != "op":
            continue
        parts = node.module.split(".") if node.module else []
        shared = _shared_length(calls, parts)
        for call in calls[shared:]:
            yield from ((name, last) for name in call.passed)
        del calls[shared:]
        for depth in range(shared, len(parts)):
            path = ".".join(parts[: depth + 1])
            calls.append(_Call(parts[depth], position, path not in containers, set()))
        for name in node.inputs:
            for call in calls:
                if call.is_call and position_of[name] < call.start:
                    call.passed.add(name)
        last = position
    for call in calls:
        yield from ((name, last) for name in call.passed)


def _shared_length(calls: list[_Call], parts: list[str]) -> int:
    """How many of the open calls a module path continues."""
    length = 0
    for call, part in zip(calls, parts, strict=False):
        if call.part != part:
            break
        length += 1
    return length


def _containers(paths: set[str]) -> set[str]:
    """Paths of lists of modules, which are not called themselves.

    A graph does not distinguish a ModuleList from a Sequential. Assumed to be a list: no operations of its own, only
    numbered children, which have children. (A list of single layers is treated as called, like a Sequential, unless
    operations between its layers end the run; a Sequential of blocks is treated as a list.)
    """
    numbered: dict[str, bool] = {}
    deep: set[str] = set()
    for path in paths:
        parts = path.split(".")
        for depth in range(1, len(parts)):
            prefix = ".".join(parts[:depth])
            numbered[prefix] = numbered.get(prefix, True) and parts[depth].isdigit()
            if depth + 1 < len(parts):
                deep.add(prefix)
    return {path for path, only in numbered.items() if only and path in deep and path not in paths}


def _body_peak_bytes(graph: TorchGraph, node: GraphNode, sizes: Sizes) -> float:
    """The largest peak of a cond's or while's bodies; 0 for any other node."""
    peak_bytes = 0
    for body in branches(graph, node):
        body_sizes = Sizes(body, sizes.batch_size, sizes.symbols)
        costs = node_costs(body, sizes.batch_size)
        peak_bytes = max(peak_bytes, _estimate(body, body_sizes, costs, is_body=True).peak_bytes)
    return peak_bytes
