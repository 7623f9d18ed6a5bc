"""The command line from outside: the newcomer's path, exit codes, one message for bad input."""

import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchsplit_core import workflow
from torchsplit_core.cli.app import _free_port
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file
from torchsplit_core.isolation import isolation_level
from torchsplit_core.profiling.points import MeasurementSettings
from torchsplit_core.values import InputFault, stage_shares

pytestmark = pytest.mark.torch


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torchsplit_core", *arguments], cwd=cwd, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip


def here(*arguments: str, cwd: Path) -> int:
    """The same in this process, whose children find torch loaded. `run` starts two: with a model, and without."""
    with contextlib.chdir(cwd):
        return main(arguments)


@pytest.fixture(scope="module")
def walked(tmp_path_factory) -> Path:
    """Small BERT through trace, profile, partition, request, plan and deploy, beside a diamond that is profiled."""
    folder = tmp_path_factory.mktemp("walk")
    done = run("trace", "sample:bert", "-o", "bert.graph.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    measured = ("--device", "cpu", "--batch-sizes", "1,2", "--point-budget", "0.2")
    for name in ("bert", "diamond"):
        assert here("profile", f"sample:{name}", *measured, "-o", f"{name}.profile.json", cwd=folder) == 0
    cut = ("--profile", "bert.profile.json", "--stages", "2", "--time-limit", "2", "-o", "bert.cuts.json")
    assert here("partition", "sample:bert", *cut, cwd=folder) == 0
    asked = ("--gpus", "1xA100-80GB,1xA30-24GB", "--candidates", "bert.cuts.json", "--time-limit", "20")
    demand = ("--demand", "bert=20,diamond=10", "-o", "request.json")
    assert here("request", "diamond.profile.json", "bert.profile.json", *asked, *demand, cwd=folder) == 0
    assert here("plan", "request.json", "-o", "plan.json", cwd=folder) == 0
    assert here("deploy", "plan.json", "-o", "out", cwd=folder) == 0
    return folder


def test_graph_and_profile_belong_together(walked):
    graph = read_file(walked / "bert.graph.json", expected="torchsplit.graph")[1]
    profile = read_file(walked / "bert.profile.json", expected="torchsplit.profile")[1]
    assert graph.architecture_hash and graph.architecture_hash == profile.architecture_hash
    assert {node.id for node in profile.nodes} <= {node.id for node in graph.nodes}
    assert sum(node.time_share for node in profile.nodes) == pytest.approx(1.0)
    measured = [row for row in profile.rows if row.basis == "measured"]
    assert {row.batch_size for row in measured} == {1, 2}
    assert all(row.profile is None and row.throughput_rps > 0 for row in measured)
    estimated = [row for row in profile.rows if row.basis == "estimated"]
    assert {"A100-80GB", "A30-24GB", "H100-SXM5-80GB"} <= {row.gpu_type for row in estimated}
    assert all(row.low_rps is not None and row.high_rps is not None for row in estimated)
    assert all(row.low_rps < row.throughput_rps < row.high_rps for row in estimated)


def test_cuts_hold_every_operation_once(walked):
    graph = read_file(walked / "bert.graph.json")[1]
    cuts = read_file(walked / "bert.cuts.json", expected="torchsplit.partition")[1]
    assert cuts.candidates and cuts.source == "sample:bert"
    for candidate in cuts.candidates:
        listed = [name for stage in candidate.stages for name in stage]
        assert len(listed) == len(set(listed))
        assert {node.id for node in graph.ops} <= set(listed)


def test_a_candidate_is_a_variant_of_the_request(walked):
    request = read_file(walked / "request.json", expected="torchsplit.plan_request")[1]
    bert = next(model for model in request.models if model.name == "bert")
    profile = read_file(walked / "bert.profile.json")[1]
    cuts = read_file(walked / "bert.cuts.json")[1]
    assert [variant.name for variant in bert.variants][:2] == ["whole", "cut1"]
    whole = {(p.gpu_type, p.profile, p.batch_size): p for p in bert.variants[0].stages[0].points}
    first = next(candidate for candidate in cuts.candidates if len(candidate.stages) == 2)
    assert len(first.weight_bytes) == 2
    for number, stage in enumerate(bert.variants[1].stages):
        for point in stage.points:
            part = stage_shares(profile.nodes, first.stages, point.batch_size)[number]
            assert point.memory_gib > first.weight_bytes[number] / 2**30
            whole_point = whole[(point.gpu_type, point.profile, point.batch_size)]
            assert point.latency_ms == pytest.approx(whole_point.latency_ms * part)
            assert point.throughput_rps == pytest.approx(whole_point.throughput_rps / part)
            assert point.memory_gib < whole_point.memory_gib
            assert point.basis == "estimated"


def test_the_plan_serves_both_models_and_is_deployable(walked):
    outcome = read_file(walked / "plan.json", expected="torchsplit.plan")[1]
    assert outcome.status in ("optimal", "feasible")
    assert {model.name for model in outcome.models if model.throughput_rps > 0} == {"diamond", "bert"}
    assert outcome.objective.bound is not None and outcome.objective.gap is not None
    names = {path.name for path in (walked / "out").rglob("*") if path.is_file()}
    assert any(name.endswith((".yaml", ".yml")) for name in names) and any(
        name.endswith(".sh") for name in names
    )


def test_planning_again_gives_the_same_plan(walked):
    first = json.loads((walked / "plan.json").read_text())
    if first["status"] != "optimal":
        assert first["objective"]["gap"] >= 0
        return
    done = run("plan", "request.json", cwd=walked)
    again = json.loads(done.stdout)
    assert {**again, "statistics": 0} == {**first, "statistics": 0}


@pytest.mark.parametrize(("arguments", "match"), [
    (("trace", "sample:none"), "sample"),
    (("trace", "missing.pt2"), "missing.pt2"),
    (("trace", "noise.pt2"), "noise.pt2"),
    (("trace", "empty.pt2"), "empty.pt2"),
    (("trace", "net.py:Net"), "--trust"),
    (("profile", "sample:diamond", "--batch-sizes", "0"), "batch"),
    (("profile", "sample:diamond", "--batch-sizes", "1000000"), "batch"),
    (("profile", "sample:diamond", "--batch-sizes", "a"), "whole numbers"),
    (("profile", "sample:diamond", "--processes", "two"), "whole numbers"),
    (("profile", "sample:diamond", "--processes", "0"), "from 1 to 16"),
    (("profile", "sample:diamond", "--device", "cpu:9999c"), "cpu:9999c"),
    (("plan", "noise.pt2"), "JSON"),
    (("plan", "typo.json"), "gpuz: is not a known field. Did you mean gpus?"),
    (("plan", "none.json"), "none.json: cannot be read: no such file. Check the path."),
    (("request", "typo.json", "--gpus", "1xA100-80GB"), "typo.json"),
    (("deploy", "typo.json", "-o", "out"), "typo.json"),
    (("partition", "sample:diamond"), "--profile"),
])  # fmt: skip
def test_bad_input_is_one_message_and_exit_code_2(arguments, match, tmp_path, monkeypatch, capsys):
    (tmp_path / "noise.pt2").write_bytes(bytes(range(256)) * 4096)
    (tmp_path / "empty.pt2").write_bytes(b"")
    (tmp_path / "net.py").write_text("class Net: pass\n")
    (tmp_path / "typo.json").write_text(
        '{"format": "torchsplit.plan_request", "version": 1, "gpus": [], "models": [], "gpuz": 1}'
    )
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    printed = capsys.readouterr()
    message = printed.err.strip().splitlines()[-1]
    assert message.startswith("torchsplit: ") and match in message
    assert "Traceback" not in printed.err and printed.out == ""


LONG_NAME = "n" * 300


@pytest.mark.parametrize("arguments", [
    ("partition", "examples/partition_request.json", "-o", LONG_NAME),
    ("deploy", "examples/plan.json", "-o", LONG_NAME),
    ("strategy", "examples/strategy_request.json", "--export", LONG_NAME),
    ("apply", "examples/plan.json", "--from", "examples/host_state.json", "--journal", LONG_NAME),
    ("size", LONG_NAME, "--gpus", "A100-80GB", "--rate", "1"),
    ("profile", "sample:diamond", "--read", LONG_NAME),
    ("trace", f"{LONG_NAME}.pt2"),
])  # fmt: skip
def test_a_name_too_long_is_the_users_fault(arguments, monkeypatch, stderr_of):
    monkeypatch.chdir(ROOT)
    said = stderr_of(*arguments)
    assert "cannot be used: file name too long. Shorten the name." in said and LONG_NAME in said


def test_a_folder_closed_to_the_user_is_the_users_fault(monkeypatch, stderr_of):
    def refuse(path, **_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    said = stderr_of("partition", "request.json", "-o", "closed/cuts.json")
    assert (
        "closed/cuts.json: cannot be used: permission denied. Check the path, and who may use its folder."
        in said
    )


def test_infeasible_is_exit_code_3_and_the_file_says_why(tmp_path, capsys):
    request = json.loads((ROOT / "examples" / "plan_request.json").read_text())
    request["models"][0]["min_throughput_rps"] = 1e9
    (tmp_path / "request.json").write_text(json.dumps(request))
    assert main(["plan", str(tmp_path / "request.json"), "-o", str(tmp_path / "plan.json")]) == 3
    outcome = read_file(tmp_path / "plan.json")[1]
    assert outcome.status == "infeasible"
    assert outcome.conflicts[0].demands[0].model == request["models"][0]["name"]
    assert capsys.readouterr().err.count("conflict:") == len(outcome.conflicts)


def test_a_deployment_folder_that_is_a_file_is_the_users_fault(tmp_path, stderr_of):
    (tmp_path / "out").write_text("")
    assert "is a file. Name a folder." in stderr_of(
        "deploy", ROOT / "examples" / "plan.json", "-o", tmp_path / "out"
    )


def test_our_own_fault_is_exit_code_1(monkeypatch, stderr_of):
    monkeypatch.setattr("torchsplit_core.workflow.trace", lambda *a, **k: 1 / 0)
    assert "internal fault (ZeroDivisionError" in stderr_of("trace", "sample:bert", code=1)


def test_a_taken_port_is_named_and_another_found(stderr_of):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        stderr = stderr_of("app", "--port", port)
        assert str(port) in stderr and f"Isolation: {isolation_level().text}" in stderr
        assert 8501 <= _free_port("127.0.0.1", None) <= 8600


READS = """
import pathlib, torch
class Net:
    batch_sizes = (1, 2)
    def get_model(self):
        torch.manual_seed(int(pathlib.Path({weights!r}).read_text()))
        return torch.nn.Linear(4, 4)
    def get_example_inputs(self, n):
        return (torch.ones(n, 4),)
"""


def test_a_model_reads_what_read_names_and_nothing_else(tmp_path, stderr_of, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "weights").write_text("3")
    (tmp_path / "model" / "net.py").write_text(READS.format(weights=str(tmp_path / "weights")))
    monkeypatch.setenv("TORCHSPLIT_READABLE", str(tmp_path / "model"))
    command = ["trace", f"{tmp_path / 'model' / 'net.py'}:Net", "--trust", "-o", str(tmp_path / "graph")]
    assert "--read: " in stderr_of(*command, "--read", tmp_path / "nowhere")
    assert main([*command, "--read", str(tmp_path / "weights")]) == 0
    assert os.environ["TORCHSPLIT_READABLE"] == str(tmp_path / "model")


def test_draw_writes_a_picture_and_refuses_what_it_cannot(walked, capsys):
    opened = ("--open", "encoder.layer.1,embeddings")
    assert here("draw", "bert.graph.json", "-o", "bert.svg", *opened, cwd=walked) == 0
    assert (walked / "bert.svg").read_text().startswith("<svg")
    assert here("draw", "bert.graph.json", "-o", "regions.dot", "--what", "regions", cwd=walked) == 0
    assert (walked / "regions.dot").read_text().startswith("digraph")
    capsys.readouterr()
    assert here("draw", "bert.graph.json", "-o", "bert.png", cwd=walked) == 2
    assert "Traceback" not in capsys.readouterr().err and not (walked / "bert.png").exists()


def test_how_to_measure_reaches_the_measurement(monkeypatch):
    heard = []

    def stop(source, *, settings, **options):
        heard.append(settings)
        raise InputFault("profile", f"heard of {source}", "Stop.")

    monkeypatch.setattr(workflow, "profile", stop)
    command = ["profile", "sample:diamond"]
    assert main([*command]) == 2
    asked = "--dtype float16 --compile max-autotune --host-copies --repeats 5 --seed 9 --cuda-graphs --processes 1,4"
    assert main([*command, *asked.split()]) == 2
    assert heard == [
        MeasurementSettings(),
        MeasurementSettings(
            dtype="float16", compile_mode="max-autotune", host_copies=True, repeats=5, seed=9,
            cuda_graphs=True, processes=(1, 4),
        ),
    ]  # fmt: skip
