"""Logarithmic axes: how many labels are asked for."""

from app.charts.theme import log_axis


def test_an_axis_with_values_of_its_own_labels_those():
    axis = log_axis("batch size", "dark", [1, 2, 64], at=[1, 2, 64])
    assert axis["tickvals"] == [1, 2, 64] and "nticks" not in axis and axis["type"] == "log"
    assert (
        log_axis("ms", "light", [])["nticks"] == log_axis("ms", "light", [0.0, -1.0, float("inf")])["nticks"]
    )
    assert log_axis("ms", "light", [0.0, 1, 1000]) == log_axis("ms", "light", [1, 1000])
