"""Clipping, schedules and accumulation in a loop of one's own: to the bit those of a plain loop of PyTorch."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.seeds import repeated
from tests.support.training.plain_loop import Recipe, run_around, run_into_nan, run_plain, run_without_step
from tests.support.training.runs import client_file, events, losses, run, strategy
from torchsplit_core.checkpoints.packed_state import pack, unpack
from torchsplit_core.cli.training.update_options import add_update_options, update_options
from torchsplit_core.training import RunFolder, schedule_of
from torchsplit_core.training.updates.schedules import length_warning, schedule_steps
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.updates import UpdateOptions

WHOLE = Recipe(clip_norm=0.5, schedule="one cycle")
"""Steps of 8, 8 and 4 of 20 samples in passes of 4: the data ends in the middle of a step's passes."""


def lines(folder: Path, name: str) -> list[float]:
    return [line[name] for line in RunFolder(folder).steps()]


@repeated(
    "recipe",
    [
        WHOLE,
        replace(WHOLE, passes=1, schedule="in turn"),
        replace(WHOLE, optimizer="sgd", schedule="milestones"),
    ],
)
def test_a_loop_around_a_run_is_a_plain_loop_to_the_bit(recipe: Recipe, tmp_path: Path) -> None:
    wanted = run_plain(recipe, tmp_path)
    weights = run_around(recipe, tmp_path)
    assert losses(tmp_path / "run") == wanted["losses"]
    assert lines(tmp_path / "run", "learning_rate") == wanted["rates"]
    assert lines(tmp_path / "run", "gradient_norm") == wanted["norms"]
    assert max(wanted["norms"]) > recipe.clip_norm
    assert all(torch.equal(weights[name], value) for name, value in wanted["weights"].items())


@pytest.mark.parametrize("processes", [1, 2])
def test_gradients_of_so_many_passes_are_added_also_where_the_data_ends_among_them(
    processes: int, tmp_path: Path
) -> None:
    """Steps of 8, 8 and 3 samples, in passes of 2: the last step has passes of 2 and 1."""
    recipe = Recipe(samples=19, passes=4, accumulate=4, clip_norm=0.5)
    wanted = run_plain(recipe, tmp_path)
    weights = run_around(recipe, tmp_path, processes, shard="")
    assert [line["samples"] for line in RunFolder(tmp_path / "run").steps()] == [8, 8, 3, 8, 8, 3, 8]
    if processes == 1:
        assert losses(tmp_path / "run") == wanted["losses"]
        assert all(torch.equal(weights[name], value) for name, value in wanted["weights"].items())
    assert losses(tmp_path / "run") == pytest.approx(wanted["losses"], abs=1e-6)


def test_passes_of_a_step_by_the_command_are_as_many_on_any_number_of_processes(tmp_path: Path) -> None:
    source, update = client_file(tmp_path), UpdateOptions(accumulate=4)
    for processes in (1, 2):
        plan = strategy(optimizer="adamw", micro_batch=8)
        run(source, tmp_path / f"run-{processes}", plan, processes, steps=3, update=update)
        choices = RunFolder(tmp_path / f"run-{processes}").facts()["choices"]
        assert choices["micro_batch"] == 8 // 4 // processes
    assert losses(tmp_path / "run-2") == pytest.approx(losses(tmp_path / "run-1"), abs=1e-6)
    with pytest.raises(InputFault, match="--accumulate: is 9, but a rank has 8 of the samples of a step"):
        run(source, tmp_path / "more", plan, 1, update=UpdateOptions(accumulate=9))


def test_a_loss_that_is_no_number_stops_a_loop_at_its_last_checkpoint(tmp_path: Path) -> None:
    """Sample 17 is in the third step, in the first of its passes."""
    wanted = run_plain(Recipe(steps=2), tmp_path)
    (words,) = run_into_nan(tmp_path)
    assert words.startswith(
        "the loss of step 3, rank 0: is nan; nothing of that step was taken, and the checkpoint of st"
    )
    assert losses(tmp_path / "run") == wanted["losses"]
    weights = torch.load(tmp_path / "weights.pt")
    assert all(torch.equal(weights[name], value) for name, value in wanted["weights"].items())


def test_a_run_that_goes_on_is_the_undisturbed_one_to_the_bit(tmp_path: Path) -> None:
    wanted = run_plain(WHOLE, tmp_path)
    run_around(replace(WHOLE, steps=4), tmp_path)
    weights = run_around(WHOLE, tmp_path)
    assert "goes on after step 4" in events(tmp_path / "run", "resumed")[0]["words"]
    assert losses(tmp_path / "run") == wanted["losses"]
    assert lines(tmp_path / "run", "learning_rate") == wanted["rates"]
    assert all(torch.equal(weights[name], value) for name, value in wanted["weights"].items())


@repeated("shard", ["zero1", "none", "fsdp"])
def test_two_processes_clip_and_schedule_as_one_also_when_they_go_on(shard: str, tmp_path: Path) -> None:
    wanted = run_plain(WHOLE, tmp_path)
    run_around(replace(WHOLE, steps=4), tmp_path, 2, shard)
    run_around(WHOLE, tmp_path, 2, shard)
    assert losses(tmp_path / "run") == pytest.approx(wanted["losses"], abs=1e-6)
    assert lines(tmp_path / "run", "learning_rate") == wanted["rates"]
    assert lines(tmp_path / "run", "gradient_norm") == pytest.approx(wanted["norms"], rel=1e-5)


@repeated(
    ("processes", "choices"),
    [(2, {"tensor": 2}), (2, {"pipeline": 2}), (4, {"tensor": 2, "data": 2, "shard": "fsdp"})],
    kept=1,
)
def test_a_divided_model_is_clipped_by_the_norm_of_the_whole(
    processes: int, choices: dict[str, object], tmp_path: Path
) -> None:
    source = client_file(tmp_path)
    update = UpdateOptions(0.3, "cosine", warmup_steps=2)
    plan = {"optimizer": "sgd", "micro_batch": 4}
    run(source, tmp_path / "whole", strategy(**plan), 1, update=update)
    run(source, tmp_path / "divided", strategy(**plan, **choices), processes, update=update)
    assert min(lines(tmp_path / "whole", "gradient_norm")) > 0.3
    for name in ("loss", "gradient_norm", "learning_rate"):
        assert lines(tmp_path / "divided", name) == pytest.approx(lines(tmp_path / "whole", name), abs=1e-6)


@pytest.mark.repeated
def test_a_named_schedule_keeps_its_length_when_the_run_is_made_longer(tmp_path: Path) -> None:
    source, plan = client_file(tmp_path), strategy(optimizer="adamw", micro_batch=8)
    update = UpdateOptions(schedule="linear", warmup_steps=2)
    first = run(source, tmp_path / "run", plan, 1, steps=4, update=update)
    assert first.warnings == ()
    rates = [0.0005, 0.001, 0.001, 0.0005]
    assert lines(tmp_path / "run", "learning_rate") == rates
    second = run(source, tmp_path / "run", plan, 1, steps=6, update=update, resume=True)
    assert lines(tmp_path / "run", "learning_rate") == [*rates, 0.0, 0.0]
    assert second.warnings == (
        "the schedule ends at step 4, before the run does at step 6: the learning rate is 0 from there on",
    )
    for other in (UpdateOptions(), UpdateOptions(schedule="cosine", warmup_steps=2)):
        with pytest.raises(InputFault, match=r"schedule: is .*, but the run began with 'linear'"):
            run(source, tmp_path / "run", plan, 1, steps=8, update=other, resume=True)


def test_a_schedule_longer_than_the_run_is_a_warning(tmp_path: Path) -> None:
    source, plan = client_file(tmp_path), strategy(optimizer="adamw", micro_batch=8)
    update = UpdateOptions(schedule="cosine", schedule_steps=10)
    summary = run(source, tmp_path / "run", plan, 1, steps=2, update=update)
    (words,) = summary.warnings
    assert words == events(tmp_path / "run", "warning")[0]["words"]
    assert words.startswith("the schedule has 10 steps, but the run ends at step 2")


def test_a_loop_that_does_not_step_is_refused(tmp_path: Path) -> None:
    (words,) = run_without_step(tmp_path)
    assert words == (
        "the training loop: did not call optimizer.step() in step 1. Call it after run.backward(loss) in each turn of "
        "the loop; it acts once a step."
    )


def test_the_length_of_torchs_schedules_is_known() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    schedulers = torch.optim.lr_scheduler
    linear = schedulers.LinearLR(optimizer, total_iters=5)
    cosine = schedulers.CosineAnnealingLR(optimizer, 20)
    assert schedule_steps(schedulers.SequentialLR(optimizer, [linear, cosine], [5])) == 25
    assert schedule_steps(schedulers.ChainedScheduler([linear, cosine])) == 20
    assert schedule_steps(schedulers.OneCycleLR(optimizer, 1.0, total_steps=7)) == 7
    assert schedule_steps(schedulers.MultiStepLR(optimizer, [3, 9])) == 9
    assert schedule_steps(schedulers.ExponentialLR(optimizer, 0.9)) is None
    assert length_warning({"schedule": "ExponentialLR", "schedule_steps": None}, 5) == ""


def test_what_a_named_schedule_gives() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler, rates = schedule_of(optimizer, "cosine", 6, warmup_steps=2), []
    for _ in range(8):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([1.0, 2.0, 2.0, 1.70710678, 1.0, 0.29289322, 0.0, 0.0])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"clip_norm": 0.0}, "--clip-norm: is 0"),
        ({"clip_norm": float("nan")}, "--clip-norm: is nan"),
        ({"schedule": "steps"}, "--schedule: is 'steps'"),
        ({"accumulate": 0}, "--accumulate: is 0, below the least value 1"),
        ({"warmup_steps": 3}, "--warmup-steps: is 3, but there is no schedule"),
        ({"schedule": "linear", "schedule_steps": 0}, "--schedule-steps: is 0, below the least value 1"),
        ({"schedule": "linear", "schedule_steps": 5, "warmup_steps": 6}, "--warmup-steps: is 6, above the 5 steps"),
    ],
)  # fmt: skip
def test_bad_options_of_an_update(given: dict[str, object], words: str) -> None:
    with pytest.raises(InputFault, match=words):
        UpdateOptions(**given)


def test_the_command_s_options_of_an_update_all_arrive() -> None:
    parser = ArgumentParser()
    add_update_options(parser)
    options = [
        "--clip-norm=0.5",
        "--schedule=linear",
        "--warmup-steps=2",
        "--schedule-steps=9",
        "--accumulate=4",
    ]
    assert update_options(parser.parse_args(options)) == UpdateOptions(0.5, "linear", 2, 9, 4)
    assert update_options(parser.parse_args([])) == UpdateOptions()


def test_a_packed_state_is_plain_values_or_refused() -> None:
    state = {"last_epoch": 3, "rates": [0.1, 0.2], "milestones": {2: 1}}
    assert unpack(pack(state), "the schedule") == state
    for text in ("no base64!", pack(UpdateOptions), 7):
        with pytest.raises(InputFault, match="the schedule: holds more than plain values"):
            unpack(text, "the schedule")
