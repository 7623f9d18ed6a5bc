"""Lays out a view: nested boxes, the lines between them, and stubs for values that many boxes read.

Every open item is a separate level (`layered_layout.layout_layers`). A line that enters or leaves an open item
passes a port on its edge:

        s                    level of the common parent: s → frame
    ┌───┼──── frame ┐
    │   ├──> t      │        level of the frame: port of s → t
    └───────────────┘

A value that many boxes of a level read (a mask, the angles of a rotary embedding) would cover the picture with lines,
so each of its readers gets a stub with the value's name instead. So does the reader of a value that runs upwards into
or out of an open item (modules that execute alternately), since lines enter frames at the top and leave them below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from torchsplit_core.drawing.hierarchy import Hierarchy
from torchsplit_core.drawing.layered_layout import ROW_GAP, Point, layout_layers
from torchsplit_core.drawing.view import View, ViewItem

STUB_MIN_READERS = 7
"""Readers on one level from which on a value is drawn as a stub at each of them."""
CAREFUL_LAYOUT_ITEMS = 2000
"""Most boxes for the slower, better layout; with more, nobody sees all lines at once."""
MARGIN = 16.0
TITLE = 30.0
STUB_HEIGHT = 18.0
LABEL_WIDTH = 7.4
NOTE_WIDTH = 6.3
"""Pixels of a character in a label (13 px) and in a note (11 px), estimated on the high side."""
NARROWEST, WIDEST = 76.0, 250.0


@dataclass(frozen=True, slots=True)
class Box:
    """Position and size of an item, in pixels from the top left of the scene."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Line:
    """A line segment that carries values of item `source` to the items `targets`; `arrow`: it ends in an arrowhead."""

    source: int
    targets: tuple[int, ...]
    points: tuple[Point, ...]
    arrow: bool


@dataclass(frozen=True, slots=True)
class Stub:
    """Represents item `source` above item `reader`, in place of a line."""

    source: int
    reader: int
    label: str
    box: Box


@dataclass(frozen=True, slots=True)
class Scene:
    """A view with a box for every item, lines and stubs; `edges` maps (source, target) items to bytes."""

    view: View
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    stubs: tuple[Stub, ...]
    edges: dict[tuple[int, int], int]
    width: float
    height: float


def layout_scene(hierarchy: Hierarchy, shown: View) -> Scene:
    """Lay out a view."""
    drawing = _SceneBuilder(shown, _edges(hierarchy, shown))
    return drawing.scene()


def _edges(hierarchy: Hierarchy, shown: View) -> dict[tuple[int, int], int]:
    """Bytes of the distinct values between two items, by (source, target)."""
    size = [hierarchy.graph.by_id[name].output_bytes for name in hierarchy.nodes]
    values: dict[tuple[int, int], set[int]] = {}
    for node, reads in enumerate(hierarchy.reads):
        target = shown.item_of[node]
        for read in reads:
            source = shown.item_of[read]
            if source != target:
                values.setdefault((source, target), set()).add(read)
    return {pair: sum(size[node] for node in nodes) for pair, nodes in values.items()}


class _Level:
    """The inside of an open item, or of the scene (-1): its children and the lines between them."""

    __slots__ = ("children", "entries", "exits", "height", "inner", "place", "routes", "stubs", "width")

    def __init__(self) -> None:
        self.children: list[int] = []
        # source item → child → the final targets reached there
        self.inner: dict[tuple[int, int], dict[int, list[int]]] = {}
        self.entries: dict[int, dict[int, list[int]]] = {}
        # (source item, child) → the final targets reached there by a stub
        self.stubs: dict[tuple[int, int], list[int]] = {}
        self.exits: dict[int, tuple[int, list[int]]] = {}
        self.place: dict[tuple[str, int, int], Box] = {}
        self.routes: dict[tuple[tuple[str, int, int], tuple[str, int, int]], tuple[Point, ...]] = {}
        self.width = self.height = 0.0


Key = tuple[str, int, int]
"""A box of a level: ("item", i, 0), ("in", source, 0), ("out", source, 0), ("stub", source, reader)."""
TOP: Key = ("top", 0, 0)
BOTTOM: Key = ("bottom", 0, 0)


class _SceneBuilder:
    def __init__(self, shown: View, edges: dict[tuple[int, int], int]) -> None:
        self.items, self.view, self.edges = shown.items, shown, edges
        self.levels: dict[int, _Level] = {-1: _Level()}
        for i, item in enumerate(self.items):
            if item.open:
                self.levels[i] = _Level()
            self.levels[item.parent].children.append(i)
        for source, target in edges:
            self._add_edge(source, target)
        self.boxes: list[Box | None] = [None] * len(self.items)
        self.lines: list[Line] = []
        self.stubs: list[Stub] = []

    def scene(self) -> Scene:
        """Compute sizes from the inside outwards, then positions from the outside inwards."""
        # Parents come before their children, so the reversed order is innermost first.
        for i in (*(i for i in reversed(range(len(self.items))) if self.items[i].open), -1):
            self._layout_level(i)
        self._place_level(-1, 0.0, 0.0)
        boxes = tuple(box for box in self.boxes if box is not None)
        assert len(boxes) == len(self.items)
        top = self.levels[-1]
        return Scene(
            self.view, boxes, tuple(self.lines), tuple(self.stubs), self.edges, top.width, top.height
        )

    def _enclosing_items(self, i: int) -> Iterator[int]:
        """The item, then the open items around it from the innermost outwards, then -1."""
        while i != -1:
            yield i
            i = self.items[i].parent
        yield -1

    def _add_edge(self, source: int, target: int) -> None:
        """Record an edge on every level it passes."""
        outward, inward = list(self._enclosing_items(source)), list(self._enclosing_items(target))
        while len(outward) > 1 and len(inward) > 1 and outward[-2] == inward[-2]:
            outward.pop()
            inward.pop()
        common = self.levels[outward[-1]]
        if inward[-2] < outward[-2] and (len(outward) > 2 or len(inward) > 2):
            common.stubs.setdefault((source, inward[-2]), []).append(target)
        else:
            common.inner.setdefault((source, outward[-2]), {}).setdefault(inward[-2], []).append(target)
            for child, around in pairwise(outward[:-1]):
                self.levels[around].exits.setdefault(source, (child, []))[1].append(target)
        for child, around in pairwise(inward[:-1]):
            self.levels[around].entries.setdefault(source, {}).setdefault(child, []).append(target)

    def _layout_level(self, owner: int) -> None:
        level = self.levels[owner]
        joins: list[tuple[Key, Key]] = []
        ports: list[Key] = []
        children: list[Key] = [("item", i, 0) for i in level.children]
        for source, readers in level.entries.items():
            if len(readers) >= STUB_MIN_READERS:
                level.stubs |= {(source, reader): targets for reader, targets in readers.items()}
            else:
                ports.append(("in", source, 0))
                joins += [(ports[-1], ("item", reader, 0)) for reader in readers]
        joins += [(TOP, port) for port in ports]
        for (source, child), readers in level.inner.items():
            if len(readers) >= STUB_MIN_READERS:
                level.stubs |= {(source, reader): targets for reader, targets in readers.items()}
            else:
                joins += [(("item", child, 0), ("item", reader, 0)) for reader in readers]
        stubs: list[Key] = [("stub", *pair) for pair in level.stubs]
        joins += [(stub, ("item", stub[2], 0)) for stub in stubs]
        leaving: list[Key] = [("out", source, 0) for source in level.exits]
        joins += [(("item", child, 0), ("out", source, 0)) for source, (child, _) in level.exits.items()]
        joins += [(port, BOTTOM) for port in leaving]
        # The rows of TOP and BOTTOM are not drawn, so no other box may be in them or beyond.
        if ports:
            read = {reader for _, reader in joins}
            joins += [(TOP, key) for key in (*stubs, *children) if key not in read]
        if leaving:
            sources = {source for source, _ in joins}
            joins += [(child, BOTTOM) for child in children if child not in sources]
        keys = [
            *([TOP] if ports else []),
            *ports,
            *stubs,
            *children,
            *leaving,
            *([BOTTOM] if leaving else []),
        ]
        number = {key: i for i, key in enumerate(keys)}
        pairs = [(number[s], number[t]) for s, t in joins]
        layout = layout_layers(
            [self._size(key) for key in keys], pairs, fast=len(self.items) > CAREFUL_LAYOUT_ITEMS
        )
        lift = ROW_GAP if ports else 0.0
        for key, (x, y), size in zip(keys, layout.corners, map(self._size, keys), strict=True):
            level.place[key] = Box(x, y - lift, *size)
        for (s, t), points in layout.routes.items():
            level.routes[keys[s], keys[t]] = tuple((x, y - lift) for x, y in points)
        level.width = layout.width
        level.height = layout.height - lift - (ROW_GAP if leaving else 0.0)

    def _size(self, key: Key) -> tuple[float, float]:
        kind, i, _ = key
        if kind in ("top", "bottom", "in", "out"):
            return (8.0, 0.0)
        item = self.items[i]
        if kind == "stub":
            return (min(26 + NOTE_WIDTH * len(item.label), 160.0), STUB_HEIGHT)
        if item.open:
            level = self.levels[i]
            title = 60 + LABEL_WIDTH * len(item.label)
            return (max(level.width, min(title, WIDEST)) + 2 * MARGIN, level.height + TITLE + MARGIN)
        return box_size(item)

    def _place_level(self, owner: int, left: float, top: float) -> None:
        """Make the positions of a level whose inside starts at (left, top) absolute, and add its lines."""
        level = self.levels[owner]
        for key, box in level.place.items():
            moved = Box(box.x + left, box.y + top, box.width, box.height)
            level.place[key] = moved
            if key[0] == "item":
                self.boxes[key[1]] = moved
                if self.items[key[1]].open:
                    inner = self.levels[key[1]]
                    spare = (moved.width - inner.width) / 2
                    self._place_level(key[1], moved.x + spare, moved.y + TITLE)
            elif key[0] == "stub":
                self.stubs.append(Stub(key[1], key[2], self.items[key[1]].label, moved))
        for pair, points in level.routes.items():
            level.routes[pair] = tuple((x + left, y + top) for x, y in points)
        self._add_lines(owner)

    def _add_lines(self, owner: int) -> None:
        level = self.levels[owner]
        for source, readers in level.entries.items():
            port: Key = ("in", source, 0)
            if port not in level.place:
                continue
            targets = tuple(target for reached in readers.values() for target in reached)
            entry = level.routes[TOP, port][2:]
            edge = self._frame_top(owner)
            self._add_line(source, targets, ((entry[0][0], edge), *entry), arrow=False)
            for reader, reached in readers.items():
                self._line_to(level, source, port, reader, reached)
        for (source, child), readers in level.inner.items():
            for reader, reached in readers.items():
                if (source, reader) not in level.stubs:
                    self._line_to(level, source, ("item", child, 0), reader, reached)
        for (source, reader), reached in level.stubs.items():
            self._line_to(level, source, ("stub", source, reader), reader, reached)
        for source, (child, reached) in level.exits.items():
            points = level.routes[("item", child, 0), ("out", source, 0)]
            leaving = level.routes[("out", source, 0), BOTTOM][:-2]
            frame = self.boxes[owner]
            assert frame is not None
            points = self._from_port(source, child, points)
            end = (leaving[-1][0], frame.y + frame.height)
            self._add_line(source, tuple(reached), (*points, *leaving, end), arrow=False)

    def _frame_top(self, owner: int) -> float:
        frame = self.boxes[owner]
        assert frame is not None
        return frame.y

    def _line_to(self, level: _Level, source: int, start: Key, reader: int, targets: list[int]) -> None:
        """Add the line from a box, port or stub of a level to one of its children, through the ports of open items."""
        points = level.routes[start, ("item", reader, 0)]
        if start[0] == "item":
            points = self._from_port(source, start[1], points)
        inside = self.levels.get(reader)
        entered = inside is not None and ("in", source, 0) in inside.place
        if inside is not None and entered:
            points = _moved_end(points, inside.routes[TOP, ("in", source, 0)][2][0])
        self._add_line(source, tuple(targets), points, arrow=not entered)

    def _from_port(self, source: int, child: int, points: tuple[Point, ...]) -> tuple[Point, ...]:
        """The points of a line; one that leaves an open item starts at the value's port."""
        inside = self.levels.get(child)
        if inside is None or ("out", source, 0) not in inside.place:
            return points
        x = inside.routes[("out", source, 0), BOTTOM][-3][0]
        return _moved_end(points[::-1], x)[::-1]

    def _add_line(
        self, source: int, targets: tuple[int, ...], points: tuple[Point, ...], *, arrow: bool
    ) -> None:
        self.lines.append(Line(source, targets, tuple(dict.fromkeys(points)), arrow))


def _moved_end(points: tuple[Point, ...], x: float) -> tuple[Point, ...]:
    """The route with its last two points, which are in the last row, moved to x."""
    return (*points[:-2], *((x, y) for _, y in points[-2:]))


def box_size(item: ViewItem) -> tuple[float, float]:
    """Width and height of a closed item: as wide as its texts, from NARROWEST to WIDEST."""
    text = max(LABEL_WIDTH * len(item.label), NOTE_WIDTH * len(item.note)) + 24
    return (min(max(text, NARROWEST), WIDEST), 42.0 if item.note else 28.0)
