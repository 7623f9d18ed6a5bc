"""Where the seconds of a step went, rank by rank and stage by stage, and which of them the others wait for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from streamlit.testing.v1 import AppTest

from app.runs.slowness import slowest
from tests.app.runs.test_runs_page import kept, opened
from tests.support.app.page import said
from torchsplit_core.training import RunFolder
from torchsplit_core.workspace.store import Workspace

PASSES = {"data": 0.01, "forward": 0.05, "backward": 0.1, "agreement": 0.02, "optimizer": 0.02}


def chart(test: AppTest, part: str) -> list[dict[str, Any]]:
    """The traces of the chart of bars that has one of that name, or a block of that name."""
    charts = [json.loads(element.proto.spec)["data"] for element in test.get("plotly_chart")]
    bars = [traces for traces in charts if any(trace["type"] == "bar" for trace in traces)]
    chosen: list[dict[str, Any]] = next(
        traces
        for traces in bars
        if any(trace.get("name") == part or part in trace.get("text", ()) for trace in traces)
    )
    return chosen


def ranks_say(path: Path, *records: dict[str, Any]) -> None:
    for rank, record in enumerate(records):
        file = path / "watch" / f"rank-{rank}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **record}))


def pipeline(workspace: Workspace) -> Path:
    """Of two stages, one data rank each."""
    path = kept(workspace, "llama-1")
    facts = json.loads((path / "run.json").read_text())
    choices = {"data": 1, "pipeline": 2, "interleave": 1}
    (path / "run.json").write_text(json.dumps({**facts, "choices": choices}))
    launch = json.loads((path / "watch" / "launch.json").read_text())
    launch["strategy"]["choices"] |= choices
    (path / "watch" / "launch.json").write_text(json.dumps(launch))
    return path


def test_a_slow_data_rank_is_named_by_what_it_does_without_waiting(workspace):
    path = kept(workspace, "diamond-1")
    # The fast rank waits for the slow one in its backward pass: that does not make it slow.
    ranks_say(path, {"parts_s": PASSES | {"backward": 0.4}}, {"parts_s": PASSES | {"forward": 0.29}})
    test = opened(workspace, "diamond-1")
    assert "Rank 1 is slowest: 0.3 s per step in data and forward, 5 times the fastest." in said(test)
    bars = {trace["name"]: trace for trace in chart(test, "forward")}
    assert bars["forward"]["y"] == ["rank 0", "rank 1, slowest"] and bars["forward"]["x"] == [0.05, 0.29]
    ranks_say(path, {"parts_s": PASSES}, {"parts_s": PASSES | {"forward": 0.051}})
    assert "is slowest" not in said(opened(workspace, "diamond-1"))


def test_a_pipeline_shows_the_time_of_each_stage_and_what_it_waited(workspace):
    path = pipeline(workspace)
    ranks_say(
        path,
        {"parts_s": PASSES | {"waiting for stages": 0.3}, "blocks_s": {"blocks.0": 0.25, "blocks.1": 0.5}},
        {"parts_s": PASSES | {"waiting for stages": 0.1, "backward": 0.3}, "blocks_s": {"blocks.2": 1.5}},
    )
    test = opened(workspace, "llama-1")
    waited = next(
        trace for trace in chart(test, "waiting for stages") if trace["name"] == "waiting for stages"
    )
    assert waited["x"] == [0.3, 0.1] and waited["y"] == ["rank 0, stage 0", "rank 1, stage 1, slowest"]
    first, second = chart(test, "blocks.0")
    assert (first["y"], first["x"]) == (["rank 0, stage 0", "rank 1, stage 1, slowest"], [0.25, 1.5])
    assert (second["text"], second["x"]) == (["blocks.1"], [0.5])
    words = said(test)
    assert "Rank 1 is slowest: 1.5 s a micro-batch, 2 times the fastest." in words
    assert "Rank 1 is slowest: 0.36 s per step in data, forward and backward, 2.25 times" in words


def test_before_the_first_step_the_page_says_what_will_come(workspace):
    path = pipeline(workspace)
    ranks_say(path, {"parts_s": None}, {"parts_s": None})
    with RunFolder(path).exclusive(resume=True):
        RunFolder(path).log_event("resumed", "goes on after step 4 with 2 processes", 0)
        words = said(opened(workspace, "llama-1"))
        assert "No rank has measured its blocks yet. After its first step a bar a rank stands here" in words
        assert "No rank has reported a step yet. About a second after its first step a bar a rank" in words
    # The same run, ended within the second.
    words = said(opened(workspace, "llama-1"))
    assert "The last start ended before a rank measured its blocks." in words
    assert "The last start ended before a rank reported where the time of its steps went" in words
    assert "stands here" not in words
    ranks_say(path, {"device": "cuda:0"}, {"device": "cuda:1"})
    words = said(opened(workspace, "llama-1"))
    assert "n/a: on a GPU work is handed over before it is done." in words


def test_the_figures_of_a_rank_say_over_which_steps_they_are(workspace):
    path = kept(workspace, "diamond-1")
    ranks_say(path, {"averaged_steps": 12}, {"averaged_steps": 14})
    words = said(opened(workspace, "diamond-1"))
    assert (
        "Means over the last 12 to 14 steps before a rank's last report. Checkpoints and validation" in words
    )
    assert (
        "mean of the last 6 steps, checkpoints and validation not counted; 0.25 s predicted"
        in words.replace("\u202f", " ")
    )
    ranks_say(path, {"averaged_steps": 12}, {"averaged_steps": None})
    assert "Means over the steps of about the last second before" in said(opened(workspace, "diamond-1"))


def test_a_rank_is_slow_only_beside_another_whose_time_is_known():
    assert slowest({}) is slowest({0: 1.0}) is slowest({0: 0.0, 1: 1.0}) is slowest({0: 1.0, 1: 1.05}) is None
    assert slowest({0: 1.0, 3: 1.2, 1: 1.1}) == 3
