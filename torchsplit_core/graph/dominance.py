"""Dominance on a dataflow graph: which values every path must pass.

    ENTRY ──> every value without inputs        every value without readers ──> EXIT

a dominates b if every path ENTRY → b passes a (so every value dominates itself); b post-dominates a if every path a →
EXIT passes b. Immediate dominators come from one topological pass with the intersection of Cooper, Harvey and Kennedy
("A Simple, Fast Dominance Algorithm", 2001); a DAG needs no second pass. Queries compare intervals of a depth-first
numbering of the tree, in constant time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from torchsplit_core.graph.flow import ENTRY, EXIT, FlowGraph, build_flow, neighbours, preorder_spans
from torchsplit_core.graph.torch_graph import TorchGraph

__all__ = ["ENTRY", "EXIT", "DominanceInformation", "graph_edges", "immediate_dominators"]


class DominanceInformation:
    """Dominators and post-dominators of a DAG, given as a TorchGraph or as (ids, edges).

    Each tree is computed on first use. Raises InputFault for a duplicate id, an edge with an unknown id, an id equal to
    ENTRY or EXIT, and a cycle. Queries accept ENTRY and EXIT; an unknown id raises KeyError.
    """

    def __init__(self, graph: TorchGraph | tuple[Sequence[str], Iterable[tuple[str, str]]]) -> None:
        ids, edges = graph_edges(graph) if isinstance(graph, TorchGraph) else graph
        self.ids: tuple[str, ...] = tuple(ids)
        self.flow: FlowGraph = build_flow(self.ids, edges)

    @property
    def topological_ids(self) -> tuple[str, ...]:
        """The ids, each after all that it reads; the given order if it is one."""
        return self.flow.names[1:-1]

    @cached_property
    def dominator_tree(self) -> Mapping[str, tuple[str, ...]]:
        """The children of every value, ENTRY (the root) and EXIT in the dominator tree."""
        return self._named_tree(self._idom)

    @cached_property
    def post_dominator_tree(self) -> Mapping[str, tuple[str, ...]]:
        """The children of every value, EXIT (the root) and ENTRY in the post-dominator tree."""
        return self._named_tree(self._ipdom)

    def immediate_dominator(self, name: str) -> str | None:
        """The nearest strict dominator; None for ENTRY."""
        i = self.flow.label[name]
        return self.flow.names[self._idom[i]] if i else None

    def immediate_post_dominator(self, name: str) -> str | None:
        """The nearest strict post-dominator; None for EXIT."""
        above = self._ipdom[self.flow.label[name]]
        return None if name == EXIT else self.flow.names[above]

    def dominates(self, a: str, b: str) -> bool:
        """Whether every path from ENTRY to b passes a (true for a = b)."""
        return self._dominates(self.flow.label[a], self.flow.label[b])

    def strictly_dominates(self, a: str, b: str) -> bool:
        """Whether a dominates b and is not b."""
        return a != b and self.dominates(a, b)

    def post_dominates(self, b: str, a: str) -> bool:
        """Whether every path from a to EXIT passes b (true for a = b)."""
        return self._post_dominates(self.flow.label[b], self.flow.label[a])

    def dominators(self, name: str) -> frozenset[str]:
        """All dominators, including itself and ENTRY."""
        return self._ancestors(name, self._idom)

    def post_dominators(self, name: str) -> frozenset[str]:
        """All post-dominators, including itself and EXIT."""
        return self._ancestors(name, self._ipdom)

    def reachable(self, name: str) -> frozenset[str]:
        """All values that a path from it reaches, including itself and EXIT."""
        if name == ENTRY:
            return frozenset(self.flow.names)
        return self._walk(name, self._readers) | {EXIT}

    def reaching(self, name: str) -> frozenset[str]:
        """All values from which a path leads to it, including itself and ENTRY."""
        if name == EXIT:
            return frozenset(self.flow.names)
        return self._walk(name, self._inputs) | {ENTRY}

    def is_region(self, a: str, b: str) -> bool:
        """Whether (a, b] is a region: a strictly dominates b and b post-dominates a."""
        return self.strictly_dominates(a, b) and self.post_dominates(b, a)

    def region_between(self, a: str, b: str) -> frozenset[str]:
        """Every value that a strictly dominates and b post-dominates: the region (a, b]."""
        names, label = self.flow.names, self.flow.label
        ia, ib = label[a], label[b]
        between = range(max(ia + 1, 1), min(ib + 1, len(names) - 1))
        return frozenset(names[i] for i in between if self._dominates(ia, i) and self._post_dominates(ib, i))

    @cached_property
    def _idom(self) -> list[int]:
        return self.flow.dominators()

    @cached_property
    def _ipdom(self) -> list[int]:
        return self.flow.post_dominators()

    @cached_property
    def _dom_spans(self) -> tuple[list[int], list[int]]:
        return preorder_spans(self._idom)

    @cached_property
    def _pdom_spans(self) -> tuple[list[int], list[int]]:
        """By labels counted from EXIT, so that parents are smaller."""
        last = len(self._ipdom) - 1
        return preorder_spans([last - i for i in reversed(self._ipdom)])

    @cached_property
    def _readers(self) -> tuple[list[int], list[int]]:
        return neighbours(len(self.flow.names), self.flow.sources, self.flow.targets)

    @cached_property
    def _inputs(self) -> tuple[list[int], list[int]]:
        return neighbours(len(self.flow.names), self.flow.targets, self.flow.sources)

    def _dominates(self, a: int, b: int) -> bool:
        first, last = self._dom_spans
        return first[a] <= first[b] <= last[a]

    def _post_dominates(self, b: int, a: int) -> bool:
        first, last = self._pdom_spans
        end = len(first) - 1
        return first[end - b] <= first[end - a] <= last[end - b]

    def _named_tree(self, parent: list[int]) -> Mapping[str, tuple[str, ...]]:
        names = self.flow.names
        children: dict[int, list[str]] = {}
        for i, above in enumerate(parent):
            if i != above:
                children.setdefault(above, []).append(names[i])
        return {name: tuple(children.get(i, ())) for i, name in enumerate(names)}

    def _ancestors(self, name: str, parent: list[int]) -> frozenset[str]:
        i = self.flow.label[name]
        ancestors = {name}
        while parent[i] != i:
            i = parent[i]
            ancestors.add(self.flow.names[i])
        return frozenset(ancestors)

    def _walk(self, name: str, neighbours: tuple[list[int], list[int]]) -> frozenset[str]:
        starts, ends = neighbours
        stack = [self.flow.label[name]]
        seen = set(stack)
        while stack:
            i = stack.pop()
            fresh = [j for j in ends[starts[i] : starts[i + 1]] if j not in seen]
            seen.update(fresh)
            stack.extend(fresh)
        return frozenset(self.flow.names[i] for i in seen)


def immediate_dominators(ids: Sequence[str], edges: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The nearest strict dominator of every id (ENTRY if there is no other).

    Raises InputFault as DominanceInformation does.
    """
    flow = build_flow(ids, edges)
    names = flow.names
    return dict(zip(names[1:-1], map(names.__getitem__, flow.dominators()[1:-1]), strict=True))


def graph_edges(graph: TorchGraph) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The ids of a graph and its (producer, reader) pairs, each pair once."""
    ids = tuple(node.id for node in graph.nodes)
    return ids, tuple((source, node.id) for node in graph.nodes for source in dict.fromkeys(node.inputs))
