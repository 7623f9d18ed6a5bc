"""A graph as nested groups, to show it one level at a time.

    model
    ├── embeddings ── 3 operations
    ├── encoder.layer ── 0, 1, 2, …            a list of equal blocks, folded in a view
    └── 38 operations                          a run: loose operations between two modules

Groups are the modules by their paths. Many consecutive loose operations of a module are joined into runs, and very
long runs into runs of runs, so that a graph of a million operations without modules still opens level by level. A run
is an interval of the execution order, so folding it creates no cycle.
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
"""Levels at which module paths are cut: deeper ones are not modules but an attack on the recursion."""
MAX_LOOSE = 6
"""Most consecutive loose operations beside modules that are not joined into a run."""
WIDEST = 100
"""Most loose operations directly in a group; more are joined into runs, and runs of runs."""

GroupPart = int | str
"""A part of a group: the index of a node, or the id of a group."""


@dataclass(frozen=True, slots=True)
class Group:
    """The module at `path`, or a run of its loose operations.

    `parts` are in order of their first execution; `count` is the number of operations inside; `shape` is a hash that is
    equal for groups of the same operations on the same shapes.
    """

    id: str
    kind: str
    path: str
    parent: str | None
    parts: tuple[GroupPart, ...]
    count: int
    shape: int


class Hierarchy:
    """The groups of a graph; ROOT is the whole model.

    `nodes` are the ids of all nodes but weights, in execution order; `group_of[i]` is the group that contains node i
    directly.
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
        """For every node, the nodes in `nodes` whose values it reads, each once."""
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
        """The groups that contain a node, the whole model first."""
        return tuple(reversed(list(self.enclosing_groups(self.group_of[node]))))

    def enclosing_groups(self, group: str) -> Iterator[str]:
        """The group and all groups that contain it, the innermost first."""
        inner: str | None = group
        while inner is not None:
            yield inner
            inner = self.groups[inner].parent

    def summary(self, group: str, most: int = 3) -> str:
        """The `most` commonest operations of a group: "linear × 4, softmax"."""
        counts = Counter(self.operations[i] for i in self.members(group))
        named = [f"{name} × {count}" if count > 1 else name for name, count in counts.most_common(most)]
        return ", ".join(named) + (", …" if len(counts) > most else "")

    def _add_module(self, module: _Module, parent: str | None) -> Group:
        """Create the group of a module and all groups inside it; DEEPEST bounds the recursion."""
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
        """One run, or several equally long ones, themselves divided into runs if they are long."""
        if len(loose) <= WIDEST:
            return [self._run(loose, path, parent)]
        size = WIDEST
        while size * WIDEST < len(loose):
            size *= WIDEST
        return [self._run(loose[at : at + size], path, parent) for at in range(0, len(loose), size)]

    def _run(self, loose: list[int], path: str, parent: str) -> Group:
        # A node starts only one run of each length, so this is unique; with module paths two ids could be equal.
        identity = f"run:{self.nodes[loose[0]]}:{len(loose)}"
        parts: tuple[GroupPart, ...] = tuple(loose)
        if len(loose) > WIDEST:
            parts = tuple(run.id for run in self._add_runs(loose, path, identity))
        shape = hash(tuple(self._facts[i] for i in loose))
        group = Group(identity, "run", path, parent, parts, len(loose), shape)
        self.groups[identity] = group
        return group


class _Module:
    """A module while the tree is built: its nodes and submodules in order of first execution."""

    __slots__ = ("children", "parts", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.parts: list[int | _Module] = []
        self.children: dict[str, _Module] = {}

    def parts_at(self, path: str) -> list[int | _Module]:
        """The parts of the module at `path`, which is created if missing. Empty names in the path are skipped."""
        module = self
        if ".." in f".{path}.":
            # A module with an empty name at the front would get the path of the whole model.
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
