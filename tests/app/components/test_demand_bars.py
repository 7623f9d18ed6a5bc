"""Bars of demand: their steps, and what of the browser's report is a value."""

import pytest

from app.components.demand_bars import drawn_values, scale_of


@pytest.mark.parametrize(
    ("largest", "step", "top"),
    [
        (0.0, 0.01, 1.0),
        (1.0, 0.01, 1.25),
        (41.8, 0.5, 52.5),
        (80.0, 1.0, 100.0),
        (161.0, 2.0, 202.0),
        (8e6, 1e5, 1e7),
    ],
)
def test_the_top_is_above_the_largest_value_and_a_step_is_a_round_number(largest, step, top):
    assert scale_of(largest) == (pytest.approx(step), pytest.approx(top))


def test_only_values_of_this_subjects_bars_count():
    values = {"0": 3, "1": 2.5, "2": -1, "3": float("nan"), "4": True, "x": 1, "9": 1}
    report = {"serial": 1, "subject": "bert", "values": values}
    assert drawn_values(report, "bert", 5) == {0: 3.0, 1: 2.5}
    assert drawn_values(report, "ocr", 5) == {} == drawn_values(None, "bert", 5)
    assert drawn_values({"subject": "bert", "values": [1]}, "bert", 5) == {}
