"""TorchGraph: the dataflow of a traced model, as values and their readers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from torchsplit_core.values import GraphNode, InputFault, NodeProfile, quoted

Route = Literal["", "non-strict", "strict", "draft", "read"]


@dataclass(frozen=True)
class TorchGraph:
    """Nodes in execution order; `subgraphs` has the bodies of cond and while, by node id.

    A cond has two bodies, but the contract has one graph for them: they are side by side in it, with the body's name
    and a dot before every id (see `join_bodies`, `bodies`).

    `route`: "non-strict", "strict" or "draft" for an export, "read" for a .pt2, "" if unknown; `notes`: for the user
    (assumptions of a draft export). `experts`: the modules of the client's `expert_plan`, which in training compute
    each row by its own expert alone. `largest_batch`: the largest for which the export holds; None for any.
    `metadata`: profiling results of nodes (see `annotate_with_profiling_data`).
    Raises InputFault for a duplicate id or an input that names no node.
    """

    nodes: tuple[GraphNode, ...]
    architecture_hash: str = ""
    traced_batch: int = 1
    subgraphs: Mapping[str, TorchGraph] = field(default_factory=dict)
    metadata: Mapping[str, NodeProfile] = field(default_factory=dict)
    route: Route = ""
    notes: tuple[str, ...] = ()
    experts: tuple[str, ...] = ()
    largest_batch: int | None = None

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for node in self.nodes:
            if node.id in seen:
                raise InputFault("graph nodes", f"have the id {quoted(node.id)} twice", "Rename one of them.")
            seen.add(node.id)
        for node in self.nodes:
            for name in node.inputs:
                if name not in seen:
                    raise InputFault(
                        f"graph node {quoted(node.id)}",
                        f"reads {quoted(name)}, which is no node of the graph",
                        "Add the node or remove the input.",
                    )

    @cached_property
    def by_id(self) -> Mapping[str, GraphNode]:
        """Every node by its id."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def users(self) -> Mapping[str, tuple[str, ...]]:
        """For every node the ids of its readers, each once, in execution order."""
        readers: dict[str, dict[str, None]] = {node.id: {} for node in self.nodes}
        for node in self.nodes:
            for name in node.inputs:
                readers[name][node.id] = None
        return {name: tuple(reader_ids) for name, reader_ids in readers.items()}

    @property
    def ops(self) -> tuple[GraphNode, ...]:
        """The operations alone."""
        return tuple(node for node in self.nodes if node.kind == "op")

    @property
    def input_nodes(self) -> tuple[GraphNode, ...]:
        """What the caller passes in."""
        return tuple(node for node in self.nodes if node.kind == "input")

    def bodies(self, name: str) -> Mapping[str, TorchGraph]:
        """The bodies of a cond or while by their names; empty for any other node."""
        joined = self.subgraphs.get(name)
        if joined is None:
            return {}
        parts: dict[str, list[GraphNode]] = {}
        for node in joined.nodes:
            parts.setdefault(node.id.partition(".")[0], []).append(node)
        return {
            body: TorchGraph(
                tuple(
                    replace(node, id=_name_in_body(node.id), inputs=tuple(map(_name_in_body, node.inputs)))
                    for node in nodes
                ),
                traced_batch=joined.traced_batch,
                subgraphs={
                    _name_in_body(key): inner
                    for key, inner in joined.subgraphs.items()
                    if key.startswith(f"{body}.")
                },
            )
            for body, nodes in parts.items()
        }

    def check_order(self) -> None:
        """Raise InputFault for a cycle. Cheap if every node follows what it reads."""
        seen: set[str] = set()
        for node in self.nodes:
            if not seen.issuperset(node.inputs):
                break
            seen.add(node.id)
        else:
            return
        _ = self.topological_ids

    @cached_property
    def topological_ids(self) -> tuple[str, ...]:
        """Every id after all its inputs, stable in the given order. Raises InputFault for a cycle."""
        missing = {node.id: len(set(node.inputs)) for node in self.nodes}
        ready = deque(node.id for node in self.nodes if not missing[node.id])
        order: list[str] = []
        while ready:
            name = ready.popleft()
            order.append(name)
            for user in self.users[name]:
                missing[user] -= 1
                if not missing[user]:
                    ready.append(user)
        if len(order) < len(self.nodes):
            stuck = sorted(name for name, count in missing.items() if count)
            raise InputFault(
                "graph edges", f"form a cycle through {quoted(stuck[0])}", "Remove the edge that closes it."
            )
        return tuple(order)


def join_bodies(bodies: Mapping[str, TorchGraph]) -> TorchGraph:
    """Several bodies of one node as one graph, with the body's name and a dot before every id."""
    nodes: list[GraphNode] = []
    subgraphs: dict[str, TorchGraph] = {}
    for name, body in bodies.items():
        nodes += [
            replace(node, id=f"{name}.{node.id}", inputs=tuple(f"{name}.{read}" for read in node.inputs))
            for node in body.nodes
        ]
        subgraphs |= {f"{name}.{key}": inner for key, inner in body.subgraphs.items()}
    batch = max((body.traced_batch for body in bodies.values()), default=1)
    return TorchGraph(tuple(nodes), traced_batch=batch, subgraphs=subgraphs)


def _name_in_body(name: str) -> str:
    return name.partition(".")[2]
