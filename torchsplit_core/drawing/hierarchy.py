"""A graph as nested groups, for looking at it one level at a time.

    model
    ├── embeddings ── 3 operations
    ├── encoder.layer ── 0, 1, 2, …            a list of equal blocks, folded in a view
    └── 38 operations                          a run: loose operations between two modules

Groups are the modules by their paths. Loose operations of a module, executed one after the other,
are joined to runs where there are many, and a run of very many to runs of runs, so that a graph
of a million operations without any module still opens level by level. A run is a window of the
execution order, so folding it closes no cycle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from torchsplit_core.graph import TorchGraph
from torchsplit_core.graph.operations import operation_name
from torchsplit_core.graph.preparation.prepare import WEIGHT_KINDS

DEEPEST = 40
"""Module paths are cut here: deeper ones are no modules but an attack on recursion."""
MAX_LOOSE = 6
"""Up to this many loose operations in a row stand on their own beside modules."""
WIDEST = 100
"""Parts of a group: beyond, loose operations are joined to runs of runs."""

GroupPart = int | str
"""A part of a group: the index of a node, or the id of a group."""


@dataclass(frozen=True, slots=True)
class Group:
    """A module (`path` is its own), or a run of loose operations of the module at `path`.

    `parts` in order of their first execution; `count` operations inside; `shape` is equal for
    groups that hold the same operations on the same shapes.
    """

    id: str
    kind: str
    path: str
    parent: str | None
    parts: tuple[GroupPart, ...]
    count: int
    shape: int


class Hierarchy:
    """The groups of a graph. `nodes` are the ids shown (weights are not), in execution order.

    `homes[i]` is the group that holds node i directly; the whole model is the group ROOT.
    """

    ROOT = "module:"

    def __init__(self, graph: TorchGraph) -> None:
        self.graph = graph
        shown = [node for node in graph.nodes if node.kind not in WEIGHT_KINDS]
        self.nodes: tuple[str, ...] = tuple(node.id for node in shown)
        self.index: dict[str, int] = {name: i for i, name in enumerate(self.nodes)}
        self.operations: tuple[str, ...] = tuple(
            operation_name(node) if node.kind == "op" else node.kind for node in shown
        )
        self.groups: dict[str, Group] = {}
        self._is_op = [node.kind == "op" for node in shown]
        self._facts = [hash((node.target, node.shape, node.dtype)) for node in shown]
        tree = _Module("")
        for i, node in enumerate(shown):
            tree.parts_at(node.module if node.kind == "op" else "").append(i)
        self._add_module(tree, None)
        self.group_of: list[str] = [""] * len(self.nodes)
        for group in self.groups.values():
            for part in group.parts:
                if isinstance(part, int):
                    self.group_of[part] = group.id

    @cached_property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        """For every node the shown nodes whose values it reads, each once."""
        by_id, index = self.graph.by_id, self.index
        return tuple(
            tuple(index[source] for source in dict.fromkeys(by_id[name].inputs) if source in index)
            for name in self.nodes
        )

    def members(self, group: str) -> Iterator[int]:
        """The nodes inside a group, in execution order of its parts."""
        stack: list[GroupPart] = [group]
        while stack:
            part = stack.pop()
            if isinstance(part, int):
                yield part
            else:
                stack.extend(reversed(self.groups[part].parts))

    def path_to(self, node: int) -> tuple[str, ...]:
        """The groups around a node, from the whole model inwards."""
        return tuple(reversed(list(self.enclosing_groups(self.group_of[node]))))

    def enclosing_groups(self, group: str) -> Iterator[str]:
        """The group and those it lies in, from itself outwards."""
        inner: str | None = group
        while inner is not None:
            yield inner
            inner = self.groups[inner].parent

    def summary(self, group: str, most: int = 3) -> str:
        """Its commonest operations: "linear × 4, softmax"."""
        counts = Counter(self.operations[i] for i in self.members(group))
        named = [f"{name} × {count}" if count > 1 else name for name, count in counts.most_common(most)]
        return ", ".join(named) + (", …" if len(counts) > most else "")

    def _add_module(self, module: _Module, parent: str | None) -> Group:
        """The group of a module with all below it; recursion is bounded by DEEPEST."""
        identity = f"module:{module.path}"
        parts: list[GroupPart] = []
        subgroups: list[Group] = []
        loose: list[int] = []

        def close_run() -> None:
            if (module.children and len(loose) > MAX_LOOSE) or len(loose) > WIDEST:
                runs = self._add_runs(list(loose), module.path, identity)
                subgroups.extend(runs)
                parts.extend(run.id for run in runs)
            else:
                parts.extend(loose)
            loose.clear()

        for part in module.parts:
            if isinstance(part, _Module):
                close_run()
                subgroups.append(self._add_module(part, identity))
                parts.append(subgroups[-1].id)
            elif self._is_op[part]:
                loose.append(part)
            else:
                close_run()
                parts.append(part)
        close_run()
        node_facts = [self._facts[part] for part in parts if isinstance(part, int)]
        below = [
            (group.path[len(module.path) :] if group.kind == "module" else "run", group.shape)
            for group in subgroups
        ]
        group = Group(
            identity,
            "module",
            module.path,
            parent,
            tuple(parts),
            sum(self._is_op[part] for part in parts if isinstance(part, int))
            + sum(g.count for g in subgroups),
            hash((tuple(node_facts), tuple(below))),
        )
        self.groups[identity] = group
        return group

    def _add_runs(self, loose: list[int], path: str, parent: str) -> list[Group]:
        """One run, or as many equal ones as fit, each opened further where it is long."""
        if len(loose) <= WIDEST:
            return [self._run(loose, path, parent)]
        size = WIDEST
        while size * WIDEST < len(loose):
            size *= WIDEST
        return [self._run(loose[at : at + size], path, parent) for at in range(0, len(loose), size)]

    def _run(self, loose: list[int], path: str, parent: str) -> Group:
        # A node starts one run of a length; its module's path would let two ids spell the same.
        identity = f"run:{self.nodes[loose[0]]}:{len(loose)}"
        parts: tuple[GroupPart, ...] = tuple(loose)
        if len(loose) > WIDEST:
            parts = tuple(run.id for run in self._add_runs(loose, path, identity))
        shape = hash(tuple(self._facts[i] for i in loose))
        group = Group(identity, "run", path, parent, parts, len(loose), shape)
        self.groups[identity] = group
        return group


class _Module:
    """A module while the tree is built: its nodes and modules in order of first execution."""

    __slots__ = ("children", "parts", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.parts: list[int | _Module] = []
        self.children: dict[str, _Module] = {}

    def parts_at(self, path: str) -> list[int | _Module]:
        """The parts of the module at a path, made where it is new. Empty names are passed over."""
        module = self
        if ".." in f".{path}.":
            # An empty name at the front would be called like the whole model.
            path = ".".join(filter(None, path.split(".")))
        if path:
            for name in path.split(".", DEEPEST - 1):
                below = module.children.get(name)
                if below is None:
                    below = _Module(f"{module.path}.{name}" if module.path else name)
                    module.children[name] = below
                    module.parts.append(below)
                module = below
        return module.parts
