"""The page of training runs as a user drives it."""

import contextlib
import hashlib
import json
import os
import shutil
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.runs.curves import TIME, CurveSettings, held_out_curves
from app.runs.new_form import MANUAL_STRATEGY, parse_settings
from app.runs.status_tables import checkpoint_rows
from app.session import runs
from app.session.result_kind import RUN
from tests.app.test_ended_work import begin
from tests.app.trainings.test_training_page import found
from tests.support.app.page import button, field, open_page, press, said
from tests.support.app.values import graph
from tests.support.training.folders import left_folder
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import (
    RUN_HERE,
    TRACE,
    TRAIN,
    TRAIN_ON,
    RunHereParameters,
    TraceParameters,
    TrainOnParameters,
    TrainParameters,
    UploadedFile,
    to_stored,
)
from torchsplit_core.training import RunFolder
from torchsplit_core.training.monitor import is_requested, send_request
from torchsplit_core.training.monitor.discovery import published_endpoint
from torchsplit_core.training.monitor.run_reader import RunReader
from torchsplit_core.training.stored_runs import RUNS_SETTING, run_paths
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.held_out import ValidationOptions
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy
from torchsplit_core.values.strategy.updates import UpdateOptions
from torchsplit_core.values.training import ParallelConfig, TrainingJob
from torchsplit_core.workspace.store import Workspace


def kept(workspace: Workspace, name: str, **how: Any) -> Path:
    """A run of the workspace's own."""
    path = workspace.runs / name
    left_folder(path, **how)
    told = workspace.setting(RUNS_SETTING, [])
    workspace.set_setting(RUNS_SETTING, [*told, {"name": name, "path": None}])
    return path


def opened(workspace: Workspace, name: str) -> AppTest:
    """The page of one run."""
    return open_page("runs", workspace, run=name)


def table(test: AppTest, column: str) -> Any:
    """The table that has that column."""
    return next(element.value for element in test.dataframe if column in element.value.columns)


def test_a_run_is_started_with_what_the_form_says(page, workspace, started):
    test = page("runs", workspace)
    assert "Here you will see models being trained" in said(test)
    field(test, "selectbox", "Sample").select("diamond").run()
    field(test, "number_input", "Steps").set_value(30).run()
    press(test, "Start the run")
    ((name, parameters),) = started
    assert name == TRAIN and isinstance(parameters, TrainParameters)
    assert (parameters.request, parameters.source, parameters.file) == ("diamond-1", "sample:diamond", None)
    assert (parameters.strategy.choices.data, parameters.strategy.job.global_batch) == (2, 8)
    assert (parameters.options.steps, parameters.options.checkpoint_every) == (30, 10)
    assert run_paths(workspace) == {"diamond-1": workspace.runs / "diamond-1"}


def test_the_sample_with_real_data_begins_with_steps_in_which_it_learns(page, workspace, started):
    test = page("runs", workspace)
    assert field(test, "number_input", "Steps").value == 40
    field(test, "selectbox", "Sample").select("digits").run()
    press(test, "Start the run")
    assert started[0][1].options.steps == 200


def test_what_is_not_run_is_said_before_it_starts(page, workspace, started):
    test = page("runs", workspace)
    field(test, "number_input", "Processes").set_value(9).run()
    assert button(test, "Start the run").disabled and not started
    assert "Processes: is 9: 9 data-parallel ranks for the 8 samples of a step" in said(test)


def test_shares_and_balance_of_the_form_reach_the_run(page, workspace, started):
    test = page("runs", workspace)
    field(test, "text_input", "Shares").set_value("3, 1").run()
    field(test, "toggle", "Balance").set_value(True).run()
    press(test, "Start the run")
    options = started[0][1].options
    assert (options.shares, options.balance) == ((3.0, 1.0), True)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ("1,2,3", "Shares: has 3 numbers for 2 data-parallel ranks. Give one positive number for each rank"),
        ("3,-1", "Shares: has -1, which is not a positive number. Give one positive number"),
        ("3,nan", "Shares: has nan, which is not a positive number. Give one positive number"),
        ("3:1", "Shares: is '3:1', not numbers with commas between. Give for example 3,1."),
    ],
)
def test_shares_that_the_command_line_refuses_are_refused_below_their_field(
    page, workspace, started, shares, message
):
    test = page("runs", workspace)
    field(test, "text_input", "Shares").set_value(shares).run()
    assert button(test, "Start the run").disabled and not started
    (error,) = test.error
    assert message in said(test) and error.value.startswith("Shares")
    field(test, "text_input", "Shares").set_value("").run()
    assert not test.error and not button(test, "Start the run").disabled


@pytest.mark.parametrize(("shard", "refused"), [("fsdp", True), ("zero2", True), ("zero1", False)])
def test_balance_is_refused_where_no_rank_is_timed_alone(page, workspace, shard, refused):
    test = page("runs", workspace)
    field(test, "selectbox", "Sharding").select(shard).run()
    field(test, "toggle", "Balance").set_value(True).run()
    assert len(test.error) == refused == button(test, "Start the run").disabled
    words = f"Balance: does not work with shard {shard}: ranks wait for each other inside a pass"
    assert (words in said(test)) == refused
    assert ("Give Shares, or fix shard to none or zero1" in said(test)) == refused


def test_a_stored_strategy_is_taken_with_what_it_predicted(workspace):
    outcome = found(workspace, "small")
    told = {"strategy": "small", "candidate": 1, "precision": "fp32", "steps": 5, "every": 2}
    best = outcome.candidates[0]
    devices = best.data * best.tensor * best.pipeline
    strategy, _ = parse_settings(workspace, told | {"processes": devices})
    assert strategy.choices.data == best.data and strategy.predicted is not None
    assert strategy.predicted.memory_gib == best.memory_gib.total
    here = {
        "strategy": MANUAL_STRATEGY, "shard": "fsdp", "optimizer": "sgd", "batch": 6, "micro": 2,
        "precision": "bf16",
    }  # fmt: skip
    strategy, options = parse_settings(workspace, told | here | {"processes": 3})
    assert (strategy.choices.shard, strategy.choices.data, strategy.job.precision) == ("fsdp", 3, "bf16")
    assert options.steps == 5 and options.update == UpdateOptions()
    update = {"schedule": "cosine", "warmup": 2, "clip": 1.5}
    options = parse_settings(workspace, told | here | update | {"processes": 3})[1]
    assert options.update == UpdateOptions(1.5, "cosine", 2)
    assert options.validation == ValidationOptions()
    held_out = {"validate_every": 2, "best": " accuracy "}
    options = parse_settings(workspace, told | here | held_out | {"processes": 3})[1]
    assert options.validation == ValidationOptions(2, "accuracy")
    with pytest.raises(InputFault, match="--warmup-steps: is 6, above the 5 steps of the run"):
        parse_settings(workspace, told | here | update | {"processes": 3, "warmup": 6})


def test_a_file_of_yours_is_trained_once_it_is_trusted(page, workspace, started):
    data = b"client = None\n"
    workspace.put_bytes("upload", "my net.py", data)
    test = page("runs", workspace)
    field(test, "radio", "Model").set_value("A file of yours").run()
    start = button(test, "Start the run")
    assert start.disabled
    box = next(element for element in test.checkbox if "not confined" in element.label)
    box.check().run()
    press(test, "Start the run")
    parameters = started[0][1]
    assert parameters.source == "my net.py:client"
    assert parameters.file == UploadedFile("my net.py", hashlib.sha256(data).hexdigest())


def test_a_server_for_others_executes_no_upload_and_opens_no_folder(page, workspace, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSPLIT_EXECUTION", "refused")
    workspace.put_bytes("upload", "net.py", b"client = None\n")
    test = page("runs", workspace)
    field(test, "radio", "Model").set_value("A file of yours").run()
    assert next(element for element in test.checkbox if "not confined" in element.label).disabled
    left_folder(tmp_path / "run")
    with pytest.raises(InputFault, match="others can reach this server"):
        runs.open_folder(workspace, str(tmp_path / "run"))


def test_gpus_of_its_nodes_are_shown_as_they_were_told_of(workspace):
    kept(workspace, "diamond-1")
    told = {
        "node": "a", "time": "2090-01-01T00:00:00.000Z",
        "gpus": [{"index": 3, "name": "A100", "uuid": "GPU-1", "busy_percent": 90, "dram_active": 0.25}],
    }  # fmt: skip
    path = runs.path_of(workspace, "diamond-1") / "watch" / "gpus-a.json"
    path.write_text(json.dumps(told))
    test = opened(workspace, "diamond-1")
    shown = table(test, "SMs at work")
    assert (shown["node"][0], shown["GPU"][0], shown["at work"][0]) == ("a", "3", "90\u202f%")
    assert (shown["memory at work"][0], shown["SMs at work"][0], shown["power"][0]) == (
        "25\u202f%", "n/a", "n/a",
    )  # fmt: skip
    assert "untested on hardware" in said(test).lower()


def test_a_run_is_shown_whole(workspace):
    kept(workspace, "diamond-1")
    test = opened(workspace, "diamond-1")
    words = said(test)
    assert {"Ranks", "Where a step's time goes", "What happened", "Checkpoints"} <= {
        element.value for element in test.header
    }
    assert "data 2" in words and "0.25" in words
    figures = {element.label: element.value for element in test.metric}
    assert figures["Step"] == "6" and figures["Samples/s"] == "40"
    assert figures["Step time"].startswith("0.2")
    ranks = table(test, "predicted")
    assert list(ranks["state"]) == ["done at step 6"] * 2
    assert list(ranks["peak memory"]) == ["768\u202fMiB"] * 2
    assert list(ranks["predicted"]) == ["1.5\u202fGiB"] * 2
    assert list(ranks["communication"]) == ["n/a"] * 2
    assert "GPUs" not in {element.value for element in test.header}
    happened = "".join(element.proto.body for element in test.get("html"))
    order = [happened.index(f">{kind}<") for kind in ("finished", "resumed", "rank lost", "started")]
    assert order == sorted(order) and "rank 1 was ended by SIGKILL, at step 6" in happened
    assert ">checkpoint<" not in happened
    field(test, "toggle", "Every checkpoint").set_value(True).run()
    assert ">checkpoint<" in "".join(element.proto.body for element in test.get("html"))
    assert list(table(test, "size")["size"]) == ["5\u202fkB"]


def test_the_stages_of_a_pipeline_are_shown_with_their_time_and_what_moved(workspace):
    path = kept(workspace, "diamond-1")
    assert "Stages" not in {element.value for element in opened(workspace, "diamond-1").header}
    many = dict.fromkeys((f"blocks.{place}" for place in range(3, 10)), None)
    RunFolder(path).log_event("layers_moved", "moved blocks.2 from stage 1 to stage 0 in 2 s", 0)
    for rank, blocks in enumerate(({"blocks.0": 0.25, "blocks.2": 0.5}, many)):
        data = json.loads((path / "watch" / f"rank-{rank}.json").read_text())
        (path / "watch" / f"rank-{rank}.json").write_text(json.dumps({**data, "blocks_s": blocks}))
    test = opened(workspace, "diamond-1")
    shown = table(test, "longest block")
    assert list(shown["blocks"]) == ["blocks.0, blocks.2", "blocks.3 … blocks.9, 7 blocks"]
    assert list(shown["a micro-batch"]) == ["0.75\u202fs", "n/a"]
    assert list(shown["longest block"]) == ["blocks.2, 0.5\u202fs", "n/a"]
    happened = "".join(element.proto.body for element in test.get("html"))
    assert ">layers moved<" in happened and "moved blocks.2 from stage 1 to stage 0 in 2 s" in happened


def test_a_run_is_gone_on_with(workspace, started):
    kept(workspace, "diamond-1", steps=5, wanted=9)
    test = opened(workspace, "diamond-1")
    words = said(test)
    assert "[interrupted]" in words and "**Interrupted at step 5:** it ended without a message" in words
    assert "Resume goes on from the last checkpoint, of step 4. 1 step since then is done again." in words
    press(test, "Resume")
    assert started == [(TRAIN_ON, TrainOnParameters("diamond-1", 9))]


def test_a_run_that_goes_on_is_asked_for_a_checkpoint_and_to_stop(workspace):
    path = kept(workspace, "diamond-1", steps=5, wanted=9)
    (path / "tensorboard").mkdir()
    (path / "tensorboard" / "events.out.tfevents.1").touch()
    with RunFolder(path).exclusive(resume=True), published_endpoint(path, "0.0.0.0", 9100):
        test = opened(workspace, "diamond-1")
        # Where other tools find its figures, to be copied.
        assert [element.proto.code_text for element in test.get("code")] == [
            f"curl http://{socket.gethostname()}:9100/metrics",
            f"tensorboard --logdir {path / 'tensorboard'}",
        ]
        press(test, "Checkpoint now")
        assert is_requested(path, "checkpoint") and not is_requested(path, "stop")
        assert "Takes no checkpoint: Resume does the steps since" in button(test, "Stop the run").help
        press(test, "Stop the run")
        assert is_requested(path, "stop")


def test_a_run_that_was_stopped_says_at_which_step_and_what_resume_does(workspace):
    path = kept(workspace, "diamond-1", steps=5, wanted=9)
    RunFolder(path).log_event("stopped", "node here was stopped on request after step 5")
    test = opened(workspace, "diamond-1")
    words = said(test)
    assert list(table(test, "predicted")["state"]) == ["ended, last report at step 5"] * 2
    assert "so a run that was stopped may have done a few steps more than its ranks reported" in words
    assert "**Stopped at step 5.** Resume goes on from the last checkpoint, of step 4. 1 step since" in words
    RunFolder(path).log_event("stopped", "the data: has no samples. Give at least one.", 1)
    shutil.rmtree(path / "checkpoints" / "step-00000004")
    words = said(opened(workspace, "diamond-1"))
    assert (
        "**Stopped at step 5.** the data: has no samples. Give at least one. Resume begins again at" in words
    )


def test_a_start_that_the_user_stopped_is_no_fault(workspace):
    path = kept(workspace, "diamond-1")
    record = workspace.add_job(
        "Run", TRAIN_ON, to_stored(TRAIN_ON, TrainOnParameters("diamond-1", 3000, None))
    )
    # Its process is gone, and left no word.
    (workspace.store.root / "jobs" / f"{record.id}.json").write_text(
        json.dumps({"state": "running", "pid": -1})
    )
    assert "killed, the disk was full" in opened(workspace, "diamond-1").error[0].value
    send_request(path, "stop")
    test = opened(workspace, "diamond-1")
    assert not test.error and "It was stopped while its processes started." in said(test)


@pytest.mark.parametrize("begun", [False, True])
def test_a_finished_run_that_is_resumed_starts_towards_its_new_step(workspace, begun):
    """From the press on, before the processes hold the folder and after."""
    path = kept(workspace, "diamond-1")
    record = workspace.add_job(
        "Run", TRAIN_ON, to_stored(TRAIN_ON, TrainOnParameters("diamond-1", 3000, None))
    )
    told = json.dumps({"state": "running", "share": 0.0, "message": "", "pid": os.getpid()})
    (workspace.store.root / "jobs" / f"{record.id}.json").write_text(told)
    with RunFolder(path).exclusive(resume=True) if begun else contextlib.nullcontext():
        test = opened(workspace, "diamond-1")
        words = said(test)
        assert "[starting]" in words and "It goes on from the last checkpoint, of step 4." in words
        assert "\nof 3 000\n" in words and "\nof 6\n" not in words and "**Finished" not in words
        assert list(table(test, "predicted")["state"]) == ["starting"] * 2
        RunFolder(path).log_event("resumed", "goes on after step 6 with 2 processes", 0)
        assert not begun or "[running]" in said(opened(workspace, "diamond-1"))


def test_a_folder_elsewhere_is_opened_and_gone_on_with_once_trusted(page, workspace, tmp_path, started):
    left_folder(tmp_path / "elsewhere", steps=5, wanted=9)
    for text in (" ", "relative", str(tmp_path), "/nowhere/at/all", "~nobody-is/x", "/x\0y", "/" + 300 * "a"):
        with pytest.raises(InputFault):
            runs.open_folder(workspace, text)
    test = page("runs", workspace)
    field(test, "text_input", "Folder").set_value(str(tmp_path / "elsewhere")).run()
    press(test, "Open it")
    assert run_paths(workspace) == {"elsewhere-1": tmp_path / "elsewhere"}
    test = opened(workspace, "elsewhere-1")
    assert button(test, "Resume").disabled
    next(element for element in test.checkbox if "my own" in element.label).check().run()
    press(test, "Resume")
    assert started == [(TRAIN_ON, TrainOnParameters("elsewhere-1", 9, None, True))]
    press(opened(workspace, "elsewhere-1"), "Show it no longer")
    assert run_paths(workspace) == {} and (tmp_path / "elsewhere" / "metrics.jsonl").exists()


def test_a_run_is_removed_with_its_folder(workspace):
    path = kept(workspace, "diamond-1")
    RUN.tag(workspace, "diamond-1", ["baseline"])
    press(opened(workspace, "diamond-1"), "Remove for good")
    assert not path.exists() and RUN.names(workspace) == () and not RUN.tags(workspace)


def test_a_deleted_workspace_leaves_no_run(workspace):
    path = kept(workspace, "diamond-1")
    workspace.store.delete(workspace.id)
    assert not path.exists()


def test_an_address_of_a_run_that_is_gone_says_so(workspace):
    assert "There is no run 'gone-1'" in said(opened(workspace, "gone-1"))


def test_why_a_run_did_not_begin_is_said_on_its_page(workspace):
    (workspace.runs / "net-1").mkdir(parents=True)
    workspace.set_setting(RUNS_SETTING, [{"name": "net-1", "path": None}])
    plan = RunStrategy(ParallelConfig(data=2), TrainingJob(8, "fp32"))
    asked_for = TrainParameters("net-1", "net.py:client", plan, RunOptions(steps=1))
    record = workspace.add_job("Run net-1", TRAIN, to_stored(TRAIN, asked_for))
    told = {"state": "failed", "fault": "net.py is gone"}
    (workspace.store.root / "jobs" / f"{record.id}.json").write_text(json.dumps(told))
    test = opened(workspace, "net-1")
    assert [one.value for one in test.error] == ["net.py is gone"] and "It has not begun" in said(test)


def test_a_step_of_a_run_is_brought_among_the_models(page, workspace, started):
    kept(workspace, "diamond-1")
    test = opened(workspace, "diamond-1")
    assert field(test, "selectbox", "Weights of step").options == ["4"]
    press(test, "Use this model")
    ((name, parameters),) = started
    assert (name, parameters) == (TRACE, TraceParameters("run:diamond-1@step-4"))
    workspace.put("graph", "run:diamond-1@step-4", graph())
    listed = page("models", workspace)
    assert "loss 0.5" in said(listed) and "run:diamond-1@step-4" in said(listed)
    assert not button(listed, "Profile").disabled
    shutil.rmtree(workspace.runs / "diamond-1")
    assert "no such run" in said(page("models", workspace))


def test_the_file_that_a_run_was_trained_from_has_to_be_trusted_again(workspace, started):
    kept(workspace, "net-1", source=f"{workspace.runs}/.sources/0/net.py:client")
    assert "To use this model, upload the file" in said(opened(workspace, "net-1"))
    workspace.put_bytes("upload", "net.py", b"client = None\n")
    test = opened(workspace, "net-1")
    assert button(test, "Use this model").disabled
    field(test, "checkbox", "I trust").set_value(True).run()
    press(test, "Use this model")
    digest = hashlib.sha256(b"client = None\n").hexdigest()
    assert started[-1][1] == TraceParameters("run:net-1@step-4", UploadedFile("net.py", digest))


def test_held_out_figures_stand_beside_the_loss_of_the_step_that_they_are_of(workspace):
    path = kept(workspace, "digits-1")
    assert "held-out" not in said(opened(workspace, "digits-1"))

    def measured(step: int) -> str:
        record = {"step": step, "samples": 360, "metrics": {"accuracy": 0.9389, "top_2": 0.0}, "source": "x"}
        (path / "validation.json").write_text(json.dumps(record))
        return said(opened(workspace, "digits-1"))

    assert "\naccuracy 0.939, top_2 0 on 360 held-out samples; 2 at first\n" in measured(6)
    assert "on 360 held-out samples, at step 4; 2 at first\n" in measured(4)
    # Of a step that is done anew nothing is measured yet.
    assert "held-out" not in measured(7)


def test_a_run_that_was_measured_has_its_metrics_beside_the_loss(workspace):
    path = kept(workspace, "digits-1")
    assert "accuracy" not in said(opened(workspace, "digits-1"))
    lines = RunFolder(path).steps()
    (path / "metrics.jsonl").unlink()
    for line in lines:
        measured = {"validation": {"loss": 0.4, "accuracy": 0.125 * line["step"]}, "validation_s": 0.1}
        figures = measured if line["step"] % 2 == 0 else {}
        RunFolder(path).add_step(line["step"], line["loss"], 8, 0.2, 2, 2**20, figures)
    (path / "checkpoints" / "best.json").write_text('{"step": 4, "metric": "accuracy", "value": 0.5}')
    view = RunReader(path).view()
    drawn = held_out_curves(view, 1, CurveSettings())
    assert {name: (list(line.at), list(line.values)) for name, line in drawn.items()} == {
        "loss": ([2.0, 4.0, 6.0], [0.4, 0.4, 0.4]), "accuracy": ([2.0, 4.0, 6.0], [0.25, 0.5, 0.75]),
    }  # fmt: skip
    along_time = held_out_curves(view, 1, CurveSettings(along=TIME))["accuracy"]
    assert list(along_time.at) == pytest.approx([0.4, 0.8, 1.2])
    (row,) = checkpoint_rows(view, datetime.now(UTC))
    assert row["role"] == "the run goes on from here, best accuracy"
    opened(workspace, "digits-1")


def test_a_run_that_a_door_begins_starts_and_ends_with_it(workspace, monkeypatch):
    cancelled = []
    monkeypatch.setattr(jobs, "cancel", lambda workspace, job: cancelled.append(job))
    for name in ("digits-1", "digits-2"):
        runs.add_run(workspace, "sample:digits")
        assert name in run_paths(workspace)
    job = begin(workspace, RUN_HERE, RunHereParameters("trained here", run="digits-1"))
    assert "It starts" in said(opened(workspace, "digits-1"))
    assert "It has not begun" in said(opened(workspace, "digits-2"))
    # From its first event on, its own folder says how it stands: the job goes on to plan and serve.
    left_folder(workspace.runs / "digits-1")
    assert runs.active_jobs(workspace, "digits-1") == ()
    runs.remove(workspace, "digits-2")
    assert cancelled == []
    runs.remove(workspace, "digits-1")
    assert cancelled == [job] and run_paths(workspace) == {}
