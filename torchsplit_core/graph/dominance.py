"""Dominance on a dataflow graph: which values every path must pass.

    ENTRY ──> every value without inputs        every value without readers ──> EXIT

a dominates b when every path ENTRY → b passes a (so every value dominates itself); b
post-dominates a when every path a → EXIT passes b. Immediate dominators come from one
topological pass with the intersection of Cooper, Harvey and Kennedy ("A Simple, Fast
Dominance Algorithm", 2001); a DAG needs no second pass. Queries compare intervals of a
depth-first numbering of the tree, in constant time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.values import InputFault

ENTRY = "<entry>"
EXIT = "<exit>"


class DominanceInformation:
    """Dominators and post-dominators of a DAG, given as a TorchGraph or as (ids, edges).

    Raises InputFault for a duplicate id, an edge that names no id, an id equal to ENTRY or
    EXIT, and a cycle. Queries accept ENTRY and EXIT; an unknown id is a KeyError.
    """

    def __init__(self, graph: TorchGraph | tuple[Sequence[str], Iterable[tuple[str, str]]]) -> None:
        ids, edges = graph_edges(graph) if isinstance(graph, TorchGraph) else graph
        self.ids: tuple[str, ...] = tuple(ids)
        names = (ENTRY, *self.ids, EXIT)
        self._names = names
        self._index = {name: i for i, name in enumerate(names)}
        if len(self._index) < len(names):
            twice = next(name for i, name in enumerate(names) if self._index[name] != i)
            raise InputFault(
                "graph nodes", twice, "ids are unique and not <entry> or <exit>", "Rename the node."
            )
        self._successors, self._predecessors = _adjacency(self._index, edges)
        order = _topological(names, self._successors, self._predecessors)
        self.topological_ids: tuple[str, ...] = tuple(names[i] for i in order if 0 < i < len(names) - 1)
        self._idom = _immediate(order, self._predecessors)
        self._ipdom = _immediate(order[::-1], self._successors)
        self._dom_children, self._dom_span = _tree(order, self._idom)
        self._pdom_children, self._pdom_span = _tree(order[::-1], self._ipdom)

    @property
    def dominator_tree(self) -> Mapping[str, tuple[str, ...]]:
        """The children of every value, ENTRY (the root) and EXIT in the dominator tree."""
        return self._named_tree(self._dom_children)

    @property
    def post_dominator_tree(self) -> Mapping[str, tuple[str, ...]]:
        """The children of every value, EXIT (the root) and ENTRY in the post-dominator tree."""
        return self._named_tree(self._pdom_children)

    def immediate_dominator(self, name: str) -> str | None:
        """The nearest strict dominator; None for ENTRY."""
        i = self._index[name]
        return None if name == ENTRY else self._names[self._idom[i]]

    def immediate_post_dominator(self, name: str) -> str | None:
        """The nearest strict post-dominator; None for EXIT."""
        i = self._index[name]
        return None if name == EXIT else self._names[self._ipdom[i]]

    def dominates(self, a: str, b: str) -> bool:
        """Every path from ENTRY to b passes a (true for a = b)."""
        return _inside(self._dom_span, self._index[a], self._index[b])

    def strictly_dominates(self, a: str, b: str) -> bool:
        """a dominates b and is not b."""
        return a != b and self.dominates(a, b)

    def post_dominates(self, b: str, a: str) -> bool:
        """Every path from a to EXIT passes b (true for a = b)."""
        return _inside(self._pdom_span, self._index[b], self._index[a])

    def strictly_post_dominates(self, b: str, a: str) -> bool:
        """b post-dominates a and is not a."""
        return a != b and self.post_dominates(b, a)

    def dominators(self, name: str) -> frozenset[str]:
        """All that dominate it, itself and ENTRY included."""
        return self._ancestors(self._index[name], self._idom)

    def post_dominators(self, name: str) -> frozenset[str]:
        """All that post-dominate it, itself and EXIT included."""
        return self._ancestors(self._index[name], self._ipdom)

    def reachable(self, name: str) -> frozenset[str]:
        """All that a path from it reaches, itself included (EXIT always is)."""
        return self._walk(self._index[name], self._successors)

    def reaching(self, name: str) -> frozenset[str]:
        """All from which a path leads to it, itself included (ENTRY always is)."""
        return self._walk(self._index[name], self._predecessors)

    def is_region(self, a: str, b: str) -> bool:
        """(a, b] is a region: a strictly dominates b and b post-dominates a."""
        return self.strictly_dominates(a, b) and self.post_dominates(b, a)

    def region_between(self, a: str, b: str) -> frozenset[str]:
        """Every value that a strictly dominates and b post-dominates: the region (a, b]."""
        ib = self._index[b]
        inside: set[str] = set()
        stack = list(self._dom_children[self._index[a]])
        while stack:
            i = stack.pop()
            if i != ib:  # what b strictly dominates lies behind it, so b cannot post-dominate it
                stack.extend(self._dom_children[i])
            if _inside(self._pdom_span, ib, i):
                inside.add(self._names[i])
        return frozenset(inside - {ENTRY, EXIT})

    def _named_tree(self, children: list[list[int]]) -> Mapping[str, tuple[str, ...]]:
        names = self._names
        return {names[i]: tuple(names[c] for c in found) for i, found in enumerate(children)}

    def _ancestors(self, i: int, parent: list[int]) -> frozenset[str]:
        found = {self._names[i]}
        while parent[i] != i:
            i = parent[i]
            found.add(self._names[i])
        return frozenset(found)

    def _walk(self, start: int, neighbours: list[list[int]]) -> frozenset[str]:
        seen = {start}
        stack = [start]
        while stack:
            for i in neighbours[stack.pop()]:
                if i not in seen:
                    seen.add(i)
                    stack.append(i)
        return frozenset(self._names[i] for i in seen)


def graph_edges(graph: TorchGraph) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The ids of a graph and its (producer, reader) pairs, each pair once."""
    ids = tuple(node.id for node in graph.nodes)
    return ids, tuple((source, node.id) for node in graph.nodes for source in dict.fromkeys(node.inputs))


def _adjacency(
    index: Mapping[str, int], edges: Iterable[tuple[str, str]]
) -> tuple[list[list[int]], list[list[int]]]:
    """Successors and predecessors with ENTRY (index 0) and EXIT (the last) joined on."""
    last = len(index) - 1
    successors: list[list[int]] = [[] for _ in index]
    predecessors: list[list[int]] = [[] for _ in index]
    for source, target in dict.fromkeys(edges):
        for end in (source, target):
            if end not in index or end in (ENTRY, EXIT):
                raise InputFault("graph edges", end, "an edge joins two ids of the graph", "Add the node.")
        successors[index[source]].append(index[target])
        predecessors[index[target]].append(index[source])
    for i in range(1, last):
        if not predecessors[i]:
            predecessors[i].append(0)
            successors[0].append(i)
        if not successors[i]:
            successors[i].append(last)
            predecessors[last].append(i)
    if last == 1:
        successors[0].append(1)
        predecessors[1].append(0)
    return successors, predecessors


def _topological(
    names: Sequence[str], successors: list[list[int]], predecessors: list[list[int]]
) -> list[int]:
    missing = [len(found) for found in predecessors]
    ready = deque([0])
    order: list[int] = []
    while ready:
        i = ready.popleft()
        order.append(i)
        for j in successors[i]:
            missing[j] -= 1
            if not missing[j]:
                ready.append(j)
    if len(order) < len(names):
        done = set(order)
        stuck = min(names[i] for i in range(1, len(names) - 1) if i not in done)
        raise InputFault(
            "graph edges", stuck, "a dataflow graph has no cycle", "Remove the edge that closes it."
        )
    return order


def _immediate(order: list[int], predecessors: list[list[int]]) -> list[int]:
    """The immediate dominator of every node; the root, first in the order, is its own."""
    rank = [0] * len(order)
    for position, i in enumerate(order):
        rank[i] = position
    parent = [-1] * len(order)
    parent[order[0]] = order[0]
    for i in order[1:]:
        found = predecessors[i]
        meet = found[0]
        for other in found[1:]:
            while meet != other:
                while rank[meet] > rank[other]:
                    meet = parent[meet]
                while rank[other] > rank[meet]:
                    other = parent[other]
        parent[i] = meet
    return parent


def _tree(order: list[int], parent: list[int]) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """Children lists and, for every node, its (first, last) number in a depth-first walk."""
    children: list[list[int]] = [[] for _ in order]
    size = [1] * len(order)
    for i in order[1:]:
        children[parent[i]].append(i)
    for i in reversed(order[1:]):
        size[parent[i]] += size[i]
    first = [0] * len(order)
    for i in order:
        number = first[i] + 1
        for child in children[i]:
            first[child] = number
            number += size[child]
    return children, [(first[i], first[i] + size[i] - 1) for i in range(len(order))]


def _inside(span: list[tuple[int, int]], a: int, b: int) -> bool:
    return span[a][0] <= span[b][0] <= span[a][1]
