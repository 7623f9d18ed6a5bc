"""Traces of several models at the same moments."""

import pytest

from torchsplit_core.tables.traces.joint_demand import read_joint_demand
from torchsplit_core.values import InputFault


def trace(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_a_column_of_each_model_and_others_beside_them(tmp_path):
    path = trace(tmp_path, "time_s,other,bert,ocr\n0,9,1,2.5\n600,9,0,3\n1200,9,4,1e2\n3000,9,4,4\n")
    demand = read_joint_demand(path, ["ocr", "bert"])
    assert demand.times_s == (0.0, 600.0, 1200.0, 3000.0)
    assert demand.rates == {"ocr": (2.5, 3.0, 100.0, 4.0), "bert": (1.0, 0.0, 4.0, 4.0)}
    assert demand.gaps == 1


@pytest.mark.parametrize(
    ("text", "where", "problem"),
    [
        ("bert,ocr\n1,2\n", "header", "has no column 'time_s'"),
        ("time_s,bert\n0,2\n", "header", "has no column 'ocr'"),
        ("time_s,bert,ocr,bert\n0,1,2,3\n", "header", "names 'bert' twice"),
        ("time_s,bert,ocr\n", "trace.csv", "has a header and no rows"),
        ("time_s,bert,ocr\n0,1,2\n0,1,2\n", "line 3, time_s", "is 0, and the row above has 0"),
        ("time_s,bert,ocr\n600,1,2\n0,1,2\n", "line 3, time_s", "is 0, and the row above has 600"),
        ("time_s,bert,ocr\n0,1,\n", "line 2, ocr", "is empty"),
        ("time_s,bert,ocr\n0,-1,2\n", "line 2, bert", "is -1, below the least value 0"),
        ("time_s,bert,ocr\n0,many,2\n", "line 2, bert", "is 'many', not a number"),
        ("time_s,bert,ocr\n0,nan,2\n", "line 2, bert", "is nan, not a finite number"),
        ("", "trace.csv", "is empty"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, text, where, problem):
    with pytest.raises(InputFault) as caught:
        read_joint_demand(trace(tmp_path, text), ["bert", "ocr"])
    assert caught.value.where.endswith(where) and problem in caught.value.problem


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputFault, match="cannot be read"):
        read_joint_demand(tmp_path / "none.csv", ["bert"])
