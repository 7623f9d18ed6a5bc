"""Rows that cannot be read: each kind is named with its line, all together, and the good ones survive."""

import pytest

from torchsplit_core.tables import read_profile_csv
from torchsplit_core.values import InputFault

HEADER = "model,compute_slices,batch_size,processes,throughput_rps,latency_ms"
GOOD = "good,7,8,1,100,80"


@pytest.mark.parametrize(("row", "column", "problem"), [
    ("m,7,8,1,,80", "throughput_rps", "empty"),
    ("m,7,8,1,n/a,80", "throughput_rps", "empty"),
    ("m,7,8,1,-5,80", "throughput_rps", "is -5, below the least value 0"),
    ("m,7,8,1,nan,80", "throughput_rps", "not a finite number"),
    ("m,7,8,1,inf,80", "throughput_rps", "not a finite number"),
    ("m,7,8,1,#DIV/0!,80", "throughput_rps", "not a finite number"),
    ("m,7,8,1,1e400,80", "throughput_rps", "beyond 1e+12"),
    ("m,7,8,1,1e13,80", "throughput_rps", "beyond 1e+12"),
    ("m,7,8,1,1e-300,80", "throughput_rps", "below the least positive value"),
    ("m,7,8,1,fast,80", "throughput_rps", "not a number"),
    ("m,7,8,1,OOM,80", "throughput_rps", "not a number"),
    ('m,7,8,1,"1,234.5",80', "throughput_rps", "thousands"),
    ('m,7,8,1,"12,5",80', "throughput_rps", "decimal comma"),
    ("m,7,8,1,100 req/s,80", "throughput_rps", "a number with a unit"),
    ("m,7,8,1,1_000,80", "throughput_rps", "is '1_000', not a number"),
    ("m,7,8,1,٣,80", "throughput_rps", "not a number"),
    ("m,7,8,1,100,0", "latency_ms", "above 0"),
    ("m,7,8,1,100,-1", "latency_ms", "above 0"),
    ("m,7,8,1,100,80ms", "latency_ms", "a number with a unit"),
    ("m,7,,1,100,80", "batch_size", "empty"),
    ("m,7,0,1,100,80", "batch_size", "below the least value 1"),
    ("m,7,2.5,1,100,80", "batch_size", "is 2.5, not a whole number"),
    ("m,7,-8,1,100,80", "batch_size", "below the least value 1"),
    ("m,7,10000000,1,100,80", "batch_size", "above the greatest value 1,000,000"),
    ("m,7,8,0,100,80", "processes", "below the least value 1"),
    ("m,,8,1,100,80", "compute_slices", "empty"),
    ("m,5,8,1,100,80", "compute_slices", "not a slice of A100-80GB"),
    ("m,big,8,1,100,80", "compute_slices", "not a slice of A100-80GB"),
    ("m,1g.6gb,8,1,100,80", "compute_slices", "not a slice of A100-80GB"),
    (",7,8,1,100,80", "model", "empty"),
    ("m" * 201 + ",7,8,1,100,80", "model", "has 201 characters, more than 200"),
    ('"m\nn",7,8,1,100,80', "model", "contains a control character"),
    ("m,7,8,1,100,80,5", "", "has 7 cells, more than the 6 of the header"),
    ("m,7", "batch_size", "empty"),
])  # fmt: skip
def test_each_kind_is_named_and_the_good_row_survives(row, column, problem):
    text = f"{HEADER}\n{GOOD}\n{row}\n"
    with pytest.raises(InputFault) as caught:
        read_profile_csv(text, origin="mine.csv")
    message = str(caught.value)
    assert message.startswith("mine.csv: 1 of 2 rows cannot be read:")
    assert f"line 3{column and f', {column}'}:" in message
    assert problem in message
    assert "--skip-bad" in message
    imported = read_profile_csv(text, skip_bad=True)
    assert [profile.source for profile in imported.profiles] == ["import:good"]
    assert [(bad.line, bad.column) for bad in imported.refused] == [(3, column)]
    assert any(note.startswith("1 of 2 rows were left out") for note in imported.notes)


@pytest.mark.parametrize(("row", "column"), [
    ("m,7,8,100,guessed,,,", "basis"), ("m,7,8,100,,101,,", "low_rps"), ("m,7,8,100,,,99,", "high_rps"),
    ("m,7,8,100,,,,-1", "memory_gib"), ("m,7,8,100,,,,nan", "memory_gib"),
])  # fmt: skip
def test_optional_cells_are_checked_too(row, column):
    header = "model,compute_slices,batch_size,throughput_rps,basis,low_rps,high_rps,memory_gib"
    with pytest.raises(InputFault, match=f"line 2, {column}"):
        read_profile_csv(f"{header}\n{row}\n")


def test_the_file_s_own_column_is_named():
    with pytest.raises(InputFault, match="line 2, QPS"):
        read_profile_csv("model,slice,bs,QPS\nm,7,8,-1\n")


def test_all_bad_rows_come_in_one_message_twenty_shown():
    rows = [f"m,7,{batch},1,-1,5" for batch in range(1, 31)]
    with pytest.raises(InputFault) as caught:
        read_profile_csv("\n".join([HEADER, GOOD, *rows]))
    message = str(caught.value)
    assert "30 of 31 rows" in message
    assert message.count("\n  line ") == 20
    assert "line 22," in message and "line 23," not in message
    assert "… and 10 more" in message


def test_a_file_of_bad_rows_alone_is_a_fault_even_when_they_may_be_left_out():
    with pytest.raises(InputFault) as caught:
        read_profile_csv(f"{HEADER}\nm,7,8,1,-1,5\n", skip_bad=True)
    assert "--skip-bad" not in str(caught.value)


@pytest.mark.parametrize("second", ["m,7,8,1,101,80", "m,7,8,1,100,81", "m,7,8,1,0,"])
def test_a_point_with_two_figures_is_refused_and_the_first_line_named(second):
    text = f"{HEADER}\nm,7,8,1,100,80\n{second}\n"
    with pytest.raises(InputFault, match="line 3: has other figures than line 2"):
        read_profile_csv(text)
    assert read_profile_csv(text, skip_bad=True).profiles[0].rows[0].throughput_rps == 100


def test_contradicting_cells_of_a_slice():
    with pytest.raises(InputFault, match=r"compute_slices: is '4', but the slice 3g\.40gb has 3"):
        read_profile_csv("model,compute_slices,profile,batch_size,throughput_rps\nm,4,3g.40gb,8,1\n")
    with pytest.raises(InputFault, match=r"is '3g\.40gb', but CPU has no known slices"):
        read_profile_csv("model,profile,batch_size,throughput_rps,gpu_type\nm,3g.40gb,8,1,CPU\n")
