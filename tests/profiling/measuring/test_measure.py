"""A measurement in a child process: rows, shares, failures, and the questions it refuses."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.profiling.export import sample, to_graph
from tests.support.profiling.measured_models import (
    CRASHES_AT_4,
    ENDS_AT_3,
    FAILS_AT_3,
    FORKS,
    HANGS_AT_5,
    LEAKS_AT_2,
    LOST_AT_3,
    NO_MEMORY_AT_7,
    PRINTS,
    runs_of,
    written,
)
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.hardware import choose_devices
from torchsplit_core.profiling import MeasuredPoint, MeasurementSettings, measure
from torchsplit_core.profiling.measured_model import MeasuredModel, build_measured_model
from torchsplit_core.profiling.measuring import measurement
from torchsplit_core.profiling.measuring.compilation import CompileFault, raise_compile_faults
from torchsplit_core.profiling.measuring.grids import check_batch_sizes
from torchsplit_core.profiling.measuring.measurement import check_settings
from torchsplit_core.profiling.points import REPEATS
from torchsplit_core.profiling.points import MeasurementLog as Told
from torchsplit_core.values import InputFault, InternalFault

pytestmark = pytest.mark.torch

EXPORTER = "tests.support.profiling.export:exporter"
DESCRIBER = "torchsplit_core.tracing.export:describe_program"
(CPU,) = choose_devices("cpu")
QUICK = MeasurementSettings(point_budget_s=0.02)


def measured(folder: Path, body: str, sizes: tuple[int, ...] | None, **options: Any) -> MeasuredModel:
    source, graph = written(folder, body)
    options.setdefault("settings", QUICK)
    return measure(
        source, graph, CPU, batch_sizes=sizes, trust=True, exporter=EXPORTER, describer=DESCRIBER, **options
    )


def steady_notes(found: MeasuredModel) -> tuple[str, ...]:
    """The notes but those of a busy host, which these tests run on as well."""
    return tuple(note for note in found.notes if " is unsteady" not in note)


def in_place(kept: list[MeasuredPoint]) -> list[MeasuredPoint]:
    """As a store has them: a point in the place of the former of its address."""
    return list({(point.kind, point.batch_size): point for point in kept}.values())


def test_a_sample_is_measured_end_to_end_and_by_operation():
    graph = to_graph(sample("ocr")[2])
    heard = []
    kept = []
    profile = measure(
        "sample:ocr", graph, CPU, batch_sizes=(4, 1), settings=QUICK, exporter=EXPORTER, describer=DESCRIBER,
        keep=kept.append,
        progress=lambda share, text: heard.append((share, text)),
    )  # fmt: skip
    assert [row.batch_size for row in profile.rows] == [1, 4]
    for row in profile.rows:
        assert (row.gpu_type, row.profile, row.processes, row.basis) == ("CPU", None, 1, "measured")
        assert row.low_rps is not None and row.high_rps is not None
        assert 0 < row.low_rps <= row.throughput_rps <= row.high_rps
        latency = row.percentiles_ms
        assert latency is not None and latency.runs >= 3
        assert latency.p50.value <= latency.p95.value <= latency.p99.value
        assert row.latency_ms == latency.p95.value
        # Of the mean of a run: between those of the fastest and the slowest that percentiles tell.
        assert row.low_rps is not None and row.high_rps is not None
        assert row.low_rps <= row.throughput_rps <= row.high_rps
        assert row.low_rps <= 1000 * row.batch_size / latency.p50.value <= row.high_rps
        parts = row.memory_parts_gib
        assert parts is not None and parts.context > 0.05
        assert row.memory_gib == pytest.approx(
            parts.weights + parts.activations + parts.transient + parts.context
        )
        assert row.device == "cpu"
    assert [node.id for node in profile.nodes] == [node.id for node in graph.ops]
    assert sum(node.time_share for node in profile.nodes) == pytest.approx(1.0)
    for batch in (1, 2, 4):  # the traced batch and every one of the grid
        for node in profile.nodes:
            times = node.times_ms[batch]
            assert 0 < times.min <= times.mean <= times.max and 0 <= times.std <= times.max
        assert sum(node.time_shares[batch] for node in profile.nodes) == pytest.approx(1.0)
    assert sum(node.peak_bytes for node in profile.nodes) > 0
    assert profile.environment["eval_mode"] is True and profile.environment["cuda_graphs"] is False
    assert 0.5 < profile.environment["sum_of_nodes_over_run"]["4"] <= 1.0
    assert steady_notes(profile) == () and profile.failures == ()
    assert [(point.kind, point.batch_size) for point in kept] == [
        ("batch", 1), ("batch", 4), ("nodes", 1), ("nodes", 2), ("nodes", 4), ("batch", 1), ("batch", 4),
        ("batch", 1), ("batch", 4),
    ]  # fmt: skip
    assert {point.architecture_hash for point in kept} == {graph.architecture_hash}
    shares = [share for share, _ in heard]
    assert shares == sorted(shares) and shares[-1] == 1.0


def test_a_child_held_to_one_core_files_its_rows_under_it():
    (core,) = choose_devices("cpu:1c")
    profile = measure(
        "sample:diamond", to_graph(sample("diamond")[2]), core, batch_sizes=(1,), settings=QUICK,
        exporter=EXPORTER, describer=DESCRIBER,
    )  # fmt: skip
    (row,) = profile.rows
    assert (row.gpu_type, row.profile, row.device, row.basis) == ("CPU", "1c", "cpu:1c", "measured")
    assert profile.environment["threads"] == 1 and profile.environment["cores"].isdecimal()


Heard = tuple[MeasuredModel, list[TorchGraph], list[MeasuredPoint]]


@pytest.fixture(scope="module")
def diamond() -> Heard:
    """A sample measured without a graph; the graphs and points it told."""
    graphs = []
    kept = []
    profile = measure(
        "sample:diamond", None, CPU, exporter="torchsplit_core.tracing.export:export_program",
        describer=DESCRIBER, batch_sizes=(1,), settings=QUICK, on_graph=graphs.append, keep=kept.append,
    )  # fmt: skip
    return profile, graphs, kept


def test_without_a_graph_one_is_made_and_told_at_once(diamond):
    found, graphs, _ = diamond
    assert graphs == [found.graph] and found.graph.architecture_hash
    assert {node.id for node in found.nodes} == {node.id for node in found.graph.ops}


def test_a_point_is_looked_at_again_when_the_rest_is_done(diamond):
    _, _, kept = diamond
    first, second, held = (point.content for point in kept if point.kind == "batch")
    assert first["looks"] == 1 < second["looks"] and kept[-1].content == held
    assert len(first["blocks_ms"]) == REPEATS - REPEATS // 2
    assert second["mean_low_ms"] <= min(second["blocks_ms"])
    assert max(second["blocks_ms"]) <= second["mean_high_ms"]


def test_without_batch_sizes_those_of_the_client_are_measured(tmp_path):
    profile = measured(tmp_path, FAILS_AT_3, None)
    assert [row.batch_size for row in profile.rows] == [1, 2]
    file = tmp_path / "odd.py"
    file.write_text(file.read_text().replace("batch_sizes = (1, 2)", "batch_sizes = (1, 9999)"))
    source, graph = f"{file}:Client", profile.graph
    with pytest.raises(InputFault, match=r"odd.py:Client.batch_sizes: 9999 is no whole number") as fault:
        measure(source, graph, CPU, trust=True, exporter=EXPORTER, describer=DESCRIBER, settings=QUICK)
    assert "--batch-sizes" in fault.value.remedy


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> tuple[Path, MeasuredModel, list[MeasuredPoint]]:
    """A model that fails at batch 3 and has no memory for 7, measured around both; its folder and its points."""
    folder = tmp_path_factory.mktemp("short")
    kept = []
    body = f"{FAILS_AT_3}\n{NO_MEMORY_AT_7}"
    profile = measured(folder, body, (1, 2, 3, 4, 7, 8), keep=kept.append)
    return folder, profile, in_place(kept)


def test_a_batch_that_fails_is_told_and_costs_no_other(short):
    _, found, _ = short
    assert [row.batch_size for row in found.rows] == [1, 2, 4]
    failure = found.failures[0]
    assert (failure.batch_size, failure.reason) == (3, "failed") and "three is too many" in failure.message
    assert any("three is too many" in note for note in found.notes)


def test_out_of_memory_is_a_finding_that_rules_out_what_is_larger(short):
    folder, found, kept = short
    assert [(item.batch_size, item.reason) for item in found.failures[1:]] == [
        (7, "out_of_memory"),
        (8, "out_of_memory"),
    ]
    assert found.failures[2].message == "Not tried: batch 7 was out of memory."
    assert 8 not in runs_of(folder)
    # What failed otherwise may run another time: it is not kept.
    assert [point.batch_size for point in kept if point.kind == "failure"] == [7, 8]


@pytest.mark.repeated
def test_children_that_die_or_hang_cost_their_point_alone(tmp_path):
    kept = []
    profile = measured(
        tmp_path, f"{ENDS_AT_3}\n{CRASHES_AT_4}\n{HANGS_AT_5}", (1, 3, 4, 5, 6),
        settings=MeasurementSettings(point_budget_s=0.02, point_limit_s=20.0), keep=kept.append,
    )  # fmt: skip
    assert [row.batch_size for row in profile.rows] == [1, 6]
    assert [(failure.batch_size, failure.reason) for failure in profile.failures] == [
        (3, "crashed"), (4, "crashed"), (5, "time_limit"),
    ]  # fmt: skip
    assert "still running after 20 s" in profile.failures[2].message
    assert [point.batch_size for point in in_place(kept) if point.kind == "batch"] == [1, 6]
    assert profile.nodes  # the operations run, and were timed by the last child


def test_a_lost_device_measures_nothing_more(tmp_path):
    profile = measured(tmp_path, LOST_AT_3, (1, 3, 4))
    assert [row.batch_size for row in profile.rows] == [1]
    assert profile.failures[0].batch_size == 3 and profile.failures[0].reason == "device_lost"


def test_a_model_that_dies_again_and_again_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(measurement, "MOST_DEATHS", 1)  # every child costs seconds
    profile = measured(tmp_path, "if batch >= 3: os.abort()", (1, 3, 4, 5))
    assert [row.batch_size for row in profile.rows] == [1]
    assert [item.batch_size for item in profile.failures] == [3, 4]


def test_a_model_that_prints_forks_leaks_and_returns_nan_is_measured_and_told_of(tmp_path):
    body = f"{PRINTS}\n{FORKS}\n{LEAKS_AT_2}\nif batch == 2: x = x * float('nan')"
    profile = measured(tmp_path, body, (1, 2), settings=MeasurementSettings(point_budget_s=0.05))
    assert [row.batch_size for row in profile.rows] == [1, 2]
    assert any("may leak" in note for note in profile.notes) and any("NaN" in note for note in profile.notes)


def test_what_is_known_is_taken_over_and_not_measured_again(short):
    folder, first, kept = short
    before = runs_of(folder)
    again = measured(folder, NO_MEMORY_AT_7, (1, 2, 4, 5, 7, 8, 9), known=kept)
    after = runs_of(folder)
    assert {batch: after[batch] for batch in (1, 2, 4, 7)} == {batch: before[batch] for batch in (1, 2, 4, 7)}
    assert not {8, 9} & set(after) and after[5] >= 3
    # The pace is the device's, of all points together.
    taken = [replace(row, pace=None) for row in again.rows if row.batch_size != 5]
    assert taken == [replace(row, pace=None) for row in first.rows]
    assert [item.batch_size for item in again.failures] == [7, 8, 9]
    assert again.environment["taken_over"] == [1, 2, 4]


def test_points_of_another_model_are_not_taken_over_and_a_torch_profiler_trace_is_written(tmp_path, diamond):
    _, _, kept = diamond
    assert kept
    settings = MeasurementSettings(point_budget_s=0.02, torch_trace=str(tmp_path))
    profile = measured(tmp_path, "", (1, 2), settings=settings, known=kept)
    assert runs_of(tmp_path)[1] >= 3 and profile.environment["taken_over"] == []
    files = sorted(path.name for path in tmp_path.glob("*.json"))
    assert files == ["cpu-batch1.json", "cpu-batch2.json"]
    assert '"aten::linear"' in (tmp_path / files[0]).read_text()


def test_operations_that_cannot_be_timed_are_left_out_and_said_so(tmp_path):
    source, graph = written(tmp_path, "")
    profile = measure(
        source, graph, CPU, batch_sizes=(1,), trust=True, settings=QUICK,
        exporter="torchsplit_core.profiling.memory:estimate_memory", describer=DESCRIBER,
    )  # fmt: skip
    assert len(profile.rows) == 1 and profile.nodes == ()
    assert any("shares are estimated" in note for note in profile.notes)


def test_no_batch_that_runs_is_a_fault_that_says_why(tmp_path):
    with pytest.raises(InputFault, match="three is too many"):
        measured(tmp_path, FAILS_AT_3, (3,))


def test_a_fault_of_the_model_before_any_point_is_its_own(tmp_path):
    source, graph = written(tmp_path, "")
    with pytest.raises(InputFault, match="does not define 'Nobody'"):
        measure(
            source.replace(":Client", ":Nobody"), graph, CPU, exporter=EXPORTER, describer=DESCRIBER, trust=True,
            settings=QUICK,
        )  # fmt: skip


def test_timing_another_model_than_the_traced_one_is_our_fault():
    with pytest.raises(InternalFault, match="differ"):
        measure(
            "sample:diamond", to_graph(sample("cond")[2]), CPU, batch_sizes=(1,), settings=QUICK,
            exporter=EXPORTER, describer=DESCRIBER,
        )  # fmt: skip


@pytest.mark.parametrize("sizes", [(), (0,), (-1,), (1, 10**6), tuple(range(1, 18)), (1.5,), (True,)])
def test_bad_grids_are_refused(sizes):
    with pytest.raises(InputFault, match="batch sizes"):
        check_batch_sizes(sizes)


def test_grid_is_ascending_and_each_size_once():
    assert check_batch_sizes((8, 1, 8, 2)) == (1, 2, 8)


@pytest.mark.parametrize("budget", [0.0, -1.0, 1e9, float("nan")])
def test_bad_budgets_are_refused(budget):
    with pytest.raises(InputFault, match="time per point"):
        check_settings(MeasurementSettings(point_budget_s=budget), CPU)


@pytest.mark.parametrize("limit", [0.0, -1.0, 1e9, float("nan")])
def test_bad_time_limits_are_refused(limit):
    with pytest.raises(InputFault, match="time limit per point"):
        check_settings(MeasurementSettings(point_limit_s=limit), CPU)


def test_cuda_graphs_need_a_gpu():
    with pytest.raises(InputFault, match="CUDA graphs"):
        check_settings(MeasurementSettings(cuda_graphs=True), CPU)


def test_host_copies_need_a_gpu_and_one_capture_is_enough():
    with pytest.raises(InputFault, match="host copies"):
        check_settings(MeasurementSettings(host_copies=True), CPU)
    gpu = replace(CPU, kind="cuda", id="cuda:0")
    check_settings(MeasurementSettings(host_copies=True, cuda_graphs=True, compile_mode="default"), gpu)
    with pytest.raises(InputFault, match="CUDA graphs of its own"):
        check_settings(MeasurementSettings(cuda_graphs=True, compile_mode="reduce-overhead"), gpu)


@pytest.mark.parametrize(("where", "settings"), [
    ("dtype", {"dtype": "float64"}), ("compile", {"compile_mode": "fast"}), ("repeats", {"repeats": 0}),
    ("repeats", {"repeats": 101}), ("repeats", {"repeats": True}), ("seed", {"seed": -1}),
    ("seed", {"seed": 2**32}), ("seed", {"seed": 0.5}),
])  # fmt: skip
def test_settings_that_are_none_are_refused(where, settings):
    with pytest.raises(InputFault) as caught:
        check_settings(MeasurementSettings(**settings), CPU)
    assert caught.value.where == where


def test_a_dtype_casts_weights_and_floating_inputs_and_the_profile_says_so(tmp_path):
    plain = measured(tmp_path, "assert x.dtype == self.inner.weight.dtype == torch.float32", (1,))
    cast = measured(
        tmp_path, "assert x.dtype == self.inner.weight.dtype == torch.bfloat16", (1,),
        settings=replace(QUICK, dtype="bfloat16", seed=5, repeats=2),
    )  # fmt: skip
    assert steady_notes(plain) == () and plain.environment["dtype"] == "the model's own"
    assert cast.environment["dtype"] == "bfloat16" and cast.environment["host_copies"] == "not included"
    assert (cast.environment["seed"], cast.environment["repeats"]) == (5, 2)
    assert "Measured in bfloat16" in steady_notes(cast)[0]
    before, after = plain.rows[0].memory_parts_gib, cast.rows[0].memory_parts_gib
    assert before is not None and after is not None and after.weights == before.weights / 2
    assert [node.id for node in cast.nodes] == [node.id for node in plain.nodes]


def test_points_kept_with_the_least_times_alone_still_give_shares():
    """As the version before kept them."""
    graph = to_graph(sample("diamond")[2])
    items = [{"id": node.id, "least_ms": 1.0, "output_bytes": 1, "device": "cpu"} for node in graph.ops]
    content = {"batch_size": 2, "items": items, "runs_ms": [[1.0, 1.0]]}
    heard = Told(graph, [MeasuredPoint.from_message(graph.architecture_hash, "nodes", content)])
    nodes = build_measured_model(graph, CPU, (1,), MeasurementSettings(), heard).nodes
    assert all(node.times_ms == {} and node.time_shares[2] == 1 / len(graph.ops) for node in nodes)


def test_operations_of_a_cast_model_that_the_graph_lacks_are_left_out():
    _, _, exported = sample("diamond")
    graph = to_graph(exported)
    items = [{"id": f"other{n}", "least_ms": 1.0, "output_bytes": 1, "device": "cpu"} for n in range(3)]
    content = {"batch_size": 2, "items": items, "runs_ms": [[1.0, 1.0]]}
    heard = Told(graph, [MeasuredPoint.from_message(graph.architecture_hash, "nodes", content)])
    found = build_measured_model(graph, CPU, (1,), MeasurementSettings(dtype="float16"), heard)
    assert found.nodes == () and any("other operations" in note for note in found.notes)
    with pytest.raises(InternalFault, match="differ"):
        build_measured_model(graph, CPU, (1,), MeasurementSettings(), heard)


@pytest.mark.repeated
@pytest.mark.slow
def test_a_model_is_compiled_for_every_batch_size():
    profile = measure(
        "sample:diamond", to_graph(sample("diamond")[2]), CPU, batch_sizes=(1, 3),
        settings=replace(QUICK, compile_mode="default"), exporter=EXPORTER, describer=DESCRIBER,
    )  # fmt: skip
    assert [row.batch_size for row in profile.rows] == [1, 3] and profile.failures == ()
    assert profile.environment["compile"] == "default"
    assert any("torch.compile (default)" in note for note in profile.notes)
    assert profile.nodes  # operation by operation, as the model is


def test_without_a_compiler_there_is_one_message(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(InputFault) as caught:
        measured(tmp_path, "", (1, 2), settings=replace(QUICK, compile_mode="default"))
    assert caught.value.where == "torch.compile" and "finds no C++ compiler" in str(caught.value)


def test_faults_of_torch_compile_are_one_line_and_the_models_own_stay():
    from torch._dynamo.exc import Unsupported

    with (
        pytest.raises(
            CompileFault, match=r"torch\.compile at batch 4: cannot compile the model: no such operation"
        ),
        raise_compile_faults(4),
    ):
        raise Unsupported("no such operation\nfrom user code: line 7")
    with pytest.raises(ValueError, match="own"), raise_compile_faults(4):
        raise ValueError("own")


def test_asking_for_a_measurement_loads_no_torch():
    code = "import sys, torchsplit_core.profiling; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
