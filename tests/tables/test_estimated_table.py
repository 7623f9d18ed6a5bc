"""The tables of `torchsplit estimate`: the query comes back as it was, with figures that make sense."""

import csv
import io
import json
from dataclasses import replace

import pytest

from torchsplit_core.profiling.library import measured_library
from torchsplit_core.tables import write_profile_csv
from torchsplit_core.tables.estimated_table import ESTIMATE_COLUMNS, EstimatedTable, estimate_table
from torchsplit_core.values import InputFault, Profile, ProfileFailure, ProfileRow

HEADER = "model,compute_slices,batch_size,processes,throughput_rps,latency_ms"
QUERY = "model,compute_slices,batch_size,processes"


def lines_of(keep: bool, *models: str) -> list[str]:
    """Every other library row of single processes: the even ones, or the odd ones."""
    rows = [row for row in measured_library() if row.model in models and row.processes == 1]
    return [
        f"{row.model},{row.compute_slices},{row.batch_size},1,{row.throughput_rps},{row.latency_ms}"
        for place, row in enumerate(rows)
        if (place % 2 == 0) == keep
    ]


MEASURED = "\n".join([HEADER, *lines_of(True, "resnet50", "bert")])
HELD_OUT = lines_of(False, "resnet50", "bert")


def records(table: EstimatedTable) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table.csv_text())))


def test_a_split_of_the_library_is_predicted_in_order_with_an_interval_around_each():
    asked = [line.rsplit(",", 2)[0] for line in HELD_OUT]
    table = estimate_table(MEASURED, "\n".join([QUERY, *asked]))
    assert table.csv_text().splitlines()[0] == f"{QUERY},{','.join(ESTIMATE_COLUMNS)}"
    assert [",".join(list(row.values())[:4]) for row in records(table)] == asked
    errors = []
    for row, line in zip(records(table), HELD_OUT, strict=True):
        truth = float(line.split(",")[4])
        assert row["basis"] == "estimated"
        assert 0 < float(row["low_rps"]) <= float(row["throughput_rps"]) <= float(row["high_rps"])
        assert float(row["latency_ms"]) > 0
        errors.append(abs(float(row["throughput_rps"]) / truth - 1))
    assert sorted(errors)[len(errors) // 2] < 0.05
    assert set(table.errors) == {"resnet50", "bert"}
    assert "0 measured, 0 out of memory" in table.summary
    assert "leave-one-out error of the measured rows: median" in table.summary


def test_a_query_with_its_own_figures_keeps_them_beside_and_is_judged_by_them():
    table = estimate_table(MEASURED, "\n".join([HEADER, *HELD_OUT]))
    assert table.header == (*QUERY.split(","), "given_throughput_rps", "given_latency_ms")
    without = estimate_table(MEASURED, "\n".join([QUERY, *(line.rsplit(",", 2)[0] for line in HELD_OUT)]))
    assert without.query_errors is None
    assert table.estimates == without.estimates
    assert table.query_errors is not None and table.query_errors.rows == len(HELD_OUT)
    assert table.query_errors.inside_interval > 0.6 * len(HELD_OUT)
    assert "against the query's own throughputs" in table.summary
    with pytest.raises(InputFault, match="has both latency_ms and given_latency_ms"):
        estimate_table(MEASURED, f"{HEADER},given_latency_ms\n{HELD_OUT[0]},1\n")


def test_measured_rows_are_answered_with_their_own_figures_and_extra_columns_stay():
    row = MEASURED.splitlines()[1].split(",")
    query = f"id;{QUERY.replace(',', ';')};note\n007;{';'.join(row[:4])};mine, yes\n"
    (read,) = records(estimate_table(MEASURED, query))
    assert (read["id"], read["note"], read["basis"]) == ("007", "mine, yes", "measured")
    assert float(read["throughput_rps"]) == float(row[4])
    assert float(read["latency_ms"]) == float(row[5])


def test_zero_is_out_of_memory_and_rules_out_what_needs_no_less():
    ran = "m,1,1,1,100,10\nm,1,2,1,150,13.3\nm,1,4,1,200,20\nm,7,1,1,400,2.5\nm,7,64,1,900,71"
    measured = f"{HEADER}\n{ran}\nm,1,64,1,0,\n"
    table = estimate_table(measured, f"{QUERY}\nm,1,64,1\nm,1,128,2\nm,1,32,1\nm,7,128,1\n")
    read = records(table)
    assert [row["basis"] for row in read] == ["out_of_memory", "out_of_memory", "estimated", "estimated"]
    for row in read[:2]:
        assert [float(row[name]) for name in ("throughput_rps", "low_rps", "high_rps")] == [0, 0, 0]
        assert row["latency_ms"] == ""
    assert "2 out of memory" in table.summary


def test_json_has_the_same_rows_with_numbers():
    table = estimate_table(MEASURED, f"{QUERY}\nbert,3,8,1\n")
    (row,) = json.loads(table.json_text())
    assert row["model"] == "bert" and row["batch_size"] == "8"
    assert row["low_rps"] <= row["throughput_rps"] <= row["high_rps"]
    assert f"{row['throughput_rps']:.9g}" == records(table)[0]["throughput_rps"]


def test_an_exported_profile_is_a_measured_table_without_its_estimates():
    base = ProfileRow("whole", "A100-80GB", "1g.10gb", 1, 1, 100.0, 10.0, None, None, None, "measured")
    profile = Profile(
        "library:m",
        "",
        {},
        (
            base,
            replace(base, batch_size=8, throughput_rps=300.0),
            replace(base, batch_size=32, throughput_rps=9999.0, basis="estimated"),
        ),
        (),
        (
            ProfileFailure("whole", "A100-80GB", "1g.10gb", 64, 1, "out_of_memory", "no room"),
            ProfileFailure("whole", "A100-80GB", "1g.10gb", 2, 1, "crashed", "bang"),
        ),
    )
    table = estimate_table(
        write_profile_csv([profile]), "model,profile,batch_size\nm,1g.10gb,64\nm,1g,32\nm,1,4\n"
    )
    assert [estimate.basis for estimate in table.estimates] == ["out_of_memory", "estimated", "estimated"]
    assert table.estimates[1].throughput_rps < 1000
    assert any("2 rows are no measurements" in note for note in table.notes)


def test_several_gpu_types_are_kept_apart():
    measured = (
        f"gpu_type,{HEADER}\n"
        "A30-24GB,m,1,1,1,50,20\nA30-24GB,m,1,8,1,100,80\nA100-80GB,m,1,1,1,100,10\nA100-80GB,m,1,8,1,200,40\n"
    )
    query = f"gpu_type,{QUERY}\nA30-24GB,m,1,1,1\nA100-80GB,m,1,1,1\n"
    assert [estimate.throughput_rps for estimate in estimate_table(measured, query).estimates] == [50, 100]
    with pytest.raises(InputFault, match="Add the column gpu_type"):
        estimate_table(measured, f"{QUERY}\nm,1,1,1\n")
    one = "\n".join(measured.splitlines()[:3])
    assert estimate_table(one, f"{QUERY}\nm,1,1,1\n").estimates[0].throughput_rps == 50
    with pytest.raises(InputFault, match="is 'A100-80GB', but every measured row is of A30-24GB"):
        estimate_table(one, f"gpu_type,{QUERY}\nA100-80GB,m,1,1,1\n")


@pytest.mark.parametrize(("query", "words"), [
    (f"{QUERY}\nresnet,1,1,1\n",
     "line 2, model: is 'resnet', of which no row was measured. Did you mean resnet50?"),
    (f"{QUERY}\nbert,1,1,1\nbert,x,1,1\nbert,1,0,1\n", "2 of 3 rows"),
    (f"{QUERY}\nbert,,1,1\n", "Give the slice"),
    (f"{QUERY}\n", "has a header but no rows"),
    ("model,batch_size\nbert,1\n", "compute_slices"),
    ("model,compute_slices\nbert,1\n", "column batch_size"),
])  # fmt: skip
def test_a_query_that_cannot_be_read_is_refused_even_when_bad_rows_may_go(query, words):
    with pytest.raises(InputFault) as caught:
        estimate_table(MEASURED, query, skip_bad=True)
    assert words in str(caught.value)
    assert "--skip-bad" not in str(caught.value)


@pytest.mark.parametrize("cell", ["", "-1", "nan", "inf", "fast"])
def test_bad_measured_rows_are_named_or_left_out(cell):
    bad = f"{MEASURED}\nbert,1,1,1,{cell},5\n"
    with pytest.raises(InputFault, match=f"line {len(MEASURED.splitlines()) + 1}, throughput_rps"):
        estimate_table(bad, f"{QUERY}\nbert,1,1,1\n")
    kept = estimate_table(bad, f"{QUERY}\nbert,3,8,1\n", skip_bad=True)
    assert kept.estimates == estimate_table(MEASURED, f"{QUERY}\nbert,3,8,1\n").estimates


def test_a_model_that_never_ran_is_said():
    with pytest.raises(InputFault, match="is 'm', whose measured rows all ran out of memory"):
        estimate_table(f"{MEASURED}\nm,1,1,1,0,\n", f"{QUERY}\nm,1,1,1\n")
    with pytest.raises(InputFault, match="has no measured row"):
        estimate_table(f"{HEADER},basis\nm,1,1,1,5,5,estimated\n", f"{QUERY}\nm,1,1,1\n")
