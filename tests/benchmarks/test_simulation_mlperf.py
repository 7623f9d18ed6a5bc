"""The prediction of MLPerf's Server rows: which points are taken, faults in one line, and goals on the stored rows."""

import csv
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import simulation_mlperf
from benchmarks.mlperf_front import TIMER_SLACK_MS, arrivals
from benchmarks.mlperf_prediction import LIMITS_MS, Fitted, Prediction, predict, service_of
from benchmarks.mlperf_rows import NUMBERS, TEXT, Row, own_offline, own_single, read_rows
from benchmarks.mlperf_ways import way_of
from benchmarks.simulation_mlperf import (
    COLUMNS,
    DATA,
    Judged,
    Known,
    error,
    fitted_without,
    main,
    servers,
    single_rows,
    summary,
)

SLICE = "1 x 1g.10gb"


def row(line: int, scenario: str, **cells: object) -> Row:
    """A row of a ResNet-50 on one slice; cells that are numbers count as numbers."""
    texts = {
        **dict.fromkeys(TEXT, ""),
        **{"round": "v1.0", "system": "own", "benchmark": "resnet50", "gpu": "A100-80GB", "slices": SLICE},
        "scenario": scenario,
    }
    numbers = dict.fromkeys(NUMBERS)
    for name, value in cells.items():
        if name in numbers:
            numbers[name] = value  # type: ignore[assignment]
        else:
            texts[name] = str(value)
    return Row(line, texts, numbers)


def single(line: int, **cells: object) -> Row:
    return row(line, "SingleStream", **{"p50_ms": 0.7, **cells})


def offline(line: int, **cells: object) -> Row:
    return row(line, "Offline", **{"metric": 5000.0, **cells})


SERVER = row(1, "Server", metric=3000.0)


@pytest.mark.parametrize(("rows", "line"), [
    # The own system, even of another round, before another one of the same round.
    ([single(2, system="other"), single(3), single(4, round="v1.1")], 3),
    ([single(2, system="other"), single(3, round="v1.1")], 3),
    ([single(2, system="other", round="v1.1"), single(3, system="other")], 3),
    ([single(2, system="other", round="v1.1")], 2),
    # Never another GPU, profile or benchmark, nor a row without a figure.
    ([single(2, gpu="A30")], None),
    ([single(2, slices="1 x 2g.20gb")], None),
    ([single(2, slices="full GPU x1")], None),
    ([single(2, benchmark="ssd-resnet34")], None),
    ([single(2, p50_ms=None)], None),
    ([offline(2)], None),
])  # fmt: skip
def test_the_nearest_single_stream_row_is_taken(rows, line):
    found = own_single(SERVER, rows)
    assert (found.line if found else None) == line


def test_an_accuracy_target_is_crossed_only_where_there_is_none_of_its_own():
    server = row(1, "Server", benchmark="bert-99.9", metric=100.0)
    other, far = single(2, benchmark="bert-99"), single(3, benchmark="bert-99.9", system="x", round="v9")
    assert own_single(server, [other, far]) is far
    assert own_single(server, [other]) is other


def test_of_several_the_name_decides_word_by_word():
    server = row(1, "Server", system="M_TRT_Hetero", metric=1.0)
    rows = [single(2, system="M_TRT_Triton"), single(3, system="M_TRT")]
    found = own_single(server, rows)
    assert found is rows[1]


def test_an_offline_row_of_many_slices_counts_for_one():
    server = row(1, "Server", slices="28 x 1g.10gb", metric=28 * 3000.0)
    rows = [single(2), offline(3, slices="28 x 1g.10gb", metric=28 * 5000.0)]
    service = service_of(server, rows, way_of(server), Fitted())
    assert own_offline(server, rows) is rows[1]
    assert service is not None
    assert service.per_request_ms == pytest.approx(0.2)
    assert service.floor_ms == pytest.approx(0.5)


def test_loaded_neighbours_slow_a_row_of_idle_ones_once():
    """Offline was measured beside them, SingleStream was not."""
    server = row(1, "Server", system="own_HeteroMultiUse", gpu="A30", slices="1 x 1g.6gb", metric=1000.0)
    place = {"gpu": "A30", "slices": "1 x 1g.6gb"}
    rows = [single(2, **place), offline(3, system="own_HeteroMultiUse", **place)]
    service = service_of(server, rows, way_of(server), Fitted())
    assert service is not None
    assert service.per_request_ms == pytest.approx(0.2)
    assert service.batch_ms(1) == pytest.approx(0.7 / 0.91)


def test_the_own_configuration_stands_before_the_usual_one():
    usual = way_of(row(1, "Server"))
    assert (usual.max_batch, usual.wait_us, usual.streams) == (8, 1000, 1)
    own = way_of(row(1, "Server", max_batch=4.0, queue_delay_us=10.0, streams=3.0))
    assert (own.max_batch, own.wait_us, own.streams) == (4, 10, 3)


@pytest.mark.parametrize(("server", "rows", "why"), [
    (SERVER, [single(2)], "no SingleStream or Offline"),
    (SERVER, [offline(2)], "no SingleStream or Offline"),
    (row(1, "Server"), [single(2), offline(3)], "no rate"),
    (row(1, "Server", metric=3000.0, slices="some"), [single(2), offline(3)], "unreadable"),
    (row(1, "Server", metric=6000.0), [single(2), offline(3)], "more than"),
])  # fmt: skip
def test_without_points_or_above_them_nothing_is_predicted(server, rows, why):
    prediction = predict(server, rows, requests=1000)
    assert prediction.times_ms is None
    assert why in prediction.missing


def test_a_slice_that_carried_its_rate_is_predicted_where_its_points_say_hardly():
    rows = [single(2), offline(3)]
    times = [
        predict(row(1, "Server", metric=rate), rows, requests=20_000).times_ms
        for rate in (3400.0, 3650.0, 3950.0)
    ]
    assert all(time is not None for time in times)
    known = [time[1] for time in times if time is not None]
    # What is carried at 0.95 of it waits, but not without end.
    assert known[0] < known[1] < 10 * known[0] and known[2] < 1.5 * known[1]
    whole = row(1, "Server", metric=56 * 4990.0, slices="56 x 1g.10gb")
    assert "more than" in predict(whole, rows, requests=1000).missing


@pytest.mark.parametrize("limit", [None, 12.0])
def test_a_slice_whose_result_is_valid_kept_its_limit(limit):
    """By its points it would have a p99 of 52 ms; 15 ms are the benchmark's where the row tells none."""
    server = row(1, "Server", metric=3750.0, target_latency_ms=limit)
    found = predict(server, [single(2), offline(3)], requests=20_000).times_ms
    assert found is not None
    kept = limit or LIMITS_MS["resnet50"]
    assert 0.85 * kept < found[2] <= kept


BERT: Mapping[str, object] = {"benchmark": "bert-99.9", "slices": "56 x 1g.10gb"}
FRONT = row(1, "Server", system="M_TRT_Triton", metric=9300.0, **BERT)


def test_a_configuration_that_no_slice_could_keep_the_limit_with_is_not_the_rows():
    rows = [offline(2, system="M_TRT_Triton", metric=12_500.0, **BERT)]
    wrong = replace(FRONT, numbers={**FRONT.numbers, "max_batch": 32.0})
    right = replace(FRONT, numbers={**FRONT.numbers, "max_batch": 8.0})
    assert way_of(wrong).max_batch == 32
    assert predict(wrong, rows, requests=5000) == predict(right, rows, requests=5000)


def test_bert_is_predicted_from_offline_alone():
    """Another engine than Server's answers SingleStream."""
    server = row(1, "Server", benchmark="bert-99", metric=300.0)
    rows = [offline(2, benchmark="bert-99", metric=500.0)]
    service = service_of(server, rows, way_of(server), Fitted(launch_ms=1.0, unfilled=0.5))
    assert service is not None
    assert (service.floor_ms, service.per_request_ms) == (pytest.approx(2.0), pytest.approx(2.0))


@pytest.mark.parametrize(("round_", "system", "benchmark", "gpu", "batch", "soft_drop"), [
    ("v1.1", "A30-MIG_TRT", "bert-99", "A30", 10, 0.99),
    ("v2.0", "A30-MIG_TRT", "bert-99.9", "A30", 12, 0.993),
    ("v2.0", "A30-MIG_TRT_Triton", "bert-99.9", "A30", 6, 1.0),
    ("v2.0", "A100-PCIe-MIG_TRT", "bert-99", "A100-80GB", 16, 0.99),
    ("v3.0", "NC96ads_A100_v4_MIG_TRT", "bert-99", "A100-80GB", 32, 1.0),
    ("v1.1", "R750xa_MIG_TRT_Triton", "bert-99", "A100-80GB", 8, 1.0),
])  # fmt: skip
def test_what_a_row_does_not_say_is_of_its_submitters_files(round_, system, benchmark, gpu, batch, soft_drop):
    slices = "32 x 1g.6gb" if "Triton" in system else SLICE
    texts = {"system": system, "benchmark": benchmark, "gpu": gpu, "slices": slices}
    way = way_of(row(1, "Server", metric=1.0, **{"round": round_, **texts}))
    assert (way.max_batch, way.soft_drop) == (batch, soft_drop)


@pytest.mark.parametrize(("texts", "wait_us", "streams"), [
    ({"benchmark": "bert-99", "streams": 2.0, "queue_delay_us": 1000.0}, 1e6, 1),
    ({"benchmark": "ssd-resnet34"}, 1e6, 2),
    ({"benchmark": "ssd-resnet34", "gpu": "A30"}, 1e6, 4),
    ({"benchmark": "resnet50", "queue_delay_us": 10.0}, 10.0, 1),
    ({"benchmark": "resnet50", "queue_delay_us": 200.0, "round": "v2.0"}, 1e6, 1),
])  # fmt: skip
def test_triton_waits_for_full_batches_unless_it_is_told_a_delay(texts, wait_us, streams):
    way = way_of(row(1, "Server", **{"system": "M_TRT_Triton", "slices": "56 x 1g.10gb", **texts}))
    assert (way.wait_us, way.streams, way.front) == (wait_us, streams, True)


@pytest.mark.parametrize(("slices", "calls"), [(1, 4), (7, 4), (56, 12)])
def test_the_front_gives_each_slice_its_share_in_turns(slices, calls):
    rate = 10.0
    due, reached = arrivals(40_000, rate, slices, calls, np.random.default_rng(3))
    assert len(due) == len(reached) >= 40_000
    assert len(due) / reached[-1] == pytest.approx(rate / slices, rel=0.03)
    late = reached - due
    assert late.min() >= 0
    assert late.max() == pytest.approx(TIMER_SLACK_MS)
    # A call takes what falls due in the slack after its first: on the average half a request at 10 a ms.
    times, sizes = np.unique(reached, return_counts=True)
    assert sizes.mean() == pytest.approx(1.5, rel=0.02)
    # Within a turn calls follow at the rate of all, between turns those of the other slices lie.
    gaps = np.diff(times)
    assert gaps[np.arange(len(gaps)) % calls != calls - 1].mean() == pytest.approx(0.15, rel=0.03)
    between = gaps[calls - 1 :: calls].mean()
    assert between == pytest.approx(0.15 * (1 + (slices - 1) * calls), rel=0.05)


def test_columns_that_say_how_it_was_served_or_measured_may_be_missing(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(
        "round,system,benchmark,scenario,gpu,slices,metric\n"
        "v9,s,resnet50,Server,B200,1 x 1g.23gb,3000\n"
        "v9,s,resnet50,SingleStream,B200,1 x 1g.23gb,700000\n"
        "v9,s,resnet50,Offline,B200,1 x 1g.23gb,5000\n",
        encoding="utf-8",
    )
    _, _, rows = read_rows(path)
    assert predict(rows[0], rows, requests=1000).times_ms is not None


def test_a_prediction_does_not_look_at_what_was_measured():
    rows = [single(2), offline(3)]
    told = row(1, "Server", metric=3000.0, p50_ms=99.0, p95_ms=999.0, p99_ms=9999.0)
    assert predict(told, rows, requests=2000) == predict(SERVER, rows, requests=2000)


@pytest.mark.repeated
@pytest.mark.slow
def test_the_stored_rows_meet_the_goals():
    """80 % of ResNet-50 and SSD within 15 %, 65 % of BERT; whole servers nearly as single slices."""
    _, _, rows = read_rows(DATA)
    within = {}
    for server in servers(rows):
        if server.place is None or server.family in ("dlrm", "rnnt"):
            continue
        found = error(server, predict(server, rows, requests=30_000), 95)
        many = "GPUs" if server.place[1] == "full GPU" else "slices" if server.place[0] > 1 else "slice"
        kind = ("bert" if server.family == "bert" else "images", many)
        within.setdefault(kind, []).append(found is not None and abs(found) <= 0.15)
    assert {kind: len(of) for kind, of in within.items()} == {
        ("bert", "slice"): 6, ("bert", "slices"): 8, ("bert", "GPUs"): 16, ("images", "slice"): 6,
        ("images", "slices"): 9,
    }  # fmt: skip
    assert sum(within.pop(("bert", "GPUs"))) >= 10
    for (family, many), of in within.items():
        assert sum(of) / len(of) >= (0.65 if family == "bert" else 0.75 if many == "slices" else 0.8), many


def test_what_is_left_out_plays_no_part_in_the_fit(monkeypatch):
    for name, values in (("LAUNCHES_MS", (0.5, 2.0)), ("UNFILLED", (0.7, 2.0)), ("BERT_SHARES", (0.5,))):
        monkeypatch.setattr(simulation_mlperf, name, values)
    _, _, rows = read_rows(DATA)
    changed = [
        replace(one, numbers={**one.numbers, "p50_ms": 1.0, "p95_ms": 1.0}) if a30(one) else one
        for one in rows
    ]
    # Whatever rows measured plays no part in what is predicted of them.
    known = Known(rows, 1000)
    assert fitted_without(changed, a30, known) == fitted_without(rows, a30, known)
    assert fitted_without(changed, a100, known) != fitted_without(rows, a100, known)


def a30(one: Row) -> bool:
    return one.texts["gpu"] == "A30" and one.texts["scenario"] == "Server"


def a100(one: Row) -> bool:
    return one.texts["gpu"] != "A30"


def test_the_tables_tell_errors_and_what_is_missing():
    told = row(1, "Server", metric=3000.0, p50_ms=2.0, p95_ms=4.0, p99_ms=8.0)
    judged = [
        Judged(told, Prediction((2.0, 5.0, 6.0))),
        Judged(told, Prediction((1.0, 4.0, 8.0))),
        Judged(told, Prediction(None, "no points")),
    ]
    assert summary(judged, leave_out=False)[2] == "| resnet50 | 3 | 1 of 3 | 25 % | 12 % | 12 % |"
    lines = single_rows(judged)[2:]
    assert lines[0].endswith("| 3000 | 2.00 / 2.00 | 5.00 / 4.00 | 6.00 / 8.00 | +25 % |")
    assert lines[2].endswith("| n/a / 2.00 | n/a / 4.00 | n/a / 8.00 | no points |")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.simulation_mlperf", *arguments]
    return subprocess.run(command, cwd=DATA.parent.parent.parent, capture_output=True, text=True, check=False)


def test_the_output_has_every_row_and_three_columns_more(tmp_path, monkeypatch):
    out = tmp_path / "out.csv"
    monkeypatch.setattr(sys, "argv", ["x", str(DATA), "-o", str(out), "--requests", "1000"])
    assert main() == 0
    before = list(csv.DictReader(DATA.open(encoding="utf-8", newline="")))
    after = list(csv.DictReader(out.open(encoding="utf-8", newline="")))
    assert [{name: one[name] for name in before[0]} for one in after] == before
    assert tuple(after[0])[-3:] == COLUMNS
    for one in after:
        told = [one[name] for name in COLUMNS]
        if one["scenario"] != "Server" or one["benchmark"].startswith("dlrm"):
            assert told == ["", "", ""]
        elif one["slices"] == SLICE:
            assert 0 < float(told[0]) < float(told[1]) <= float(told[2])


HEAD = ",".join((*TEXT, *NUMBERS))
GOOD = "v1.0,own,resnet50,Server,A100-80GB,1 x 1g.10gb,,3000,1,1,1,1,8,1000,1,15"


@pytest.mark.parametrize(("text", "told"), [
    ("", "first line"),
    (HEAD, "has a header but no rows"),
    (HEAD.replace("metric,", "") + "\n" + GOOD, "lacks columns of mig_mlperf_dev.csv: metric"),
    (f"{HEAD},metric\n{GOOD},3", "more than once"),
    (f"{HEAD}\n{GOOD},7", "line 2"),
    (f"{HEAD}\n{GOOD[:-3]}", "line 2"),
    (f"{HEAD}\n{GOOD.replace('3000', 'fast')}", "line 2, metric"),
    (f"{HEAD}\n{GOOD.replace('3000', '-3')}", "line 2, metric"),
    (f"{HEAD}\n{GOOD.replace('3000', 'nan')}", "line 2, metric"),
    (f"{HEAD}\n{GOOD.replace(',8,', ',0,')}", "line 2, max_batch"),
    (f"{HEAD}\n{GOOD.replace(',8,', ',1.5,')}", "line 2, max_batch"),
    (f"{HEAD}\n{GOOD.replace(',8,', ',inf,')}", "line 2, max_batch"),
    (f"{HEAD}\n{GOOD.replace(',1000,1,', ',1000,999,')}", "line 2, streams"),
    (f"{HEAD}\n{GOOD.replace('3000', '1e200')}", "line 2, metric"),
    (f"{HEAD}\n{GOOD.replace('Server', 'server')}", "line 2, scenario"),
    (f'{HEAD}\n"{GOOD}', "CSV"),
])  # fmt: skip
def test_a_malformed_table_is_one_line_and_two(text, told, tmp_path, monkeypatch, capsys):
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["x", str(path)])
    assert main() == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert told in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("slices", ["9" * 5000 + " x 1g.10gb", "0 x 1g.10gb", "x", "", "1 x "])
def test_slices_that_cannot_be_read_have_no_prediction(slices):
    assert row(1, "Server", slices=slices).place is None


@pytest.mark.parametrize("metric", [1e-300, 1e-14, 1e15])
@pytest.mark.parametrize("wait", [0.0, 1e-12, 1e15])
@pytest.mark.parametrize("system", ["own", "own_Triton"])
def test_extreme_figures_end_without_a_fault(metric, wait, system):
    for benchmark in ("resnet50", "bert-99"):
        of = {"system": system, "benchmark": benchmark}
        server = row(1, "Server", metric=metric, queue_delay_us=wait, streams=64.0, max_batch=1e6, **of)
        for rate in (5000.0, 1e15):
            rows = [single(2, p50_ms=1e-300, **of), offline(3, **{"metric": rate, **of})]
            prediction = predict(server, rows, requests=1000)
            assert prediction.times_ms is None or min(prediction.times_ms) >= 0


def test_what_is_no_file_or_no_text_is_one_line_too(tmp_path):
    done = run(str(tmp_path / "none.csv"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    binary = tmp_path / "rows.csv"
    binary.write_bytes(b"\xff\xfe\x00rows")
    done = run(str(binary))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "UTF-8" in done.stderr
