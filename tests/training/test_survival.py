"""Whatever ends a process, a run goes on to the losses of one that nothing disturbed, every step written once."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
from torch.distributed.elastic.multiprocessing.api import MultiprocessContext

from tests.support.seeds import repeated
from tests.support.training.runs import beside, client_file, events, losses, run, strategy
from torchsplit_core.checkpoints.store import Checkpoints
from torchsplit_core.cli.command import main
from torchsplit_core.training import RunFolder
from torchsplit_core.training.launch import _failure_cause
from torchsplit_core.training.monitor.run_reader import RunReader
from torchsplit_core.training.rank import _report
from torchsplit_core.values import InputFault

assert torch.distributed.is_available()
EXACT = 1e-6
PLAN = strategy(optimizer="adamw", micro_batch=4)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run with dropout that nothing happens to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run(client_file(folder, dropout=0.1), folder / "run", PLAN, 2)
    return losses(folder / "run")


def test_a_killed_rank_is_started_again(undisturbed: list[float], tmp_path: Path) -> None:
    """Rank 1 dies in step 4 (samples 24 to 31, its half from 28), then rank 0 in step 6."""
    source = client_file(tmp_path, dropout=0.1, kill={"28": "rank", "40": "rank"})
    summary = run(source, tmp_path / "run", PLAN, 2)
    assert losses(tmp_path / "run") == pytest.approx(undisturbed, abs=EXACT)
    assert (summary.step, summary.restarts) == (6, 2)
    lost = events(tmp_path / "run", "rank_lost")
    assert [(event["rank"], "SIGKILL" in event["words"]) for event in lost] == [(1, True), (0, True)]
    assert len(events(tmp_path / "run", "restarted")) == 2
    assert (tmp_path / "run" / "checkpoints" / "LATEST").read_text() == "step-00000006\n"
    (log,) = (tmp_path / "run" / "logs").glob("agent-*.log")
    # The agent tells of two failures, and not of the ends after the last step.
    assert re.findall(r"exitcode: (\S+)\)", log.read_text()) == ["-9", "-9"]


@pytest.mark.repeated
def test_a_rank_that_hangs_is_named_and_replaced(undisturbed: list[float], tmp_path: Path) -> None:
    """Rank 1 is stopped in step 4, rank 0 waits without end in step 6: both in fetching a sample."""
    source = client_file(tmp_path, dropout=0.1, stall={"28": "stopped", "40": "waiting"})
    summary = run(source, tmp_path / "run", PLAN, 2, stall_limit_s=6.0)
    assert losses(tmp_path / "run") == pytest.approx(undisturbed, abs=EXACT)
    assert (summary.step, summary.restarts) == (6, 2)
    first, second = events(tmp_path / "run", "rank_stalled")
    assert first["rank"] == 1 and "it is stopped; it is ended, at step 4" in first["words"]
    assert second["rank"] == 0 and "'data', the others wait for it; it is ended, at step 6" in second["words"]
    assert [event["rank"] for event in events(tmp_path / "run", "rank_lost")] == [1, 0]


@repeated(("rank", "before"), [(0, "barrier"), (0, "close"), (1, "close"), (1, "barrier")], kept=1)
def test_a_rank_that_is_killed_at_the_very_end_costs_nothing(
    rank: int, before: str, undisturbed: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the first rank has left that all is done, no loss counts; torch's wait for ranks is not begun."""

    def waits(context: MultiprocessContext) -> bool:
        assert not is_done(context), "a rank that is killed now is waited for without end"
        return False

    is_done = MultiprocessContext._is_done
    monkeypatch.setattr(MultiprocessContext, "_is_done", waits)
    source = client_file(tmp_path, dropout=0.1, end=[rank, before])
    summary = run(source, tmp_path / "run", PLAN, 2)
    assert (tmp_path / "client" / "killed-end").exists()
    assert losses(tmp_path / "run") == pytest.approx(undisturbed, abs=EXACT) and summary.step == 6
    assert (tmp_path / "run" / "checkpoints" / "LATEST").read_text() == "step-00000006\n"
    assert RunReader(tmp_path / "run").view().state == "finished"
    lost = [(event["rank"], event["words"]) for event in events(tmp_path / "run", "rank_lost")]
    assert len(lost) == summary.restarts <= 1
    # Of the others it hangs on who comes first whether the run was done by then.
    if rank == 0:
        words = "rank 0 was ended by SIGKILL, after the last step"
        assert lost == ([] if before == "barrier" else [(0, words)])


@pytest.mark.repeated
def test_what_ranks_are_forked_from_may_be_killed_too(undisturbed: list[float], tmp_path: Path) -> None:
    source = client_file(tmp_path, dropout=0.1, kill={"28": "starter"})
    summary = run(source, tmp_path / "run", PLAN, 2)
    assert losses(tmp_path / "run") == pytest.approx(undisturbed, abs=EXACT)
    assert summary.restarts == 1 and len(events(tmp_path / "run", "rank_lost")) == 1


@pytest.mark.repeated
def test_a_killed_launcher_takes_its_ranks_along_and_resume_goes_on(
    undisturbed: list[float], tmp_path: Path
) -> None:
    source = client_file(tmp_path, dropout=0.1, kill={"28": "launcher"})
    (tmp_path / "s.json").write_text(REQUEST)
    launcher = beside(
        main,
        [
            "train", source, "--strategy", str(tmp_path / "s.json"), "-o", str(tmp_path / "run"), "--steps", "6",
            "--checkpoint-every", "2", "--in-order", "--trust",
        ],
    )  # fmt: skip
    launcher.join()
    assert launcher.exitcode == -9
    with pytest.raises(InputFault, match="--resume"):
        run(source, tmp_path / "run", PLAN, 2)
    run(source, tmp_path / "run", PLAN, 2, resume=True)
    assert losses(tmp_path / "run") == pytest.approx(undisturbed, abs=EXACT)


REQUEST = """{"format": "torchsplit.strategy_request", "version": 1,
 "model": {"kind": "source", "source": "client.py:client"},
 "fleet": [{"nodes": 1, "gpus_per_node": 2, "type": "CPU-2c"}],
 "training": {"global_batch": 8, "precision": "fp32"}, "fix": {"data": 2, "tensor": 1, "pipeline": 1,
  "context": 1, "expert": 1, "micro_batch": 4, "interleave": 1, "shard": "none", "recompute": "none",
  "sequence_parallel": false, "offload": "none"}}"""


@repeated(("shard", "then"), [("fsdp", 1), ("zero1", 2), ("none", 3)], kept=0)
def test_a_checkpoint_of_four_is_read_by_fewer(
    shard: str, then: int, undisturbed_plainly: list[float], tmp_path: Path
) -> None:
    """And by another division, with layers computed again: what four began ends as if fewer had begun it."""
    source = client_file(tmp_path)
    run(source, tmp_path / "run", strategy(optimizer="adamw", shard=shard, micro_batch=4), 4, steps=4)
    plan = strategy(
        optimizer="adamw", shard="none" if shard == "zero1" else "fsdp", micro_batch=4, recompute="full"
    )
    run(source, tmp_path / "run", plan, then, resume=True)
    assert losses(tmp_path / "run") == pytest.approx(undisturbed_plainly, abs=EXACT)
    assert [line["world_size"] for line in RunFolder(tmp_path / "run").steps()] == [4] * 4 + [then] * 2


@pytest.mark.repeated
def test_a_run_goes_on_with_what_is_left_where_a_rank_never_lives(
    undisturbed_plainly: list[float], tmp_path: Path
) -> None:
    source = client_file(tmp_path, no_room_for=2)
    summary = run(source, tmp_path / "run", PLAN, 3)
    assert losses(tmp_path / "run") == pytest.approx(undisturbed_plainly, abs=EXACT)
    assert summary.restarts == 2 and RunFolder(tmp_path / "run").facts()["processes"] == 2
    assert "goes on with 2 processes" in events(tmp_path / "run", "scaled")[0]["words"]


def test_what_a_rank_says_of_its_end_is_there_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank is ended with the first that fails, perhaps in the middle of saying why it fails itself."""
    monkeypatch.setenv("RANK", "1")

    def ended_half_way(path: Path, text: str, encoding: str) -> None:
        path.write_bytes(text.encode(encoding)[:7])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", ended_half_way)
        with pytest.raises(KeyboardInterrupt):
            _report(tmp_path, "here", ValueError("five"), 0.0)
    assert _failure_cause(tmp_path, 1, -9, {}, "here").message == "was ended by SIGKILL"
    # Of a chain of errors the last cause is told.
    failed = RuntimeError("the step failed")
    failed.__cause__ = ValueError("five")
    _report(tmp_path, "here", failed, 0.0)
    assert _failure_cause(tmp_path, 1, 1, {}, "here").message == "failed: ValueError: five"


def test_a_checkpoint_that_was_cut_off_is_told_and_the_one_before_is_used(tmp_path: Path) -> None:
    source = client_file(tmp_path)
    run(source, tmp_path / "run", PLAN, 1, steps=4)
    before = losses(tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "step-00000004"
    part = next(newest.glob("*.distcp"))
    part.write_bytes(part.read_bytes()[:-7])
    run(source, tmp_path / "run", PLAN, 1, steps=4, resume=True)
    assert losses(tmp_path / "run") == pytest.approx(before, abs=EXACT)
    assert "step-00000004" in events(tmp_path / "run", "checkpoint_damaged")[0]["words"]
    assert "after step 2; 2 steps" in events(tmp_path / "run", "resumed")[0]["words"]
    for path in (tmp_path / "run" / "checkpoints").glob("step-*/manifest.json"):
        path.unlink()
    with pytest.raises(
        InputFault, match=r"step-00000004: manifest\.json cannot be read: no such file; step-00000002: "
    ):
        run(source, tmp_path / "run", PLAN, 1, steps=6, resume=True)


def test_a_loss_that_is_no_number_stops_the_run_and_its_checkpoint_stays(tmp_path: Path) -> None:
    """Sample 37 is in step 5, in the half of rank 1."""
    source = client_file(tmp_path, nan=37)
    with pytest.raises(InputFault, match=r"loss of step 5, rank 1.*checkpoint of step 4 is kept"):
        run(source, tmp_path / "run", PLAN, 2)
    assert len(losses(tmp_path / "run")) == 4
    assert events(tmp_path / "run", "not_finite")[0]["rank"] == 1
    assert events(tmp_path / "run", "restarted") == []
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps()[-1] == 4


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    source = client_file(tmp_path)
    run(source, tmp_path / "run", PLAN, 1, steps=2)
    (tmp_path / "client" / "plan.json").write_text('{"width": 16}')
    with pytest.raises(InputFault, match=r"step-00000002: is of .*, whose weights differ"):
        run(source, tmp_path / "run", PLAN, 1, resume=True)
    with pytest.raises(InputFault, match="is 4, but the run began with 8"):
        run(source, tmp_path / "run", strategy(global_batch=4), 1, resume=True)
    with pytest.raises(InputFault, match="shuffled: is True, but the run began with False"):
        run(source, tmp_path / "run", PLAN, 1, resume=True, shuffle=True)
    assert len(losses(tmp_path / "run")) == 2


def test_two_runs_into_one_folder_are_refused(tmp_path: Path) -> None:
    source = client_file(tmp_path)
    folder = RunFolder(tmp_path / "run")
    with folder.exclusive(resume=False), pytest.raises(InputFault, match="in use"):
        run(source, tmp_path / "run", PLAN, 1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    with pytest.raises(InputFault, match=r"thesis\.txt"):
        run(source, tmp_path / "other", PLAN, 1)


def test_a_disk_that_is_full_while_saving_costs_no_step(tmp_path: Path) -> None:
    """In step 6 files may no longer be as large as a checkpoint: one before stays, and the end says so.

    That of step 2 is complete when that of step 4 begins, which may be as late as step 6.
    """
    source = client_file(tmp_path, disk=40, width=32)
    with pytest.raises(InputFault, match=r"checkpoint of step 6: was not written: .*file too large"):
        run(source, tmp_path / "run", PLAN, 1)
    assert len(losses(tmp_path / "run")) == 6
    failed = [event["words"] for event in events(tmp_path / "run", "checkpoint_failed")]
    assert all("file too large" in words for words in failed) and "of step 6 was not" in failed[-1]
    complete = {"step-00000002", "step-00000004"} if len(failed) == 1 else {"step-00000002"}
    folder = tmp_path / "run" / "checkpoints"
    assert {one.name for one in folder.iterdir()} == {"LATEST", *complete}
    assert (folder / "LATEST").read_text() == f"{max(complete)}\n"


def test_ranks_with_other_versions_of_torch_and_too_many_of_them_are_refused(tmp_path: Path) -> None:
    source = client_file(tmp_path, torch="1.0")
    with pytest.raises(InputFault, match=r"rank 1 \(node .*torch 1\.0.*rank 0 .* has 2"):
        run(source, tmp_path / "run", PLAN, 2)
    assert losses(tmp_path / "run") == []
    many = 4 * len(os.sched_getaffinity(0)) + 1
    with pytest.raises(InputFault, match=f"--processes: is {many}, above the {many - 1} that "):
        run(source, tmp_path / "other", strategy(global_batch=many), many)


def test_a_fault_of_the_data_ends_the_run_with_its_line(tmp_path: Path) -> None:
    source = client_file(tmp_path, **{"raise": 9})
    with pytest.raises(InputFault, match=r"sample 9 is unreadable \(client\.py:\d+\)"):
        run(source, tmp_path / "run", PLAN, 2)
