"""A run measured on held-out samples while it trains: figures, the best checkpoint, what fails."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.seeds import repeated
from tests.support.training.folders import left_folder
from tests.support.training.plain_loop import Recipe, run_around, run_plain
from tests.support.training.runs import client_file, events, losses, run, strategy
from torchsplit_core.checkpoints.store import Checkpoints
from torchsplit_core.checkpoints.trained_run import parse_run_source, read_best, read_validation, with_step
from torchsplit_core.training import RunFolder
from torchsplit_core.training.monitor.launch_record import LaunchRecord, read_launch, save_launch
from torchsplit_core.training.monitor.run_reader import RunReader
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.held_out import ValidationOptions
from torchsplit_core.values.strategy.run import RunOptions
from torchsplit_core.values.strategy.updates import UpdateOptions

EVERY_2 = ValidationOptions(2, "loss")
RECIPE = Recipe(validate_every=2, best="loss")


def validations(folder: Path) -> dict[int, dict[str, float]]:
    return {line["step"]: line["validation"] for line in RunFolder(folder).steps() if "validation" in line}


def test_a_loop_that_is_measured_trains_as_one_that_is_not_and_has_the_figures_of_a_plain_one(
    tmp_path: Path,
) -> None:
    wanted = run_plain(replace(RECIPE, dropout=0.2), tmp_path)
    weights = run_around(replace(RECIPE, dropout=0.2), tmp_path)
    assert all(torch.equal(weights[name], value) for name, value in wanted["weights"].items())
    measured = validations(tmp_path / "run")
    assert list(measured) == [2, 4, 6, 7]
    assert [figures["loss"] for figures in measured.values()] == pytest.approx(wanted["held_out"], abs=1e-6)
    # The line of a step does not count the measurement.
    assert all(
        line["validation_s"] > 0 for line in RunFolder(tmp_path / "run").steps() if "validation" in line
    )


@repeated("shard", ["none", "fsdp"])
def test_two_processes_measure_what_one_does(shard: str, tmp_path: Path) -> None:
    wanted = run_plain(RECIPE, tmp_path)
    run_around(RECIPE, tmp_path, 2, shard)
    figures = [figures["loss"] for figures in validations(tmp_path / "run").values()]
    assert figures == pytest.approx(wanted["held_out"], abs=1e-6)


@repeated("choices", [{"data": 2}, {"tensor": 2}])
def test_a_client_is_measured_by_its_loss_and_its_metrics(choices: dict[str, int], tmp_path: Path) -> None:
    source = client_file(tmp_path, held_out=11)
    run(source, tmp_path / "alone", strategy(micro_batch=2), 1, validation=EVERY_2)
    plan = strategy(micro_batch=1, **choices)
    summary = run(source, tmp_path / "run", plan, 2, validation=EVERY_2)
    alone, measured = validations(tmp_path / "alone"), validations(tmp_path / "run")
    assert list(measured) == [2, 4, 6]
    for step, figures in measured.items():
        assert set(figures) == {"loss", "largest_error"}
        assert figures["loss"] == pytest.approx(alone[step]["loss"], abs=1e-6)
    assert summary.metrics == measured[6]
    validation = read_validation(tmp_path / "run")
    assert validation is not None and (validation.step, validation.samples) == (6, 11)
    # The run itself has measured its last step: nothing else does.
    assert not events(tmp_path / "run", "validated")


def test_the_best_checkpoint_stays_and_is_a_source(tmp_path: Path) -> None:
    # On one of these samples the metric is smallest at step 2, and larger later.
    source = client_file(tmp_path, held_out=4, best_at=2)
    options = ValidationOptions(2, "score")
    run(source, tmp_path / "run", strategy(micro_batch=8), 1, steps=8, keep=1, validation=options)
    checkpoints = tmp_path / "run" / "checkpoints"
    assert Checkpoints(checkpoints).steps() == [2, 8]
    best = read_best(tmp_path / "run")
    assert best is not None and (best.step, best.metric, best.value) == (2, "score", 2.0)
    assert [event["words"] for event in events(tmp_path / "run", "best")] == [
        "step 2 has the best score so far: 2",
    ]
    source = f"{tmp_path / 'run'}@best"
    assert parse_run_source(source).step == 2
    assert with_step(source) == f"{tmp_path / 'run'}@step-2"
    assert parse_run_source(source).metrics()["score"] == 2.0
    shown = RunReader(tmp_path / "run").view()
    assert [(one.step, one.best_by, one.newest) for one in shown.checkpoints] == [
        (2, "score", False), (8, "", True),
    ]  # fmt: skip
    # A run that goes on knows it still: what is measured now is worse.
    run(
        f"{tmp_path / 'client' / 'client'}.py:client", tmp_path / "run", strategy(micro_batch=8), 1, steps=10, keep=1,
        validation=options, resume=True,
    )  # fmt: skip
    assert Checkpoints(checkpoints).steps() == [2, 10]


def test_a_best_checkpoint_that_is_done_anew_is_the_best_no_more(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for step in (2, 4):
        (checkpoints.folder / f"step-{step:08d}").mkdir(parents=True)
    (checkpoints.folder / "best.json").write_text(json.dumps({"step": 4, "metric": "m", "value": 1.0}))
    again = Checkpoints(checkpoints.folder)
    again.discard_after(2)
    assert again.best is None and read_best(tmp_path) is None and again.steps() == [2]


@repeated("processes", [1, 2])
def test_a_validation_that_fails_keeps_all_that_was_trained(processes: int, tmp_path: Path) -> None:
    source = client_file(tmp_path, held_out=9, bad_held_out=8)
    plan = strategy(micro_batch=2, data=processes)
    with pytest.raises(InputFault) as caught:
        run(source, tmp_path / "run", plan, processes, checkpoint_every=100, validation=EVERY_2)
    message = str(caught.value)
    assert message.startswith("the validation after step 2: the validation data") and message.count("\n") == 0
    assert "sample 8 is unreadable" in message and "the checkpoint of step 2 is kept" in message
    assert message.endswith("Then resume the run.")
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [2]
    assert len(losses(tmp_path / "run")) == 2
    # Once it is mended the run goes on, as if nothing had been.
    (tmp_path / "client" / "plan.json").write_text(json.dumps({"held_out": 9}))
    run(source, tmp_path / "run", plan, processes, resume=True, validation=EVERY_2)
    whole = client_file(tmp_path, "whole", held_out=9)
    run(whole, tmp_path / "undisturbed", plan, processes)
    assert losses(tmp_path / "run") == losses(tmp_path / "undisturbed")


@pytest.mark.parametrize(
    ("plan", "options", "words"),
    [
        ({}, EVERY_2, "--validate-every: is given, but the client has no get_validation_dataset()"),
        ({"held_out": 0}, EVERY_2, "the validation data: has no samples"),
        ({"held_out": 4}, ValidationOptions(2, "accuracy"), "--best: is 'accuracy', but the validation gives loss"),
        ({"held_out": 4, "nan_metric": True}, EVERY_2, "the validation's metrics: are nan for largest_error"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured(
    plan: dict[str, object], options: ValidationOptions, words: str, tmp_path: Path
) -> None:
    source = client_file(tmp_path, **plan)
    with pytest.raises(InputFault) as caught:
        run(source, tmp_path / "run", strategy(micro_batch=8), 1, validation=options)
    assert words in str(caught.value)


def test_a_loop_whose_validation_failed_has_stopped_and_a_run_that_is_done_stays_so(tmp_path: Path) -> None:
    folder = left_folder(tmp_path / "loop", steps=4, wanted=6)
    folder.log_event("validation_failed", "the validation data: raised ValueError", 0)
    view = RunReader(folder.path).view()
    assert (view.state, view.words) == ("stopped", "the validation data: raised ValueError")
    done = left_folder(tmp_path / "done")
    done.log_event("validation_failed", "the file is gone", 0)
    assert RunReader(done.path).view().state == "finished"


def test_what_a_run_was_started_with_is_read_back_whole(tmp_path: Path) -> None:
    options = RunOptions(
        update=UpdateOptions(1.5, "cosine", 2, 9, 4), validation=EVERY_2, workers=2, offload_activations=True,
        trace_steps=(3, 4),
    )  # fmt: skip
    launch = LaunchRecord("sample:digits", strategy(), options)
    save_launch(tmp_path, launch)
    assert read_launch(tmp_path) == launch


def test_stages_are_not_measured_while_they_train(tmp_path: Path) -> None:
    source = client_file(tmp_path, held_out=4)
    with pytest.raises(InputFault, match="--validate-every: is 2, but the strategy has 2 stages"):
        run(source, tmp_path / "run", strategy(micro_batch=4, pipeline=2), 2, validation=EVERY_2)
    assert not (tmp_path / "run").exists(), "refused before any process starts"


@pytest.mark.parametrize(
    ("best", "value", "before", "better"),
    [
        ("loss", 1.0, 2.0, True), ("held_loss", 2.0, 1.0, False), ("accuracy", 0.9, 0.8, True),
        ("accuracy", 0.8, 0.8, False), ("loss:max", 2.0, 1.0, True), ("error:min", 2.0, 1.0, False),
        ("accuracy", 0.1, None, True),
    ],
)  # fmt: skip
def test_what_is_better(best: str, value: float, before: float | None, better: bool) -> None:
    assert ValidationOptions(1, best).is_better(value, before) is better


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"every": 0}, "--validate-every: is 0, below"),
        ({"every": 2, "best": "accuracy:up"}, "--best: is 'accuracy:up', not a metric"),
        ({"every": 2, "best": ":min"}, "--best: is ':min', not a metric"),
    ],
)
def test_bad_options_of_a_validation(given: dict[str, object], words: str) -> None:
    with pytest.raises(InputFault, match=words):
        ValidationOptions(**given)
