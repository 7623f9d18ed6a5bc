"""Layered layout of one level: readers are below the boxes they read; lines bend only between rows.

fast-sugiyama assigns the layers and the order within them. This module computes the coordinates, because boxes differ
in size: row by row, boxes move towards their neighbours as far as the row has room (an isotonic regression, exact for
one row), in a few sweeps down and up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fast_sugiyama import from_edges

SIDE_GAP = 22.0
LINE_GAP = 12.0
ROW_GAP = 30.0
SWEEPS = 4
EXACT_RANKS = 300
"""Most boxes whose layers minimise the total length of lines; with more, the longest path assigns them."""
LINE_PULL = 4.0
"""Weight between two bends of a line, where two boxes have 1, so that long lines run straight."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class LayeredLayout:
    """Top left corners of the boxes, the total size, and a route for each edge.

    A route runs from the middle of the source's lower edge to the middle of the target's upper edge (upwards: from the
    upper to the lower edge). It has two points in every row it touches: at the edge of the box and of its row, or where
    it enters and leaves the row.
    """

    corners: tuple[Point, ...]
    width: float
    height: float
    routes: dict[tuple[int, int], tuple[Point, ...]]


def layout_layers(
    sizes: Sequence[tuple[float, float]], edges: Iterable[tuple[int, int]], *, fast: bool = False
) -> LayeredLayout:
    """Place boxes of (width, height), given in execution order; `edges` are pairs of their indices.

    A line from a later box to an earlier one runs upwards; closed modules that execute alternately have such lines.
    `fast` is for very many boxes: it takes a third of the time and gives every box the room of the widest.
    """
    given = dict.fromkeys((s, t) for s, t in edges if s != t)
    # fast-sugiyama may not terminate on a cycle; edges directed by the order of the boxes have none.
    pairs = list(dict.fromkeys((min(pair), max(pair)) for pair in given))
    corners: list[Point] = [(0.0, 0.0)] * len(sizes)
    routes: dict[tuple[int, int], tuple[Point, ...]] = {}
    right = height = width = 0.0
    for connected in _connected_components(pairs):
        spacing = max(sizes[i][0] for pair in connected for i in pair) + SIDE_GAP
        rows, lines, centres = _assign_layers(connected, spacing, fast=fast)
        part = _Component(sizes, rows, lines)
        if fast:
            part.use_centres(centres)
        else:
            part.position_boxes()
        for i, (x, y) in part.corners().items():
            corners[i] = (x + right, y)
        part.add_routes(right, routes)
        width, height = right + part.width, max(height, part.height)
        right = width + 2 * SIDE_GAP
    routes = {(s, t): routes[s, t] if s < t else tuple(reversed(routes[t, s])) for s, t in given}
    for i in sorted(set(range(len(sizes))) - {end for pair in pairs for end in pair}):
        corners[i] = (right, 0.0)
        width, height = right + sizes[i][0], max(height, sizes[i][1])
        right = width + SIDE_GAP
    return LayeredLayout(tuple(corners), width, height, routes)


def _assign_layers(
    part: list[tuple[int, int]], spacing: float, *, fast: bool
) -> tuple[list[list[int]], list[tuple[int, int]], dict[int, float]]:
    """Rows of a connected component from the top, its line segments, and centres `spacing` apart, as for equal boxes.

    Negative numbers are bends of lines.
    """
    boxes = list(dict.fromkeys(end for pair in part for end in pair))
    number = {box: i for i, box in enumerate(boxes)}
    exact = len(boxes) <= EXACT_RANKS and not fast

    def name(i: int) -> int:
        return boxes[i] if i < len(boxes) else -1 - i

    # Boxes of one component are numbered from 0, since fast-sugiyama numbers the bends after the last box.
    ((positions, _, _, lines),) = from_edges(
        [(number[s], number[t]) for s, t in part],
        vertex_spacing=spacing,
        dummy_vertices=True,
        ranking_type="minimize" if exact else "up",
        crossing_minimization="median",
        transpose=exact,
    )
    rows: dict[float, list[tuple[float, int]]] = {}
    for i, (x, y) in positions:
        rows.setdefault(-y, []).append((x, name(int(i))))
    return (
        [[box for _, box in sorted(rows[y])] for y in sorted(rows)],
        [(name(int(s)), name(int(t))) for s, t in lines or ()],
        {name(int(i)): float(x) for i, (x, _) in positions},
    )


def _connected_components(pairs: Iterable[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """The pairs grouped by connected component, components in the order of their first pair."""
    leader: dict[int, int] = {}

    def find(box: int) -> int:
        while leader.setdefault(box, box) != box:
            leader[box] = leader[leader[box]]
            box = leader[box]
        return box

    pairs = list(pairs)
    for s, t in pairs:
        leader[find(t)] = find(s)
    parts: dict[int, list[tuple[int, int]]] = {}
    for pair in pairs:
        parts.setdefault(find(pair[0]), []).append(pair)
    return list(parts.values())


class _Component:
    """A connected component: rows of boxes and bends, with their centres `x`."""

    def __init__(
        self, sizes: Sequence[tuple[float, float]], rows: list[list[int]], lines: list[tuple[int, int]]
    ) -> None:
        self.sizes, self.rows, self.lines = sizes, rows, lines
        self.x: dict[int, float] = {}
        # The position of a box if its row were packed from 0 on.
        self.offset: dict[int, float] = {}
        self.row_of = {box: r for r, row in enumerate(rows) for box in row}
        heights = [max((sizes[box][1] for box in row if box >= 0), default=0.0) for row in rows]
        self.tops: list[float] = []
        top = 0.0
        for row_height in heights:
            self.tops.append(top)
            top += row_height + ROW_GAP
        self.bottoms = [top + height for top, height in zip(self.tops, heights, strict=True)]
        self.height = self.bottoms[-1]
        self.width = 0.0

    def use_centres(self, centres: dict[int, float]) -> None:
        """Take the centres that fast-sugiyama computed for equal boxes."""
        self.x = centres
        self._shift_to_zero()

    def position_boxes(self) -> None:
        """Compute the centres of all boxes and bends: SWEEPS times move each row towards its neighbours."""
        self.above: dict[int, list[tuple[int, float]]] = {box: [] for box in self.row_of}
        self.below: dict[int, list[tuple[int, float]]] = {box: [] for box in self.row_of}
        for s, t in self.lines:
            upper, lower = (s, t) if self.row_of[s] < self.row_of[t] else (t, s)
            pull = LINE_PULL if s < 0 and t < 0 else 2.0 if s < 0 or t < 0 else 1.0
            self.below[upper].append((lower, pull))
            self.above[lower].append((upper, pull))
        for row in self.rows:
            at = 0.0
            for i, box in enumerate(row):
                at += self._min_distance(row[i - 1], box) if i else 0.0
                self.x[box] = self.offset[box] = at
        for _ in range(SWEEPS):
            for row in self.rows[1:]:
                self._relax_row(row, (self.above,))
            for row in reversed(self.rows[:-1]):
                self._relax_row(row, (self.below,))
        for row in self.rows:
            self._relax_row(row, (self.above, self.below))
        self._shift_to_zero()

    def _shift_to_zero(self) -> None:
        """Shift everything so that the left edge is at 0, and set the width."""
        left = min(self.x[box] - self._width(box) / 2 for box in self.x)
        for box in self.x:
            self.x[box] -= left
        self.width = max(self.x[box] + self._width(box) / 2 for box in self.x)

    def corners(self) -> dict[int, Point]:
        """Top left corners of the boxes, each centred vertically in its row."""
        top_left = {}
        for r, row in enumerate(self.rows):
            for box in row:
                if box >= 0:
                    spare = self.bottoms[r] - self.tops[r] - self.sizes[box][1]
                    top_left[box] = (self.x[box] - self.sizes[box][0] / 2, self.tops[r] + spare / 2)
        return top_left

    def add_routes(self, right: float, routes: dict[tuple[int, int], tuple[Point, ...]]) -> None:
        """Add the routes of the component's lines, shifted to the right by `right`."""
        after: dict[int, int] = {s: t for s, t in self.lines if s < 0}
        for source, first in self.lines:
            if source < 0:
                continue
            chain = [source, first]
            while chain[-1] < 0:
                chain.append(after[chain[-1]])
            routes[source, chain[-1]] = tuple((x + right, y) for x, y in self._points(chain))

    def _points(self, chain: list[int]) -> list[Point]:
        """The points of a line down (or up) through its rows: vertical inside a row, so that it never crosses a box."""
        sign = 1 if self.row_of[chain[-1]] > self.row_of[chain[0]] else -1
        points: list[Point] = []
        for index, box in enumerate(chain):
            x, row = self.x[box], self.row_of[box]
            near, far = (self.tops[row], self.bottoms[row])[::sign]
            spare = sign * (self.bottoms[row] - self.tops[row] - self._height(box)) / 2
            if box < 0:
                points += [(x, near), (x, far)]
            elif not index:
                points += [(x, far - spare), (x, far)]
            else:
                points += [(x, near), (x, near + spare)]
        return points

    def _relax_row(self, row: list[int], pulls: Sequence[dict[int, list[tuple[int, float]]]]) -> None:
        """Move the boxes of a row towards their neighbours; keeps the order and the least distances."""
        x, offset = self.x, self.offset
        wanted: list[float] = []
        weights: list[float] = []
        for box in row:
            moment = total = 0.0
            for neighbours in pulls:
                for other, pull in neighbours[box]:
                    moment += x[other] * pull
                    total += pull
            wanted.append((moment / total if total else x[box]) - offset[box])
            weights.append(total or 0.1)
        for box, settled in zip(row, _isotonic(wanted, weights), strict=True):
            x[box] = settled + offset[box]

    def _width(self, box: int) -> float:
        return self.sizes[box][0] if box >= 0 else 0.0

    def _height(self, box: int) -> float:
        return self.sizes[box][1] if box >= 0 else 0.0

    def _min_distance(self, left: int, right: int) -> float:
        """The least distance between the centres of two adjacent boxes."""
        gap = SIDE_GAP if left >= 0 and right >= 0 else LINE_GAP
        return (self._width(left) + self._width(right)) / 2 + gap


def _isotonic(wanted: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing values with the least weighted squared distance to `wanted` (pool adjacent violators)."""
    if len(wanted) == 1:
        return list(wanted)
    means: list[float] = []
    sums: list[float] = []
    counts: list[int] = []
    for value, weight in zip(wanted, weights, strict=True):
        count = 1
        while means and means[-1] > value:
            value = (value * weight + means[-1] * sums[-1]) / (weight + sums[-1])
            weight += sums.pop()
            count += counts.pop()
            means.pop()
        means.append(value)
        sums.append(weight)
        counts.append(count)
    return [mean for mean, count in zip(means, counts, strict=True) for _ in range(count)]
