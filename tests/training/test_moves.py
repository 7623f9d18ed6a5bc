"""Runs in which blocks of a pipeline move to other stages, and what their starts leave to each other."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.ports import free_port
from tests.support.training.runs import (
    beside,
    client_file,
    events,
    losses,
    losses_alone,
    run,
    strategy,
)
from torchsplit_core.training import RunFolder, launch
from torchsplit_core.training.launch import RankFailure
from torchsplit_core.training.monitor.run_reader import RunReader
from torchsplit_core.training.rank import RankTask, exit_file
from torchsplit_core.training.rebalance.batch_balancer import MIN_INTERVAL_S
from torchsplit_core.training.rebalance.migration import StageMigration
from torchsplit_core.training.rebalance.overrides import (
    PendingMove,
    RunOverrides,
    fit_attempt,
    read_overrides,
    save_overrides,
)
from torchsplit_core.training.rebalance.stage_balancer import StageMove
from torchsplit_core.training.run_folder import OVERRIDES
from torchsplit_core.values.strategy.run import ElasticNodes, RunOptions

assert torch.distributed.is_available()
EXACT = 1e-6
SAMPLES = 80


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one process."""
    return losses_alone(tmp_path_factory.mktemp("alone_unmoved"), samples=SAMPLES, steps=12)


@pytest.mark.repeated
def test_blocks_leave_a_slow_rank_and_a_kill_right_after_goes_on_with_the_new_stages(
    alone: list[float], tmp_path: Path
) -> None:
    """Rank 1 is slow in each block. After step 6 one moves; a rank dies in step 7, the first with the new stages."""
    source = client_file(
        tmp_path, samples=SAMPLES, blocks=4, slow_blocks=0.1, quick_moves=True, kill={"52": "rank"}
    )
    plan = strategy(optimizer="adamw", pipeline=2, micro_batch=4)
    summary = run(source, tmp_path / "run", plan, 2, steps=9, checkpoint_every=100, balance=True)
    assert losses(tmp_path / "run") == pytest.approx(alone[:9], abs=EXACT)
    (moving,) = events(tmp_path / "run", "layers_moving")
    assert moving["words"].startswith(
        "moves blocks.2 from stage 1 to stage 0 after step 6: a micro-batch takes 0."
    )
    assert "3 steps are left, the move takes about 0 s" in moving["words"] and moving["rank"] == 1
    (moved,) = events(tmp_path / "run", "layers_moved")
    assert re.match(r"moved blocks\.2 from stage 1 to stage 0 in \d+(\.\d+)? s, of which", moved["words"])
    assert events(tmp_path / "run", "checkpoint")[0]["words"].startswith("checkpoint of step 6 is complete")
    assert summary.restarts == 1 and len(events(tmp_path / "run", "rank_lost")) == 1
    (begun,) = events(tmp_path / "run", "started")
    assert begun["words"].endswith("2 stages of blocks: blocks.0 to blocks.1, blocks.2 to blocks.3")
    resumed = [event["words"] for event in events(tmp_path / "run", "resumed")]
    assert len(resumed) == 2
    for words in resumed:
        assert words.startswith("goes on after step 6") and words.endswith("blocks.0 to blocks.2, blocks.3")
    blocks = {one.rank: dict(one.blocks_s) for one in RunReader(tmp_path / "run").view().ranks}
    assert [*blocks[0]] == ["blocks.0", "blocks.1", "blocks.2"] and [*blocks[1]] == ["blocks.3"]
    assert (blocks[1]["blocks.3"] or 0.0) >= 0.1


@pytest.mark.repeated
def test_blocks_move_between_nodes(alone: list[float], tmp_path: Path) -> None:
    """Two agents, a stage each: both start their rank again, in a round of their own."""
    source = client_file(tmp_path, samples=SAMPLES, blocks=4, slow_blocks=0.1, quick_moves=True)
    plan = strategy(optimizer="adamw", pipeline=2, micro_batch=4)
    address = f"127.0.0.1:{free_port()}"
    how = {"steps": 12, "balance": True, "checkpoint_every": 100}
    other = beside(run, source, tmp_path / "run", plan, 1, nodes=ElasticNodes(2, 2, address, "b"), **how)
    summary = run(source, tmp_path / "run", plan, 1, nodes=ElasticNodes(2, 2, address, "a"), **how)
    other.join()
    assert (summary.restarts, other.exitcode) == (0, 0)
    assert losses(tmp_path / "run") == pytest.approx(alone, abs=EXACT)
    assert len(events(tmp_path / "run", "layers_moved")) == 1
    words = events(tmp_path / "run", "layers_measured")[0]["words"]
    assert re.match(
        r"after moving blocks\.2 from stage 1 to stage 0 a step takes .* s before; .* s were predicted", words
    )
    assert {event["node"] for event in events(tmp_path / "run", "joined")} == {"a", "b"}


KEPT = RunOverrides(micro_batch=2, layers=(3, 1), moved_s=5.0, move_s=2.0)
PIPELINE = strategy(pipeline=2, micro_batch=4)


def test_later_starts_of_a_command_go_on_with_the_new_stages_where_they_have_as_many(tmp_path: Path) -> None:
    options = RunOptions(balance=True)
    assert fit_attempt(PIPELINE, options, tmp_path, PIPELINE.choices.devices) == (PIPELINE, options)
    save_overrides(tmp_path, KEPT)
    assert read_overrides(tmp_path) == KEPT
    found, as_before = fit_attempt(PIPELINE, options, tmp_path, PIPELINE.choices.devices)
    assert (found.layers, found.choices.micro_batch, as_before) == ((3, 1), 2, options)
    for stages in (1, 3):
        found, _ = fit_attempt(strategy(pipeline=stages, micro_batch=4), options, tmp_path, stages)
        assert found.layers == () and found.choices.micro_batch == 2


def test_blocks_go_back_where_memory_runs_out_and_only_then_passes_become_smaller(tmp_path: Path) -> None:
    folder, options, lost = RunFolder(tmp_path), RunOptions(balance=True), RankFailure(1, "failed")
    save_overrides(tmp_path, KEPT)
    launch._reduce_memory(folder, PIPELINE, options, lost)
    assert read_overrides(tmp_path) == RunOverrides(micro_batch=2, stay=True, moved_s=5.0, move_s=2.0)
    found, staying = fit_attempt(PIPELINE, options, tmp_path, PIPELINE.choices.devices)
    assert (found.layers, staying.balance) == ((), False)
    assert (
        "rank 1 ran out of memory: the blocks that moved go back"
        in events(tmp_path, "layers_back")[0]["words"]
    )
    assert not events(tmp_path, "out_of_memory")
    launch._reduce_memory(folder, PIPELINE, options, lost)
    assert read_overrides(tmp_path).micro_batch == 1 and len(events(tmp_path, "out_of_memory")) == 1


def test_two_starts_in_vain_after_a_move_bring_the_blocks_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends the ranks of a move, it is no loss."""
    ends = iter(["moves", "lost", "lost", "done"])

    def start(task: RankTask, *others: object) -> RankFailure:
        end = next(ends)
        if end == "moves":
            save_overrides(tmp_path, KEPT)
        if end == "moves" or end == "done":
            (Path(task.reports) / exit_file(end, 1)).touch()
        return RankFailure(0, "was ended by SIGKILL", killed=True)

    monkeypatch.setattr(launch, "_run_attempt", start)
    folder = RunFolder(tmp_path)
    folder.logs.mkdir()
    assert launch._supervise(folder, "sample:llama", False, PIPELINE, RunOptions(), 2, None) == 2
    assert [one["words"] for one in events(tmp_path, "rank_lost")] == [
        "rank 0 was ended by SIGKILL, at step 1"
    ] * 2
    assert "2 starts did not get past step 0: the blocks" in events(tmp_path, "layers_back")[0]["words"]
    assert next(ends, None) is None and read_overrides(tmp_path).stay


class Stub:
    """Of a run: checkpoints that fail for a reason, or none; changes that want blocks to move."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason, self.newest, self.last_duration_s = reason, 0, 0.5
        self.pending_move: StageMove | None = StageMove(
            (3, 1), 1, "b from stage 1 to stage 0", "it is slow", 2.0, 1.0
        )
        self.completed_move: PendingMove | None = None

    def wait(self) -> str | None:
        return self.reason

    def broadcast_reason(self, reason: str | None) -> str | None:
        return reason


@pytest.mark.parametrize("reason", [None, "No space left on device"])
def test_without_its_checkpoint_nothing_moves(reason: str | None, tmp_path: Path) -> None:
    folder, stub, saved = RunFolder(tmp_path), Stub(reason), list[int]()
    moving: Any = StageMigration(folder, 0, time.time() - 100, stub, stub)  # type: ignore[arg-type]
    assert 100.5 <= moving.estimated_seconds() < 200, "a start and a checkpoint"
    assert moving.start_pending(7, lambda: saved.append(7)) == (reason is None) and saved == [7]
    assert moving.estimated_seconds() == float("inf"), "at most once a minute"
    stub.pending_move = None
    assert not moving.start_pending(8, lambda: saved.append(8)) and saved == [7]
    if reason:
        assert read_overrides(tmp_path) == RunOverrides() and not (tmp_path / OVERRIDES).exists()
        told = events(tmp_path, "layers_stay")[0]["words"]
        assert told == "does not move b from stage 1 to stage 0: No space left on device"
        return
    after: Any = StageMigration(folder, 0, time.time(), stub, stub)  # type: ignore[arg-type]
    assert after.estimated_seconds() == float("inf"), "nor by another start"
    assert stub.completed_move is not None and (
        stub.completed_move.step_s,
        stub.completed_move.predicted_s,
    ) == (2.0, 1.0)
    kept = read_overrides(tmp_path)
    assert kept.layers == (3, 1) and kept.under_way is None and kept.move_s is not None
    save_overrides(tmp_path, replace(kept, moved_s=time.time() - MIN_INTERVAL_S - 1))
    third: Any = StageMigration(folder, 0, time.time(), stub, stub)  # type: ignore[arg-type]
    assert third.estimated_seconds() == kept.move_s, "what the last one took"
    assert len(events(tmp_path, "layers_moved")) == 1
