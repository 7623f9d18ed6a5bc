"""Moments of a trace as joint samples: only those at which every model has a value."""

import pytest

from torchsplit_core.tables.demand_trace.joint_moments import joint_moments
from torchsplit_core.tables.demand_trace.trace_csv import read_demand_trace
from torchsplit_core.values import InputFault

TEXT = "time_s,other,bert,ocr\n0,9,1,2.5\n600,,0,3\n1200,9,,1e2\n3000,9,4,4\n"


def test_only_moments_of_all_models_count_and_a_zero_is_a_value():
    moments = joint_moments(read_demand_trace(TEXT), ["ocr", "bert"])
    assert moments.rates == {"ocr": (2.5, 3.0, 4.0), "bert": (1.0, 0.0, 4.0)}
    # One empty cell, and two moments without a row.
    assert moments.left_out == 3


@pytest.mark.parametrize(
    ("text", "models", "problem"),
    [
        (TEXT, ["bert", "resnet"], "has no column 'resnet'"),
        (
            "time_s,bert,ocr\n0,1,\n600,,2\n",
            ["bert", "ocr"],
            "has no moment at which bert, ocr all have a value",
        ),
    ],
)
def test_a_model_without_a_column_and_a_trace_without_a_joint_moment_are_refused(text, models, problem):
    with pytest.raises(InputFault, match=problem):
        joint_moments(read_demand_trace(text), models)
