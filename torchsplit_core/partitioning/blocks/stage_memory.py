"""Peak memory of a stage: its weights, and the live values while it runs in execution order.

At every operation the live bytes are the values still to be read, those that enter from another stage (held from the
start to their last reader), those that leave (held to the end), and the operation's own output. Views share the storage
of their source. A profile has the live bytes of the whole model during each operation, including workspaces: their
excess over the whole model's live values is added here too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torchsplit_core.graph import TorchGraph
from torchsplit_core.graph.operations import is_alias
from torchsplit_core.graph.preparation.prepare import WEIGHT_KINDS


class StageMemory:
    """Memory in bytes of stages of one graph (collections of operations and inputs), at the traced batch."""

    def __init__(self, graph: TorchGraph) -> None:
        self._graph = graph
        whole = frozenset(node.id for node in graph.nodes if node.kind in ("op", "input"))
        self._extra: Mapping[str, int] = {
            name: max(0, graph.metadata[name].peak_bytes - alive)
            for name, alive in (self._alive(whole) if graph.metadata else {}).items()
            if name in graph.metadata
        }

    def weight_bytes(self, stage: Collection[str]) -> int:
        """Its parameters, buffers and constants."""
        return sum(self._graph.by_id[name].output_bytes for name in stage_weights(self._graph, stage))

    def peak_bytes(self, stage: Collection[str]) -> int:
        """Its weights, and the most live bytes beside them."""
        alive = self._alive(frozenset(stage))
        most = max((bytes_ + self._extra.get(name, 0) for name, bytes_ in alive.items()), default=0)
        return most + self.weight_bytes(stage)

    def _alive(self, inside: frozenset[str]) -> dict[str, int]:
        """Live bytes while each node of a stage runs, including its output, without weights."""
        graph = self._graph
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
            aliased = storage.get(node.inputs[0]) if is_alias(node) else None
            # A tuple without its own size has its bytes in the values picked from it.
            if aliased is not None and (size[aliased] or not node.output_bytes):
                storage[node.id] = aliased
            else:
                of_weight = is_alias(node) and graph.by_id[node.inputs[0]].kind in WEIGHT_KINDS
                storage[node.id] = node.id
                size[node.id] = 0 if of_weight else node.output_bytes
            last.setdefault(storage[node.id], position)
        for node in order:  # a value that leaves is held to the end, whoever reads it before
            if any(user not in inside for user in graph.users[node.id]):
                last[storage[node.id]] = len(order)
        last_used_at: dict[int, list[str]] = {}
        for name, position in last.items():
            last_used_at.setdefault(position, []).append(name)
        live = sum(size[name] for name in size if name not in inside)
        alive: dict[str, int] = {}
        for position, node in enumerate(order):
            live += size[node.id] if storage[node.id] == node.id else 0
            alive[node.id] = live
            live -= sum(size[name] for name in last_used_at.get(position, ()))
        return alive


def stage_weights(graph: TorchGraph, stage: Collection[str]) -> frozenset[str]:
    """The parameters, buffers and constants that operations of the stage read."""
    read = (i for name in stage for i in graph.by_id[name].inputs)
    return frozenset(i for i in read if graph.by_id[i].kind in WEIGHT_KINDS)
