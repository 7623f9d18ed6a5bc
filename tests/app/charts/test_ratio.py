"""The ratio's axis: so few labels that they never overprint each other, and points that no whisker flattens."""

from math import log10

import pytest

from app.charts.ratio import REACH, RatioLine, ratio


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.1), (0.2, 5.0), (0.01, 100.0), (0.0005, 40000.0)])
def test_labels_of_the_axis_stand_apart(low, high):
    line = RatioLine("a", "#3f66cc", (1, 2), (low, high), (low, high), (low, high), (False, False))
    axis = ratio([line], "second ÷ first", dark=False).layout.yaxis
    # 300 pixels; a label needs about 14 of them.
    assert axis.type == "log" and 2 <= axis.nticks <= 300 / 14
    assert axis.range[0] < min(0.0, log10(low)) and axis.range[1] > max(0.0, log10(high))


def test_a_whisker_without_end_does_not_flatten_the_points():
    line = RatioLine("a", "#3f66cc", (1,), (2.0,), (1e-6,), (1e6,), (False,))
    axis = ratio([line], "second ÷ first", dark=False).layout.yaxis
    assert 10 ** axis.range[1] <= 2.0 * REACH * 1.2 and 10 ** axis.range[0] >= 1.0 / REACH / 1.2
