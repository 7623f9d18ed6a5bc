"""A dataflow graph as integers, for the algorithms on dominance and regions.

Every value has a label, its position in a topological order; ENTRY is label 0, EXIT the last. Edges lead from smaller
to larger labels, so one pass in label order suffices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.values import InputFault, quoted

ENTRY = "<entry>"
EXIT = "<exit>"

Labels: TypeAlias = NDArray[np.int64]

# Up to this distance an intersection walks step by step; beyond, by jumps (see `_JumpPointers`).
_LINEAR_STEPS = 32


@dataclass(frozen=True)
class FlowGraph:
    """A DAG of len(names) - 2 values. Edge i leads from label sources[i] to label targets[i].

    `names` has ENTRY, the ids in topological order (their given order if it is one) and EXIT. `targets` ascends. Edges
    of ENTRY and EXIT are implicit: ENTRY leads to all values without an incoming edge, and all values without an
    outgoing edge lead to EXIT.
    """

    names: tuple[str, ...]
    sources: Labels
    targets: Labels

    @cached_property
    def label(self) -> Mapping[str, int]:
        """The label of every name."""
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def no_readers(self) -> Labels:
        """The values that lead to EXIT, ascending."""
        return _absent(self.sources, len(self.names))

    @cached_property
    def no_inputs(self) -> Labels:
        """The values that ENTRY leads to, ascending."""
        return _absent(self.targets, len(self.names))

    @cached_property
    def reads(self) -> tuple[list[int], list[int], list[int]]:
        """The predecessors of every label, including ENTRY and EXIT, grouped (see `_group_by_target`)."""
        last, ends = len(self.names) - 1, self.no_readers
        return _group_by_target(
            last + 1,
            np.concatenate((self.sources, ends)),
            np.concatenate((self.targets, np.full(len(ends), last))),
        )

    @cached_property
    def read_by(self) -> tuple[list[int], list[int], list[int]]:
        """The successors of every label in the same form, labels counted backwards from EXIT."""
        last, starts = len(self.names) - 1, self.no_inputs
        # Of a value's readers the first comes first: the meeting point then only moves forward.
        order = np.argsort(last - self.sources, kind="stable")
        return _group_by_target(
            last + 1,
            np.concatenate((last - self.targets[order], last - starts)),
            np.concatenate((last - self.sources[order], np.full(len(starts), last))),
        )

    def dominators(self) -> list[int]:
        """The immediate dominator of every label; ENTRY's own is ENTRY."""
        return _immediate_dominators(*self.reads)

    def post_dominators(self) -> list[int]:
        """The immediate post-dominator of every label; EXIT's own is EXIT."""
        last = len(self.names) - 1
        return [last - i for i in reversed(_immediate_dominators(*self.read_by))]


def build_flow(ids: Sequence[str], edges: Iterable[tuple[str, str]]) -> FlowGraph:
    """The graph of these ids and (source, target) edges; edges may repeat.

    Raises InputFault for a duplicate id, an id equal to ENTRY or EXIT, an edge with an unknown id, and a cycle.
    """
    ids = tuple(ids)
    label = dict(zip(ids, range(1, len(ids) + 1), strict=True))
    if len(label) < len(ids) or ENTRY in label or EXIT in label:
        twice = next(name for i, name in enumerate(ids, 1) if label[name] != i or name in (ENTRY, EXIT))
        problem = "have a reserved id" if twice in (ENTRY, EXIT) else "have one id twice"
        raise InputFault("graph nodes", f"{problem}: {quoted(twice)}", "Rename the node.")
    pairs = edges if isinstance(edges, Sequence) else tuple(edges)
    try:
        flat = np.fromiter(map(label.__getitem__, chain.from_iterable(pairs)), np.int64, 2 * len(pairs))
    except KeyError as missing:
        raise InputFault(
            "graph edges", f"name {quoted(missing.args[0])}, which is no node of the graph", "Add the node."
        ) from None
    sources, targets = flat[0::2], flat[1::2]
    if not (sources < targets).all():
        order = _topological(ids, sources, targets)
        position = np.zeros(len(ids) + 1, np.int64)
        position[order] = np.arange(1, len(ids) + 1)
        sources, targets = position[sources], position[targets]
        ids = tuple(ids[i - 1] for i in order)
    if not (targets[1:] >= targets[:-1]).all():
        by_target = np.argsort(targets, kind="stable")
        sources, targets = sources[by_target], targets[by_target]
    return FlowGraph((ENTRY, *ids, EXIT), sources, targets)


def neighbours(count: int, at: Labels, to: Labels) -> tuple[list[int], list[int]]:
    """(starts, ends): the neighbours of i are ends[starts[i] : starts[i + 1]], in the order of the edges."""
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(at, minlength=count), out=starts[1:])
    return starts.tolist(), to[np.argsort(at, kind="stable")].tolist()


def preorder_spans(parent: list[int]) -> tuple[list[int], list[int]]:
    """(first, last): numbers of a depth-first walk of a tree; j is under i if first[i] <= first[j] <= last[i].

    Every parent is smaller than its child; 0 is the root, its own parent.
    """
    size = [1] * len(parent)
    for i in range(len(parent) - 1, 0, -1):
        size[parent[i]] += size[i]
    first = [0] * len(parent)
    free = [1] * len(parent)
    for i in range(1, len(parent)):
        above = parent[i]
        first[i] = free[above]
        free[above] += size[i]
        free[i] = first[i] + 1
    return first, [number + count - 1 for number, count in zip(first, size, strict=True)]


def _absent(present: Labels, count: int) -> Labels:
    """The labels of values (neither ENTRY nor EXIT) that do not occur."""
    absent = np.ones(count, bool)
    absent[present] = False
    absent[0] = absent[-1] = False
    return np.flatnonzero(absent)


def _topological(ids: tuple[str, ...], sources: Labels, targets: Labels) -> list[int]:
    """Positions in `ids`, from 1, such that every edge leads forward, by Kahn's algorithm."""
    starts, readers = neighbours(len(ids) + 1, sources, targets)
    missing = np.bincount(targets, minlength=len(ids) + 1).tolist()
    order = [i for i in range(1, len(ids) + 1) if not missing[i]]
    for i in order:
        for j in readers[starts[i] : starts[i + 1]]:
            missing[j] -= 1
            if not missing[j]:
                order.append(j)
    if len(order) < len(ids):
        stuck = min(name for i, name in enumerate(ids, 1) if missing[i])
        raise InputFault(
            "graph edges", f"form a cycle through {quoted(stuck)}", "Remove the edge that closes it."
        )
    return order


def _group_by_target(count: int, sources: Labels, targets: Labels) -> tuple[list[int], list[int], list[int]]:
    """One predecessor of every label (0 if it has none), and the targets and sources of all other edges.

    `targets` ascends, and so does the second list.
    """
    opens = np.ones(len(targets), bool)
    opens[1:] = targets[1:] != targets[:-1]
    first = np.zeros(count, np.int64)
    first[targets[opens]] = sources[opens]
    return first.tolist(), targets[~opens].tolist(), sources[~opens].tolist()


def _immediate_dominators(first: list[int], targets: list[int], sources: list[int]) -> list[int]:
    """The immediate dominator of every label from its predecessors (see `_group_by_target`); 0, the root, is its own.

    A value starts with its first predecessor and meets the others one by one.
    """
    parent = first.copy()
    jumps = _JumpPointers(parent)
    for target, other in zip(targets, sources, strict=True):
        meet = parent[target]
        if meet > other:  # the first step, mostly the only one, is not counted
            meet = parent[meet]
        elif other > meet:
            other = parent[other]
        if meet != other:
            for _ in range(_LINEAR_STEPS):
                if meet > other:
                    meet = parent[meet]
                elif other > meet:
                    other = parent[other]
                else:
                    break
            else:
                meet = jumps.lowest_common_ancestor(meet, other)
        parent[target] = meet
    return parent


class _JumpPointers:
    """Lowest common ancestors in a growing tree, in a number of steps logarithmic in its depth.

    Besides its parent a node stores one ancestor far above, chosen so that a path up of any length takes few steps
    (Myers, "An applicative random-access stack", 1983). The tables grow only to the largest label queried, whose
    ancestry is final by then.
    """

    def __init__(self, parent: list[int]) -> None:
        self._parent = parent
        self._depth = [0]
        self._jump = [0]

    def lowest_common_ancestor(self, a: int, b: int) -> int:
        """The lowest node that is above or equal to both."""
        self._grow(max(a, b))
        parent, depth, jump = self._parent, self._depth, self._jump
        if depth[a] < depth[b]:
            a, b = b, a
        while depth[a] > depth[b]:
            a = jump[a] if depth[jump[a]] >= depth[b] else parent[a]
        while a != b:  # equal depths have equal jumps, so both stay level
            a, b = (jump[a], jump[b]) if jump[a] != jump[b] else (parent[a], parent[b])
        return a

    def _grow(self, to: int) -> None:
        parent, depth, jump = self._parent, self._depth, self._jump
        for i in range(len(depth), to + 1):
            above = parent[i]
            far = jump[above]
            depth.append(depth[above] + 1)
            jump.append(jump[far] if depth[above] - depth[far] == depth[far] - depth[jump[far]] else above)
