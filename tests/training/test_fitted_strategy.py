"""What of a strategy is run, on how many processes, and what is refused; whose samples are whose."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchsplit_core.checkpoints.store import Checkpoints, Manifest
from torchsplit_core.files import read_file
from torchsplit_core.training import fit_to_world_size, run_strategy_of
from torchsplit_core.training.run_folder import RunFolder
from torchsplit_core.training.sampling import (
    apportion_samples,
    check_shares,
    count_micro_batches,
    sample_position,
    split_micro_batches,
)
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.outcome import StrategyStage
from torchsplit_core.values.strategy.run import RunStrategy
from torchsplit_core.values.training import ParallelConfig, TrainingJob


def strategy(**choices: object) -> RunStrategy:
    return RunStrategy(ParallelConfig(**choices), TrainingJob(8, "fp32"))  # type: ignore[arg-type]


def test_a_candidate_and_a_request_are_strategies() -> None:
    outcome = read_file(ROOT / "examples" / "strategy.json")[1]
    first = outcome.candidates[0]
    found = run_strategy_of(outcome)
    assert found.choices.tensor == first.tensor and found.choices.devices == first.devices
    assert found.job == TrainingJob(first.batch_per_device * first.data, "fp32", "adamw")
    request = read_file(ROOT / "examples" / "strategy_request.json")[1]
    found = run_strategy_of(request, precision="fp32")
    assert found.job.global_batch == request.training.global_batch and found.job.precision == "fp32"
    assert all(getattr(found.choices, name) == value for name, value in request.fix.given().items())
    with pytest.raises(InputFault, match="is 0, but the strategy has 3 candidates"):
        run_strategy_of(outcome, 0)
    with pytest.raises(InputFault, match="is a str, neither a strategy nor"):
        run_strategy_of("fsdp")


def test_processes_change_the_data_ranks_alone() -> None:
    found = fit_to_world_size(strategy(data=4, tensor=2, shard="fsdp", micro_batch=3), 4)
    assert (found.choices.data, found.choices.tensor, found.job.global_batch) == (2, 2, 8)


@pytest.mark.parametrize(
    ("processes", "stages", "ranks"), [(1, 1, 1), (2, 2, 1), (3, 3, 1), (5, 1, 5), (8, 4, 2)]
)
def test_a_pipeline_has_the_most_stages_that_divide_the_processes(
    processes: int, stages: int, ranks: int
) -> None:
    given = replace(strategy(pipeline=4, interleave=2), layers=(1, 2, 3, 4, 5, 6, 7, 8))
    found = fit_to_world_size(given, processes)
    assert (found.choices.pipeline, found.choices.data) == (stages, ranks)
    assert found.choices.interleave == (2 if stages > 1 else 1)
    assert bool(found.layers) == (stages == 4)


def test_stages_are_of_whole_tensor_groups() -> None:
    """Six processes are three stages of one group of two."""
    for processes, stages, ranks in ((6, 3, 1), (2, 1, 1), (16, 4, 2)):
        found = fit_to_world_size(strategy(pipeline=4, tensor=2), processes)
        assert (found.choices.pipeline, found.choices.data) == (stages, ranks)


def test_a_pipeline_across_entries_that_are_alike_keeps_its_layers() -> None:
    outcome = read_file(ROOT / "examples" / "strategy.json")[1]
    stage = {one.name: getattr(outcome.candidates[0], one.name, 1) for one in fields(StrategyStage)}
    across = {**stage, "seconds_per_stage": (1.0,), "data": 1, "tensor": 1, "group": 0}
    first = StrategyStage(**{**across, "layers_per_stage": (4, 5)})
    second = StrategyStage(**{**across, "layers_per_stage": (7,)})
    one = replace(outcome.candidates[0], stages=(first, second), pipeline=3, data=1, tensor=1)
    assert run_strategy_of(one).layers == (4, 5, 7)
    beside = replace(second, group=2)
    for unlike in (replace(second, data=2), replace(second, recompute="full"), beside):
        with pytest.raises(InputFault, match="2 kinds of nodes"):
            run_strategy_of(replace(one, stages=(first, unlike)))


@pytest.mark.parametrize(("choices", "processes", "word"), [
    ({"tensor": 2, "shard": "fsdp"}, 3, "multiple of the 2"), ({}, 0, "multiple"), ({}, 9, "8 samples"),
    ({"context": 2}, 3, "multiple of the 2"),
    ({"expert": 2, "tensor": 2}, 4, "not cut by tensors"),
    ({"interleave": 2}, 2, "interleave"),
    ({"offload": "optimizer"}, 1, "together"), ({"offload": "parameters"}, 1, "does not shard the weights"),
])  # fmt: skip
def test_what_is_not_run_is_refused(choices: dict[str, object], processes: int, word: str) -> None:
    with pytest.raises(InputFault, match=word):
        fit_to_world_size(strategy(**choices), processes)


def test_precisions_that_are_not_run_are_refused() -> None:
    with pytest.raises(InputFault, match="fp8 needs other layers"):
        fit_to_world_size(RunStrategy(ParallelConfig(), TrainingJob(8, "fp8")), 1)
    half = TrainingJob(8, "fp16")
    for choices in (ParallelConfig(shard="fsdp"), ParallelConfig(tensor=2), ParallelConfig(pipeline=2)):
        with pytest.raises(InputFault, match="the loss is scaled where each rank has whole weights"):
            fit_to_world_size(RunStrategy(choices, half), 2)
    for shard in ("none", "zero1"):
        assert fit_to_world_size(RunStrategy(ParallelConfig(shard=shard), half), 2).choices.data == 2


def test_samples_are_divided_by_shares_and_passes() -> None:
    assert apportion_samples(8, 3) == (3, 3, 2)
    assert apportion_samples(8, 2, (3, 1)) == (6, 2)
    assert apportion_samples(1, 3, (1, 1, 5)) == (0, 0, 1)
    assert count_micro_batches((6, 2), 4) == 2
    assert split_micro_batches(range(5), 3) == ((0, 1), (2, 3), (4,))
    assert split_micro_batches((), 2) == ((), ())
    assert [sample_position(step, 20, 8).offset for step in range(4)] == [0, 8, 16, 0]
    assert sample_position(7, 20, 8).epoch == 2
    for shares in ((1.0,), (1.0, -1.0), (1.0, float("nan"))):
        with pytest.raises(InputFault, match="--shares"):
            check_shares(shares, 2)


def test_lines_of_steps_that_are_done_again_go_and_one_that_was_cut_off(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.add_step(step, 0.1 * step, 8, 0.5, 2, 1024)
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 4, "lo')
    assert (folder.last_step() or {})["step"] == 3
    assert folder.truncate_steps_after(2) == 1
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        {"step": step, "loss": 0.1 * step, "samples": 8, "step_s": 0.5, "world_size": 2, "memory_bytes": 1024}
        for step in (1, 2)
    ]


def test_checkpoints_are_complete_or_not_there_and_so_many_stay(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=2)
    assert store.newest(print) is None
    for step in (1, 2, 3):
        store.partial_folder(step).mkdir()
        (store.partial_folder(step) / "part").write_text("weights")
        store.publish(Manifest(step, 0, 8 * step, 2, 8, 64, 0, "sample:bert", "0" * 64, "2.13"))
    store.partial_folder(4).mkdir()
    assert store.steps() == [2, 3] and (tmp_path / "LATEST").read_text() == "step-00000003\n"
    found = store.newest(print)
    assert found and found[1].step == 3 and found[1].files["part"][0] == 7
    (tmp_path / "step-00000003" / "part").write_text("weighty")
    told: list[str] = []
    found = store.newest(told.append)
    assert found and found[1].step == 2 and "another content" in told[0]
    (tmp_path / "LATEST").write_text("step-00000003\n")
    store.discard_after(2)
    assert (tmp_path / "LATEST").read_text() == "step-00000002\n"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["LATEST", "step-00000002"]
