"""Model Analyzer's and perf_analyzer's tables: the run that tells the service time, and what is said of the rest."""

from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchsplit_core.files import read_text
from torchsplit_core.tables import (
    Imported,
    detect,
    read_any,
    read_model_analyzer,
    read_perf_analyzer,
    read_profile_csv,
)
from torchsplit_core.values import InputFault

DATA = Path(__file__).parent / "data"


def text_of(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def points(imported: Imported) -> dict[tuple[str, int, int], tuple[float, float]]:
    return {
        (profile.source, row.batch_size, row.processes): (row.throughput_rps, row.latency_ms)
        for profile in imported.profiles
        for row in profile.rows
    }


def said(imported: Imported, words: str) -> bool:
    return any(words in note for note in imported.notes)


@pytest.mark.parametrize(("name", "kind"), [
    ("metrics-model-inference.csv", "model_analyzer"),
    ("metrics-model-inference-p95.csv", "model_analyzer"),
    ("metrics-model-gpu.csv", "model_analyzer"),
    ("metrics-request-rate.csv", "model_analyzer"),
    ("perf_analyzer.csv", "perf_analyzer"),
    ("perf_analyzer_verbose.csv", "perf_analyzer"),
])  # fmt: skip
def test_the_header_tells_the_kind(name, kind):
    assert detect(text_of(name)) == kind


def test_model_analyzer_takes_the_run_with_as_many_requests_as_instances():
    imported = read_model_analyzer(
        text_of("metrics-model-inference.csv"), gpu_type="A30-24GB", slice_name="2g.12gb"
    )
    assert points(imported) == {
        ("import:resnet", 1, 1): (210.4, 5.1), ("import:resnet", 8, 1): (711.0, 12.2),
        ("import:resnet", 8, 2): (988.8, 17.5), ("import:encoder", 4, 1): (95.5, 340.7),
    }  # fmt: skip
    row = imported.profiles[0].rows[0]
    assert (row.gpu_type, row.profile, row.basis) == ("A30-24GB", "2g.12gb", "measured")
    assert said(imported, "the file has no p95: 'p99 Latency (ms)' stands for it")
    assert said(imported, "1 of 4 points had no run with as many requests under way as instances")
    assert said(imported, "5 of 9 runs were left out")


def test_model_analyzer_prefers_p95_and_reads_older_groups_and_memory_in_megabytes():
    imported = read_model_analyzer(text_of("metrics-model-inference-p95.csv"))
    row = imported.profiles[0].rows[0]
    assert (row.latency_ms, row.processes, row.profile) == (4.9, 1, None)
    assert row.memory_gib == pytest.approx(1.0)
    assert not said(imported, "no p95")


def test_perf_analyzer_counts_microseconds_and_needs_what_it_does_not_write():
    text = text_of("perf_analyzer.csv")
    imported = read_perf_analyzer(text, model="resnet", batch_size=8, slice_name="3g.40gb")
    assert points(imported) == {("import:resnet", 8, 1): (640.0, 13.1)}
    two = read_perf_analyzer(text, model="resnet", batch_size=8, instances=2)
    assert points(two) == {("import:resnet", 8, 2): (1250.0, 13.6)}
    three = read_perf_analyzer(text, model="resnet", batch_size=8, instances=3)
    assert points(three) == {("import:resnet", 8, 3): (1262.0, 26.3)}
    assert said(three, "waiting in Triton's queue")
    eight = read_perf_analyzer(text, model="resnet", batch_size=8, instances=8)
    assert points(eight) == {("import:resnet", 8, 8): (1262.0, 26.3)}
    assert said(eight, "fewer requests under way than instances")
    for missing in ({"model": None, "batch_size": 8}, {"model": "resnet", "batch_size": None}):
        with pytest.raises(InputFault, match=r"names no (model|batch size)"):
            read_perf_analyzer(text, **missing)  # type: ignore[arg-type]


def test_perf_analyzer_verbose_has_the_memory_of_one_gpu_in_bytes():
    text = text_of("perf_analyzer_verbose.csv")
    row = read_perf_analyzer(text, model="m", batch_size=8).profiles[0].rows[0]
    assert row.memory_gib == 2.0
    both = text.replace(":2147483648;", ":2147483648;GPU-1:5;")
    assert read_perf_analyzer(both, model="m", batch_size=8).profiles[0].rows[0].memory_gib is None


@pytest.mark.parametrize(("name", "words"), [
    ("metrics-request-rate.csv", "--concurrency-range"),
    ("metrics-model-gpu.csv", "metrics-model-inference.csv"),
])  # fmt: skip
def test_files_that_do_not_tell_a_service_time(name, words):
    with pytest.raises(InputFault, match=words):
        read_any(text_of(name))


def test_a_column_that_stands_twice_is_named():
    header, *rows = text_of("perf_analyzer_verbose.csv").splitlines()
    text = "\n".join((header + ",Concurrency", *(row + ",9" for row in rows)))
    with pytest.raises(InputFault, match="header: names 'Concurrency' twice"):
        read_perf_analyzer(text, model="m", batch_size=8)


def test_models_measured_together_are_refused_or_left_out():
    text = text_of("metrics-several-models.csv")
    with pytest.raises(InputFault, match="line 2, Model: names several models, 'resnet,encoder'"):
        read_model_analyzer(text)
    assert points(read_model_analyzer(text, skip_bad=True)) == {("import:resnet", 1, 1): (200.0, 5.0)}


@pytest.mark.parametrize(("column", "cell", "rule"), [
    ("Throughput (infer/sec)", "0.0", "above 0"),
    ("p99 Latency (ms)", "", "empty"),
    ("Concurrency", "many", "is 'many', not a number"),
    ("Instance Group", "1:GPU + 1:CPU", "with instances on the CPU"),
    ("Instance Group", "two", "COUNT:GPU"),
    ("Instance Group", "0:GPU", "names 0 instances"),
    ("Batch", "-1", "below the least value 1"),
])  # fmt: skip
def test_bad_cells_of_model_analyzer(column, cell, rule):
    header, row = text_of("metrics-model-inference.csv").splitlines()[:2]
    cells = row.split(",")
    cells[header.split(",").index(column)] = cell
    with pytest.raises(InputFault) as caught:
        read_model_analyzer("\n".join([header, ",".join(cells)]))
    assert f"line 2, {column}" in str(caught.value) and rule in str(caught.value)


def test_the_gpu_and_slice_given_are_checked():
    text = text_of("metrics-model-inference.csv")
    with pytest.raises(InputFault, match=r"^unknown GPU type 'A1000'\. Did you mean A100"):
        read_model_analyzer(text, gpu_type="A1000")
    with pytest.raises(InputFault, match=r"^slice: is '5g\.1gb', not a slice of A100-80GB"):
        read_model_analyzer(text, slice_name="5g.1gb")
    with pytest.raises(InputFault, match="is not a table of perf_analyzer -f: its header is 'Model"):
        read_perf_analyzer(text, model="m", batch_size=1)
    with pytest.raises(InputFault, match="is not Model Analyzer's"):
        read_model_analyzer(text_of("perf_analyzer.csv"))


def test_read_any_finds_each_reader_and_a_mapping_overrides():
    perf = text_of("perf_analyzer.csv")
    assert points(read_any(perf, model="m", batch_size=8))[("import:m", 8, 1)] == (640.0, 13.1)
    assert len(read_any(text_of("metrics-model-inference.csv")).profiles) == 2
    plain = "model,compute_slices,batch_size,throughput_rps\nm,7,8,100\n"
    assert detect(plain) == "profiles"
    assert read_any(plain).profiles[0].rows == read_profile_csv(plain).profiles[0].rows
    mapped = read_any(
        perf, mapping={"throughput_rps": "Inferences/Second", "processes": "Concurrency"}, model="m",
        batch_size=8,
    )  # fmt: skip
    assert len(mapped.profiles[0].rows) == 3


def test_a_profile_in_json_passes_through():
    text = (ROOT / "examples" / "profile.json").read_text(encoding="utf-8")
    assert detect(text) == "json"
    assert read_any("\ufeff" + text) == Imported((read_text(text)[1],))
    plan = (ROOT / "examples" / "plan.json").read_text(encoding="utf-8")
    with pytest.raises(InputFault, match=r"torchsplit\.profile"):
        read_any(plan)
