"""The items to draw of a hierarchy: closed groups, open groups with their parts, folded equal blocks.

opened = {model, model.layers.0}        unfolded = {}
model ┌ embed_tokens
      ├ layers ┌ 0 ┌ …                   an open block
      │        └ layers × 31             a fold: closed blocks of a list that are equal and
      ├ norm                             follow one another
      └ lm_head
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchsplit_core.drawing.hierarchy import Group, GroupPart, Hierarchy

INITIAL_ITEMS = 24
"""Most items of the first view, which opens the modules that contain most of the model."""
MOST_ITEMS = 20_000
"""More boxes in one picture are refused: the browser would need seconds for them."""
DOMINANT = 0.5
"""Share of its group's operations from which on the first view opens a module."""


@dataclass(frozen=True, slots=True)
class ViewItem:
    """One drawn box. `parent` is the index of the open item around it, -1 at the top.

    `kind`: input, op, output, module, run, or fold (`repeats` equal blocks with the ids `groups`). `repeats` is also
    set for a closed module that contains only a list of equal blocks. `open`: its parts are drawn inside it. `nodes`:
    indices of the nodes that it represents, empty for an open item. `expandable`: it can be opened.
    """

    id: str
    kind: str
    label: str
    note: str
    parent: int
    open: bool = False
    expandable: bool = False
    count: int = 1
    repeats: int = 1
    groups: tuple[str, ...] = ()
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """Items, parents before children, siblings in execution order; `item_of[i]`: the item that shows node i."""

    items: tuple[ViewItem, ...]
    item_of: tuple[int, ...]


def build_view(hierarchy: Hierarchy, opened: Iterable[str], unfolded: Iterable[str] = ()) -> View:
    """The items of a hierarchy. `opened` are ids of open groups, `unfolded` of groups whose blocks are not folded.

    The whole model is always open. Unknown ids are ignored.
    """
    builder = _ViewBuilder(hierarchy, frozenset(opened), frozenset(unfolded))
    builder.level(hierarchy.groups[Hierarchy.ROOT], -1)
    return View(tuple(builder.items), tuple(builder.item_of))


def initially_open(hierarchy: Hierarchy) -> frozenset[str]:
    """The groups open at first: on each level the module with most operations around, while the view stays small."""
    opened: set[str] = set()
    current, items = hierarchy.groups[Hierarchy.ROOT], 0
    while True:
        parts = _fold_equal_blocks(hierarchy, current, frozenset(opened), frozenset())
        items += len(parts) - 1
        largest = max(
            (hierarchy.groups[part] for part in parts if isinstance(part, str)),
            key=lambda group: group.count,
            default=None,
        )
        if largest is None or largest.count < DOMINANT * current.count:
            return frozenset(opened)
        current = _innermost(hierarchy, largest)
        inside = _fold_equal_blocks(hierarchy, current, frozenset(opened), frozenset())
        # A list of equal blocks shows as much when closed: "layers × 32".
        if items + len(inside) > INITIAL_ITEMS or len(inside) == 1:
            return frozenset(opened)
        opened.add(current.id)


def groups_around(hierarchy: Hierarchy, node: str) -> frozenset[str]:
    """The groups that must be open for a node to be its own item. Raises KeyError for an unknown node."""
    return frozenset(hierarchy.path_to(hierarchy.index[node]))


def groups_to_open(hierarchy: Hierarchy, item: ViewItem) -> frozenset[str]:
    """The groups to open for an item: the first block of a fold; with a list of equal blocks also its first block."""
    wanted = item.groups[:1] if item.kind == "fold" else (item.id,)
    if item.kind != "fold" and item.repeats > 1:
        wanted += tuple(part for part in hierarchy.groups[item.id].parts if isinstance(part, str))[:1]
    return frozenset(_innermost(hierarchy, hierarchy.groups[name]).id for name in wanted)


class _ViewBuilder:
    def __init__(self, hierarchy: Hierarchy, opened: frozenset[str], unfolded: frozenset[str]) -> None:
        self.hierarchy, self.opened, self.unfolded = hierarchy, opened, unfolded
        self.items: list[ViewItem] = []
        self.item_of = [-1] * len(hierarchy.nodes)

    def level(self, group: Group, parent: int) -> None:
        """Add the parts of an open group; the recursion is as deep as the groups are nested."""
        for part in _fold_equal_blocks(self.hierarchy, group, self.opened, self.unfolded):
            if isinstance(part, int):
                self.add(self.leaf(part, parent))
            elif isinstance(part, list):
                self.add(self.fold(part, parent))
            else:
                self.group(self.hierarchy.groups[part], group, parent)

    def leaf(self, node: int, parent: int) -> ViewItem:
        """The item of an input, an output or an operation."""
        graph_node = self.hierarchy.graph.by_id[self.hierarchy.nodes[node]]
        label = self.hierarchy.operations[node] if graph_node.kind == "op" else graph_node.id
        return ViewItem(
            f"node:{graph_node.id}", graph_node.kind, label, _shape(graph_node.shape), parent, nodes=(node,)
        )

    def group(self, group: Group, around: Group, parent: int) -> None:
        """Add a closed group, an open one with its parts, or, of a module with one operation, that operation."""
        hierarchy = self.hierarchy
        inner = _innermost(hierarchy, group)
        label = f"{inner.count} operations" if inner.kind == "run" else _title(hierarchy, around, inner)
        if len(inner.parts) == 1 and isinstance(inner.parts[0], int):
            node = inner.parts[0]
            name = hierarchy.nodes[node]
            if inner.kind == "run":
                self.add(self.leaf(node, parent))
                return
            self.add(ViewItem(f"node:{name}", "op", label, hierarchy.operations[node], parent, nodes=(node,)))
        elif inner.id in self.opened:
            self.items.append(
                ViewItem(
                    inner.id, inner.kind, label, "", parent, open=True, expandable=True, count=inner.count
                )
            )
            self.level(inner, len(self.items) - 1)
        else:
            blocks = _fold_equal_blocks(hierarchy, inner, frozenset(), frozenset())
            repeats = len(blocks[0]) if len(blocks) == 1 and isinstance(blocks[0], list) else 1
            nodes = tuple(hierarchy.members(inner.id))
            self.add(
                ViewItem(
                    inner.id, inner.kind, f"{label} × {repeats}" if repeats > 1 else label,
                    hierarchy.summary(inner.id), parent,
                    expandable=True, count=inner.count, repeats=repeats, nodes=nodes,
                )
            )  # fmt: skip

    def fold(self, blocks: list[str], parent: int) -> ViewItem:
        """The item of consecutive equal blocks."""
        groups = [self.hierarchy.groups[name] for name in blocks]
        list_name = groups[0].path.rpartition(".")[0].rpartition(".")[2] or "block"
        return ViewItem(
            f"fold:{groups[0].id}:{len(blocks)}", "fold", f"{list_name} × {len(blocks)}",
            f"{_last(groups[0].path)} to {_last(groups[-1].path)}, {groups[0].count} operations each", parent,
            expandable=True, count=sum(group.count for group in groups), repeats=len(blocks),
            groups=tuple(blocks), nodes=tuple(node for name in blocks for node in self.hierarchy.members(name)),
        )  # fmt: skip

    def add(self, item: ViewItem) -> None:
        for node in item.nodes:
            self.item_of[node] = len(self.items)
        self.items.append(item)


def _fold_equal_blocks(
    hierarchy: Hierarchy, group: Group, opened: frozenset[str], unfolded: frozenset[str]
) -> list[GroupPart | list[str]]:
    """The parts of a group; two or more consecutive closed equal blocks are one list."""
    folded_parts: list[GroupPart | list[str]] = []
    row: list[str] = []

    def close() -> None:
        folded_parts.append(row[0] if len(row) == 1 else list(row))
        row.clear()

    for part in group.parts:
        block = (
            isinstance(part, str)
            and group.id not in unfolded
            and _innermost(hierarchy, hierarchy.groups[part]).id not in opened
            and _last(hierarchy.groups[part].path).isdecimal()
            and hierarchy.groups[part].kind == "module"
        )
        if row and not (
            block and isinstance(part, str) and hierarchy.groups[part].shape == hierarchy.groups[row[0]].shape
        ):
            close()
        if block and isinstance(part, str):
            row.append(part)
        else:
            folded_parts.append(part)
    if row:
        close()
    return folded_parts


def _innermost(hierarchy: Hierarchy, group: Group) -> Group:
    """Follow groups whose only part is a group; they are drawn as one box, which is open if the innermost is."""
    while len(group.parts) == 1 and isinstance(group.parts[0], str):
        group = hierarchy.groups[group.parts[0]]
    return group


def _title(hierarchy: Hierarchy, around: Group, inner: Group) -> str:
    """A module's path relative to its group; a mere number says nothing, so its operation kind precedes it."""
    name = _below(around.path, inner.path)
    if not name.isdecimal() or not all(isinstance(part, int) for part in inner.parts):
        return name
    done = {hierarchy.operations[part] for part in inner.parts if isinstance(part, int)}
    return f"{done.pop()} · {name}" if len(done) == 1 else name


def _below(outer: str, path: str) -> str:
    return path[len(outer) + 1 :] if outer else path


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _shape(shape: tuple[int | str, ...] | None) -> str:
    return "" if shape is None else f"[{', '.join(map(str, shape))}]"
