"""Steps of finished runs: which are saved, which are read again, and that they calibrate the next estimate."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.training.measured import ENOUGH, finished_run
from tests.support.training.runs import client_file, run, strategy
from torchsplit_core import workflow
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.model_source import parse_source
from torchsplit_core.training import RunFolder
from torchsplit_core.training.monitor.measured_steps import (
    MOST_SAVED,
    STEPS_FILE,
    file_identity,
    identity_of,
    run_steps,
    save_run_step,
)
from torchsplit_core.values.strategy.request import SourceSizes, StrategyFix, StrategyNodes, StrategyRequest
from torchsplit_core.values.strategy.run import RunOptions, RunStep, RunStrategy
from torchsplit_core.values.training import ParallelConfig, TrainingJob

DIGITS = parse_source("sample:digits")
ON_A_CORE = "CPU-1c"
JOB = TrainingJob(8, "fp32")
OPTIONS = RunOptions()


@pytest.fixture(autouse=True)
def _threads_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))


def saved(root: Path, folder: RunFolder, job: TrainingJob = JOB, options: RunOptions = OPTIONS) -> None:
    choices = ParallelConfig(**folder.facts()["choices"])
    save_run_step(root, DIGITS, RunStrategy(choices, job), options, folder)


def read(root: Path, job: TrainingJob = JOB, device_type: str = ON_A_CORE) -> tuple[RunStep, ...]:
    return run_steps(root, "sample:digits", device_type, job)


def test_the_median_without_the_first_steps_is_read_again_with_its_run(tmp_path: Path) -> None:
    saved(tmp_path, finished_run(tmp_path / "first", micro_batch=4))
    (step,) = read(tmp_path)
    assert (step.run, step.global_batch, step.seconds) == ("first", 8, 0.02)
    assert step.choices == ParallelConfig(micro_batch=4) and step.finished.endswith("Z")


def test_another_model_device_type_precision_or_optimizer_has_none(tmp_path: Path) -> None:
    saved(tmp_path, finished_run(tmp_path / "first"))
    assert read(tmp_path, replace(JOB, global_batch=64))
    assert not read(tmp_path, replace(JOB, precision="bf16"))
    assert not read(tmp_path, replace(JOB, optimizer="sgd"))
    assert not read(tmp_path, device_type="CPU-2c")
    assert not run_steps(tmp_path, "sample:bert", ON_A_CORE, JOB)


def test_an_equal_run_is_replaced_and_others_stay_newest_first(tmp_path: Path) -> None:
    saved(tmp_path, finished_run(tmp_path / "first", 0.01))
    saved(tmp_path, finished_run(tmp_path / "halves", 0.02, micro_batch=4))
    saved(tmp_path, finished_run(tmp_path / "again", 0.03))
    assert [(step.run, step.seconds) for step in read(tmp_path)] == [("again", 0.03), ("halves", 0.02)]
    for batch in range(1, 2 * MOST_SAVED):
        saved(tmp_path, finished_run(tmp_path / f"batch-{batch}"), replace(JOB, global_batch=8 + batch))
    assert len(read(tmp_path)) == MOST_SAVED


@pytest.mark.parametrize("options", [RunOptions(balance=True), RunOptions(shares=(3.0, 1.0))])
def test_a_run_whose_work_is_uneven_is_left_out(tmp_path: Path, options: RunOptions) -> None:
    saved(tmp_path, finished_run(tmp_path / "uneven"), options=options)
    assert not (tmp_path / STEPS_FILE).exists()


def test_a_run_that_is_short_or_has_more_processes_than_cores_is_left_out(tmp_path: Path) -> None:
    saved(tmp_path, finished_run(tmp_path / "short", steps=ENOUGH - 1))
    saved(tmp_path, finished_run(tmp_path / "crowded", data=len(os.sched_getaffinity(0)) + 1))
    assert not (tmp_path / STEPS_FILE).exists()


def test_a_run_beside_other_work_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = len(os.sched_getaffinity(0)) + 1.5
    monkeypatch.setattr("os.getloadavg", lambda: (busy, 0.0, 0.0))
    saved(tmp_path, finished_run(tmp_path / "beside"))
    assert not (tmp_path / STEPS_FILE).exists()


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "no json"])
def test_a_file_that_somebody_else_wrote_has_no_steps_and_is_written_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / STEPS_FILE).write_text(text)
    assert read(tmp_path) == ()
    saved(tmp_path, finished_run(tmp_path / "run"))
    assert len(read(tmp_path)) == 1
    content = (tmp_path / STEPS_FILE).read_text()
    (tmp_path / STEPS_FILE).write_text(content.replace('"seconds"', '"hours"'))
    assert read(tmp_path) == ()


def test_a_file_is_known_by_its_content_wherever_it_lies(tmp_path: Path) -> None:
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text("a = 1")
    second.write_text("a = 1")
    identity = identity_of(f"{first}:client", trust=True)
    assert identity == identity_of(f"{second}:client", trust=True) == file_identity(b"a = 1", "client")
    assert identity != identity_of(f"{first}:other", trust=True)
    second.write_text("a = 2")
    assert identity != identity_of(f"{second}:client", trust=True)
    assert identity_of(f"{first}:client", trust=False) is None
    assert identity_of("sample:digits@small", trust=False) == "sample:digits"


@pytest.mark.torch
@pytest.mark.repeated
def test_a_finished_run_calibrates_the_next_estimate_unless_the_request_says_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHSPLIT_HOME", str(tmp_path / "home"))
    source = client_file(tmp_path)
    graph: TorchGraph = workflow.trace("sample:digits")
    request = StrategyRequest(
        SourceSizes(source),
        (StrategyNodes(1, 1, ON_A_CORE),),
        TrainingJob(8, "fp32", "sgd"),
        StrategyFix(pipeline=1, micro_batch=8, recompute="none"),
        1,
    )
    before = workflow.strategy(request, graph=graph, track=False, trust=True)
    assert before.calibrated_by == () and "finished runs" not in before.message
    run(source, tmp_path / "run", strategy(micro_batch=8), 1, steps=ENOUGH, checkpoint_every=100)
    after = workflow.strategy(request, graph=graph, track=False, trust=True)
    (calibration,) = after.calibrated_by
    assert (calibration.run, calibration.global_batch, calibration.devices) == ("run", 8, 1)
    assert calibration.estimated_s == pytest.approx(before.candidates[0].seconds_per_step)
    assert after.candidates[0].seconds_per_step != before.candidates[0].seconds_per_step
    assert "'run', finished" in after.message and "8 samples on 1 device:" in after.message
    ignoring = replace(request, model=replace(request.model, calibrate_by_runs=False))
    assert workflow.strategy(ignoring, graph=graph, track=False, trust=True).candidates == before.candidates
