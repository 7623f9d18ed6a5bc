"""What must stay on one stage: units of the prepared graph, and users of memory that is written in place.

Values that may share memory (views, results of in-place operations) form a class. For a written class, everything that
makes or reads it up to the last write stays together, and so does everything that reads a written weight or input of
the model: then what leaves the stage is final, as `extraction.aliasing` requires. A graph file has no schemas, so
writes and sharing follow from the names of aten's operations (`add_` writes its first input). What names do not show is
detected when parts are written, and that candidate is rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torchsplit_core.graph import PreparedGraph, TorchGraph
from torchsplit_core.graph.operations import is_alias, operation_name
from torchsplit_core.graph.preparation.prepare import WEIGHT_KINDS
from torchsplit_core.values import GraphNode

GIVEN = (*WEIGHT_KINDS, "input")
# Besides the view operations: these may return their first input itself.
_MAY_RETURN_THEIR_INPUT = frozenset(
    {"contiguous", "to", "dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"}
)


class _DisjointSets:
    """Disjoint sets of names."""

    def __init__(self, names: Iterable[str]) -> None:
        self.parent = {name: name for name in names}

    def root(self, name: str) -> str:
        while self.parent[name] != name:
            self.parent[name] = self.parent[self.parent[name]]
            name = self.parent[name]
        return name

    def join(self, name: str, other: str) -> None:
        self.parent[self.root(other)] = self.root(name)


def writes_in_place(node: GraphNode) -> bool:
    """Whether the operation writes its first input, judged by its name: `add_`, `__iadd__`."""
    name = operation_name(node)
    plain = name.endswith("_") and not name.endswith("__")
    return (
        node.kind == "op"
        and bool(node.inputs)
        and (plain or (name.startswith("__i") and name.endswith("__")))
    )


def colocation_groups(graph: TorchGraph, prepared: PreparedGraph) -> Mapping[str, str]:
    """The name of the group of every operation and input that must stay with others."""
    unit_of = prepared.unit_of
    names = [node.id for node in graph.nodes if node.kind in ("op", "input")]
    groups = _DisjointSets(dict.fromkeys(unit_of.get(name, name) for name in names))
    for together in _written_together(graph):
        first, *others = (unit_of.get(name, name) for name in together)
        for other in others:
            groups.join(first, other)
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(groups.root(unit_of.get(name, name)), []).append(name)
    return {
        name: group
        for group, names_together in members.items()
        if len(names_together) > 1
        for name in names_together
    }


def _written_together(graph: TorchGraph) -> Iterable[list[str]]:
    """For each class of memory that is written, the operations and inputs that stay together."""
    writers = [node for node in graph.nodes if writes_in_place(node)]
    if not writers:
        return
    shared = _DisjointSets(node.id for node in graph.nodes)
    for node in graph.nodes:
        may_share = is_alias(node) or operation_name(node) in _MAY_RETURN_THEIR_INPUT or writes_in_place(node)
        if node.kind == "op" and node.inputs and may_share:
            shared.join(node.inputs[0], node.id)
    position = {node.id: i for i, node in enumerate(graph.nodes)}
    last: dict[str, int] = {}
    for node in writers:
        last[shared.root(node.id)] = position[node.id]
    together: dict[str, dict[str, None]] = {root: {} for root in last}
    for node in graph.nodes:
        if node.kind in ("op", "input"):
            for name in (node.id, *node.inputs):
                root = shared.root(name)
                # Every stage has its own unchanged copy of weights and inputs.
                given = graph.by_id[name].kind in GIVEN
                if root in last and (given or position[node.id] <= last[root]):
                    together[root][node.id] = None
    yield from (list(written) for written in together.values() if len(written) > 1)
