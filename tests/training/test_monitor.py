"""A run as it is seen from outside: while it goes on, after it was killed, when it was asked for something."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from tests.support.paths import ROOT
from tests.support.training.folders import left_folder
from tests.support.training.runs import client_file, events, losses, run, strategy
from torchsplit_core.files import read_file
from torchsplit_core.training import RunFolder, fit_to_world_size, run_strategy_of
from torchsplit_core.training.monitor import (
    RunReader,
    RunView,
    is_requested,
    rank_status,
    read_launch,
    send_request,
)
from torchsplit_core.training.monitor.control_files import StopRequest
from torchsplit_core.training.monitor.tail import JsonTail
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.run import PredictedStep

assert torch.distributed.is_available()
PLAN = strategy(optimizer="adamw", micro_batch=4)
WAIT_S = 120.0
REQUEST = """{"format": "torchsplit.strategy_request", "version": 1,
 "model": {"kind": "source", "source": "client.py:client"},
 "fleet": [{"nodes": 1, "gpus_per_node": 2, "type": "CPU-2c"}],
 "training": {"global_batch": 8, "precision": "fp32"}, "fix": {"data": 2, "tensor": 1, "pipeline": 1,
  "context": 1, "expert": 1, "micro_batch": 4, "interleave": 1, "shard": "none", "recompute": "none",
  "sequence_parallel": false, "offload": "none"}}"""


def until(run_folder: Path, found: Callable[[RunView], bool]) -> RunView:
    """The run once that is so."""
    look, end = RunReader(run_folder), time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if (run_folder / "events.jsonl").exists() and found(view := look.view()):
            return view
        time.sleep(0.05)
    raise AssertionError(f"not within {WAIT_S} s")


def started(source: str, folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """`torchsplit train` in a process of its own."""
    (folder / "s.json").write_text(REQUEST)
    return subprocess.Popen(
        [
            sys.executable, "-m", "torchsplit_core", "train", source, "--strategy", str(folder / "s.json"),
            "-o", str(folder / "run"), "--in-order", "--trust", *more,
        ],
        stderr=(folder / "told").open("wb"), env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_a_run_that_ended_is_seen_whole(tmp_path: Path) -> None:
    run(client_file(tmp_path, kill={"28": "rank"}), tmp_path / "run", PLAN, 2)
    view = RunReader(tmp_path / "run").view()
    assert (view.state, view.alive, view.last_step, view.target_steps) == ("finished", False, 6, 6)
    assert list(view.steps.step) == [1, 2, 3, 4, 5, 6]
    assert list(view.steps.loss) == losses(tmp_path / "run")
    # Whether a checkpoint was complete when it was killed decides how it began again.
    begun = [one.kind.replace("resumed", "started") for one in view.events]
    assert [kind for kind in begun if kind in ("rank_lost", "started")] == ["started", "rank_lost", "started"]
    assert [(one.rank, one.state, one.device) for one in view.ranks] == [
        (0, "done at step 6", "cpu"), (1, "done at step 6", "cpu"),
    ]  # fmt: skip
    for rank in view.ranks:
        assert rank.peak_bytes > 2**20 and rank.parts_s is not None
        assert {"data", "forward", "backward", "agreement", "optimizer"} <= set(rank.parts_s)
        assert rank.communication_share is not None and 0 <= rank.communication_share <= 1
    assert [(one.step, one.newest) for one in view.checkpoints] == [(4, False), (6, True)]
    assert all(one.bytes > 1000 for one in view.checkpoints)
    assert view.launch is not None and view.launch.strategy.choices.data == 2


def test_a_rank_that_says_its_end_without_a_new_step_keeps_where_its_time_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last step was said when it was done, as every step that takes a second is."""
    monkeypatch.setattr(rank_status, "PUBLISH_INTERVAL_S", 0.0)
    rank = rank_status.RankReporter(tmp_path, 0, torch.device("cpu"), torch.nn.Linear(1, 1), 0)
    assert "parts_s" not in json.loads(rank.path.read_text()), "no step is done yet"
    rank.record_phase("forward")
    rank.end_step(1)
    before = json.loads(rank.path.read_text())["parts_s"]
    rank.publish(1, ended=True)
    told = json.loads(rank.path.read_text())
    assert told["ended"] and told["parts_s"] == before and before["forward"] > 0
    rank.record_phase("backward")
    assert told["averaged_steps"] == 1
    rank.end_step(2)
    assert [*json.loads(rank.path.read_text())["parts_s"]] == ["backward"], "of the steps since alone"


@pytest.mark.repeated
def test_a_run_is_asked_for_a_checkpoint_and_to_stop(tmp_path: Path) -> None:
    """What was begun is gone on with from there, to the losses of a run that nobody asked anything."""
    # Slow, so that it has not gone far when it is stopped: as far goes the run that nobody asked anything.
    source = client_file(tmp_path, samples=4000, slow=0.02)
    launcher = started(source, tmp_path, "--steps", "100000", "--checkpoint-every", "100000")
    folder = tmp_path / "run"
    until(folder, lambda view: view.last_step > 2)
    send_request(folder, "checkpoint")
    view = until(folder, lambda view: bool(view.checkpoints))
    assert view.alive and view.state == "running" and not is_requested(folder, "checkpoint")
    step = view.checkpoints[0].step
    send_request(folder, "stop")
    assert launcher.wait(WAIT_S) == 130
    view = RunReader(folder).view()
    told = f"stopped at step {view.last_step}; --resume goes on from the last complete checkpoint"
    assert told in (tmp_path / "told").read_text()
    assert (
        view.state == "stopped"
        and not view.alive
        and "was stopped on request after step" in view.words
        and is_requested(folder, "stop")
    )
    launch = read_launch(folder)
    assert launch is not None and launch.source == source
    run(source, folder, launch.strategy, 2, resume=True, steps=step + 2, checkpoint_every=100000)
    assert f"after step {step};" in events(folder, "resumed")[0]["words"] and not is_requested(folder, "stop")
    run(source, tmp_path / "whole", PLAN, 1, steps=step + 2, checkpoint_every=100000)
    assert losses(folder) == pytest.approx(losses(tmp_path / "whole"), abs=1e-6)


def test_a_stop_is_heard_once_by_every_node_that_was_there(tmp_path: Path) -> None:
    nodes = [StopRequest(tmp_path), StopRequest(tmp_path)]
    assert not any(node.is_new() for node in nodes)
    send_request(tmp_path, "stop")
    later = StopRequest(tmp_path)
    assert all(node.is_new() for node in nodes)
    assert not any(node.is_new() for node in (*nodes, later))


@pytest.mark.repeated
def test_a_killed_launcher_leaves_a_run_that_is_broken_off(tmp_path: Path) -> None:
    launcher = started(client_file(tmp_path, samples=4000), tmp_path, "--steps", "100000")
    until(tmp_path / "run", lambda view: view.last_step > 0 and view.state == "running")
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    view = RunReader(tmp_path / "run").view()
    assert view.state == "broken off" and "without a message" in view.words


def test_only_what_is_new_is_read_and_a_replaced_file_again(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = JsonTail(path)
    assert lines.read_new() == (False, [])
    path.write_text('{"a": 1}\nno json\n[1]\n{"a": 2')
    assert lines.read_new() == (False, [{"a": 1}])
    with path.open("a") as stream:
        stream.write('}\n{"a": 3}\n')
    assert lines.read_new() == (False, [{"a": 2}, {"a": 3}])
    assert lines.read_new() == (False, [])
    (tmp_path / "other").write_text('{"b": 1}\n')
    (tmp_path / "other").replace(path)
    assert lines.read_new() == (True, [{"b": 1}])
    path.unlink()
    assert lines.read_new() == (True, [])


def test_steps_that_are_done_again_are_seen_once(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    look = RunReader(tmp_path)
    for step in range(1, 6):
        folder.add_step(step, 1.0 / step, 8, 0.1, 2, 2**20)
    assert look.view().last_step == 5
    folder.truncate_steps_after(3)
    folder.add_step(4, 7.0, 8, 0.1, 2, 2**20)
    assert list(look.view().steps.loss) == [1.0, 0.5, 1 / 3, 7.0]


@pytest.mark.parametrize("what", ["metrics.jsonl", "events.jsonl", "watch/rank-0.json"])
def test_nonsense_in_a_folder_is_left_out(what: str, tmp_path: Path) -> None:
    RunFolder(tmp_path).log_event("started", "begins", 0)
    (tmp_path / "watch").mkdir()
    for text in (
        '{"step": "x", "rank": []}\n',
        "[]\n",
        '{"step": 1e400, "loss": 1}\n',
        '{"time": 3, "kind": 4}\n',
    ):
        with (tmp_path / what).open("a") as stream:
            stream.write(text)
    view = RunReader(tmp_path).view()
    assert (len(view.steps), len(view.events), view.ranks) == (0, 1, ())


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputFault, match="is not the folder of a run"):
            RunReader(path).view()
    (tmp_path / "metrics.jsonl").touch()
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "launch.json").write_text(json.dumps({"source": 3}))
    with pytest.raises(InputFault, match=r"launch\.json"):
        RunReader(tmp_path).view()


def test_what_a_strategy_predicted_goes_with_the_run_on_as_many_processes() -> None:
    outcome = read_file(ROOT / "examples" / "strategy.json")[1]
    best = replace(outcome.candidates[0], shard="fsdp")
    found = run_strategy_of(replace(outcome, candidates=(best,)))
    assert found.predicted == PredictedStep(
        best.memory_gib.total, best.seconds_per_step, best.low_s, best.high_s, asdict(best.parts_s)
    )
    devices = found.choices.devices
    assert fit_to_world_size(found, devices).predicted == found.predicted
    assert fit_to_world_size(found, devices // 2).predicted is None


def test_ranks_of_a_start_with_more_of_them_are_not_shown(tmp_path: Path) -> None:
    folder = left_folder(tmp_path)
    assert [one.rank for one in RunReader(tmp_path).view().ranks] == [0, 1]
    folder.write_facts(folder.facts() | {"processes": 1}, ())
    assert [one.rank for one in RunReader(tmp_path).view().ranks] == [0]


def test_a_lost_rank_and_a_silent_one_are_told(tmp_path: Path) -> None:
    folder = left_folder(tmp_path, steps=5, wanted=9)
    path = tmp_path / "watch" / "rank-1.json"
    told = json.loads(path.read_text()) | {"time": "2020-01-01T00:00:00.000Z"}
    path.write_text(json.dumps(told))
    with folder.exclusive(resume=True):
        view = RunReader(tmp_path).view()
        assert view.alive and view.ranks[1].state.startswith("lost: rank 1 was ended by SIGKILL")
        path.write_text(json.dumps(told | {"rank": 0}))
        (tmp_path / "watch" / "rank-0.json").unlink()
        assert RunReader(tmp_path).view().ranks[0].state.startswith("silent for ")


def test_a_start_that_is_refused_changes_nothing_that_is_kept_of_the_run(tmp_path: Path) -> None:
    source = client_file(tmp_path)
    run(source, tmp_path / "run", PLAN, 1, steps=2)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "run" / "watch").iterdir()}
    assert set(kept) == {"launch.json", "rank-0.json"}
    with pytest.raises(InputFault, match="is 4, but the run began with 8"):
        run(source, tmp_path / "run", strategy(global_batch=4), 1, resume=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run" / "watch").iterdir()} == kept
