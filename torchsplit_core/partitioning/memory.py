"""Peak memory of a stage: its weights, and what is alive while it runs in execution order.

At every operation the live bytes are the values still to be read, those that enter from
another stage (held from the start to their last reader) and those that leave (held to the
end). The operation adds its output, or what it needs while it runs where that is profiled
and more. Views share the storage of what they look at.
"""

from __future__ import annotations

from collections.abc import Collection

from torchsplit_core.graph import TorchGraph
from torchsplit_core.graph.operations import is_alias
from torchsplit_core.graph.prepare import WEIGHT_KINDS


def stage_weights(graph: TorchGraph, stage: Collection[str]) -> frozenset[str]:
    """The parameters, buffers and constants that operations of the stage read."""
    read = (i for name in stage for i in graph.by_id[name].inputs)
    return frozenset(i for i in read if graph.by_id[i].kind in WEIGHT_KINDS)


def stage_peak_bytes(graph: TorchGraph, stage: Collection[str]) -> int:
    """Weights and the largest sum of live activations of a stage (operations and inputs), at the traced batch."""
    inside = frozenset(stage)
    order = [node for node in graph.nodes if node.id in inside]
    storage: dict[str, str] = {}
    size: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, node in enumerate(order):
        for name in node.inputs:
            if graph.by_id[name].kind in WEIGHT_KINDS:
                continue
            if name not in inside and name not in storage:
                storage[name] = name
                size[name] = graph.by_id[name].output_bytes
            last[storage[name]] = position
        looked_at = storage.get(node.inputs[0]) if is_alias(node) else None
        # A tuple without a size of its own stores its bytes in the values picked from it.
        if looked_at is not None and (size[looked_at] or not node.output_bytes):
            storage[node.id] = looked_at
        else:
            of_weight = is_alias(node) and graph.by_id[node.inputs[0]].kind in WEIGHT_KINDS
            storage[node.id] = node.id
            size[node.id] = 0 if of_weight else node.output_bytes
        last.setdefault(storage[node.id], position)
    for node in order:  # a value that leaves is held to the end, whoever reads it before
        if any(user not in inside for user in graph.users[node.id]):
            last[storage[node.id]] = len(order)
    ending: dict[int, list[str]] = {}
    for name, position in last.items():
        ending.setdefault(position, []).append(name)
    live = sum(size[name] for name in size if name not in inside)
    peak = live
    for position, node in enumerate(order):
        own = size[node.id] if storage[node.id] == node.id else 0
        profiled = graph.metadata[node.id].peak_bytes if node.id in graph.metadata else 0
        peak = max(peak, live + max(own, profiled))
        live += own - sum(size[name] for name in ending.get(position, ()))
    return peak + sum(graph.by_id[name].output_bytes for name in stage_weights(graph, inside))
