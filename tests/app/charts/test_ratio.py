"""The ratio's axis: labels that never overprint each other."""

from __future__ import annotations

from itertools import pairwise
from math import log10

import pytest

from app.charts.ratio import RatioLine, ratio


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.1), (0.2, 5.0), (0.01, 100.0), (0.0005, 40000.0)])
def test_labels_of_the_axis_stand_apart(low: float, high: float) -> None:
    line = RatioLine("a", "#3f66cc", (1, 2), (low, high), (low, high), (low, high), (False, False))
    axis = ratio([line], "second ÷ first", dark=False).layout.yaxis
    shown = [tick for tick in axis.tickvals if axis.range[0] <= log10(tick) <= axis.range[1]]
    # 300 pixels; a label needs about 14 of them.
    pixels = [
        300 * log10(after / before) / (axis.range[1] - axis.range[0]) for before, after in pairwise(shown)
    ]
    assert shown and min(pixels, default=300) >= 14
    assert [float(text) for text in axis.ticktext] == list(axis.tickvals)
