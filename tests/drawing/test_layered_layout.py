"""Boxes in layers: none on another, readers below, and no line through a box."""

from itertools import combinations, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torchsplit_core.drawing.layered_layout import (
    EXACT_RANKS,
    LINE_GAP,
    ROW_GAP,
    SIDE_GAP,
    LayeredLayout,
    layout_layers,
)

Sizes = list[tuple[float, float]]
Pairs = list[tuple[int, int]]
NEAR = 1e-6


@st.composite
def levels(draw: st.DrawFn) -> tuple[Sizes, Pairs]:
    """Boxes of all sizes, flat ones too, and any pairs: cycles, self loops, duplicates, several parts."""
    sizes = draw(st.lists(
        st.tuples(
            st.sampled_from((8.0, 76.0, 131.3, 700.0)), st.sampled_from((0.0, 18.0, 28.0, 42.0, 555.5))
        ),
        min_size=1,
        max_size=14,
    ))  # fmt: skip
    place = st.integers(0, len(sizes) - 1)
    return sizes, draw(st.lists(st.tuples(place, place), max_size=30))


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    """The insides of two rectangles (left, top, right, bottom) meet; a flat one has its line as inside."""
    return all(a[i] < b[i + 2] - NEAR and b[i] < a[i + 2] - NEAR for i in (0, 1))


def rectangles(sizes: Sizes, level: LayeredLayout) -> list[tuple[float, ...]]:
    return [(x, y, x + w, y + h) for (x, y), (w, h) in zip(level.corners, sizes, strict=True)]


def check(sizes: Sizes, pairs: Pairs, *, hasty: bool = False) -> LayeredLayout:
    """All that a level promises."""
    level = layout_layers(sizes, pairs, fast=hasty)
    boxes = rectangles(sizes, level)
    assert not [
        pair for pair in combinations(range(len(boxes)), 2) if overlap(boxes[pair[0]], boxes[pair[1]])
    ]
    assert set(level.routes) == {(s, t) for s, t in pairs if s != t}
    for (s, t), points in level.routes.items():
        down = s < t
        source, target = boxes[s], boxes[t]
        assert target[1] >= source[3] - NEAR if down else source[1] >= target[3] - NEAR
        assert points[0] == pytest.approx(((source[0] + source[2]) / 2, source[3 if down else 1]))
        assert points[-1] == pytest.approx(((target[0] + target[2]) / 2, target[1 if down else 3]))
        assert points[0][0] == points[1][0] and points[-1][0] == points[-2][0]
        for (x, y), (a, b) in pairwise(points):
            assert b >= y - NEAR if down else b <= y + NEAR
            # A curve stays within the rectangle of its two ends.
            piece = (min(x, a) - 0.01, min(y, b), max(x, a) + 0.01, max(y, b))
            assert not [i for i, box in enumerate(boxes) if overlap(piece, box)]
    corners = [*((x, y) for points in level.routes.values() for x, y in points), *level.corners]
    assert min(x for x, _ in corners) == pytest.approx(0) and min(y for _, y in corners) == pytest.approx(0)
    ends = [*((x, y) for points in level.routes.values() for x, y in points), *(box[2:] for box in boxes)]
    assert level.width == pytest.approx(max(x for x, _ in ends))
    assert level.height == pytest.approx(max(y for _, y in ends))
    return level


@settings(max_examples=250, deadline=None, derandomize=True)
@given(levels(), st.booleans())
@example(([(76.0, 28.0)] * 3, [(0, 1), (1, 2), (2, 0)]), False)
@example(([(76.0, 28.0)] * 4, [(3, 0), (2, 1), (1, 1), (1, 1)]), False)
def test_any_level_keeps_its_promises_and_looks_the_same_again(level, hasty):
    sizes, pairs = level
    assert check(sizes, pairs, hasty=hasty) == layout_layers(sizes, pairs, fast=hasty)


@pytest.mark.slow
@pytest.mark.repeated
def test_a_level_of_more_boxes_than_are_ranked_exactly_keeps_them_too():
    count = EXACT_RANKS + 60
    pairs = [(i, j) for i in range(count) for j in (i + 1, i + 2 + i * 7 % 9) if j < count and i % 11]
    check([(76.0 + i % 5 * 30, 28.0 + i % 3 * 14) for i in range(count)], pairs)


def test_a_chain_is_one_straight_column():
    level = check([(80.0, 28.0), (200.0, 42.0), (120.0, 28.0)], [(0, 1), (1, 2)])
    assert (level.width, level.height) == (200.0, 98.0 + 2 * ROW_GAP)
    assert {x for points in level.routes.values() for x, _ in points} == {100.0}


def test_neighbours_keep_their_distance_and_a_passing_line_too():
    sizes = [(100.0, 28.0)] * 5
    level = check(sizes, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (0, 4)])
    boxes = rectangles(sizes, level)
    left, right = sorted((boxes[1], boxes[2]))
    assert right[0] - left[2] >= SIDE_GAP - NEAR
    for box in (boxes[1], boxes[2], boxes[3]):
        beside = [x for x, y in level.routes[0, 4] if box[1] <= y <= box[3]]
        assert beside and all(x <= box[0] - LINE_GAP + NEAR or x >= box[2] + LINE_GAP - NEAR for x in beside)


def test_a_low_box_stands_in_the_middle_of_its_row():
    level = check([(80.0, 28.0), (80.0, 28.0), (80.0, 128.0), (80.0, 28.0)], [(0, 1), (0, 2), (1, 3), (2, 3)])
    assert level.corners[1][1] == level.corners[2][1] + 50


def test_parts_that_nothing_joins_stand_side_by_side_with_the_lone_ones_last():
    level = check([(50.0, 20.0)] * 5, [(0, 4), (1, 3)])
    assert [y for _, y in level.corners] == [0, 0, 0, 20 + ROW_GAP, 20 + ROW_GAP]
    assert [x for x, _ in level.corners[:3]] == [0, 50 + 2 * SIDE_GAP, 100 + 4 * SIDE_GAP]


def test_nothing_is_a_level_of_no_size():
    assert layout_layers([], []) == LayeredLayout((), 0.0, 0.0, {})
