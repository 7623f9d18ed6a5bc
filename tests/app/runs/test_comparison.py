"""Two runs side by side: what is known of both, where they differ, and nothing in place of what is not known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from app.charts.runs.curves import colour_of
from app.runs.comparison import RunFigure, compare, comparison_frame, comparison_html
from tests.app.runs.test_runs_page import kept
from tests.support.app.page import said
from tests.support.training.folders import left_folder
from torchsplit_core.training.monitor import RunReader, RunView, Steps
from torchsplit_core.values.strategy.run import RunStrategy
from torchsplit_core.values.training import ParallelConfig, TrainingJob

THIN = "\u202f"


@pytest.fixture
def view(tmp_path: Path) -> RunView:
    """Six steps of 0.2 s, one restart."""
    return RunReader(left_folder(tmp_path / "run").path).view()


def by_name(first: RunView, second: RunView) -> dict[str, tuple[str, str, str]]:
    return {row.name: (row.first, row.second, row.difference) for row in compare(first, second)}


def test_two_equal_runs_differ_in_nothing(view):
    rows = by_name(view, view)
    assert rows["held-out figures"] == ("n/a", "n/a", "n/a")
    assert {row[2] for name, row in rows.items() if name != "held-out figures"} == {""}
    assert rows["samples/s"] == ("40", "40", "") and rows["restarts"] == ("1", "1", "")
    assert rows["peak memory of a rank"][0] == f"768{THIN}MiB"


def test_what_differs_is_told_as_a_share_of_the_first(view, tmp_path):
    other = left_folder(tmp_path / "other", steps=4, wanted=9)
    other.log_event("rank_lost", "rank 0 was ended by SIGKILL, at step 5", 0)
    other.log_event("resumed", "goes on after step 4 with 2 processes", 0)
    (other.path / "validation.json").write_text(
        json.dumps({"step": 4, "samples": 360, "metrics": {"accuracy": 0.9}, "source": "x"})
    )
    for rank, peak in enumerate((2**29, 2**30)):
        file = other.path / "watch" / f"rank-{rank}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "peak_bytes": peak}))
    second = RunReader(other.path).view()
    assert second.launch is not None
    strategy = RunStrategy(ParallelConfig(data=4, micro_batch=1), TrainingJob(10, "bf16"))
    steps = Steps()
    # The mean of the last steps is 0.35 s, their median 0.3 s.
    for number, (loss, seconds) in enumerate(((4.0, 0.3), (2.0, 0.2), (1.0, 0.3), (0.75, 0.6)), 1):
        steps.add({"step": number, "loss": loss, "samples": 10, "step_s": seconds, "world_size": 4})
    second = replace(second, launch=replace(second.launch, strategy=strategy), steps=steps)
    rows = by_name(view, second)
    assert rows["strategy"][2] == rows["state"][2] == "differs" and rows["model"][2] == ""
    assert rows["precision"] == ("fp32", "bf16", "differs")
    assert rows["global batch size"] == ("8", "10", f"+25{THIN}%")
    assert rows["loss at step 4"] == ("0.5", "0.75", f"+50{THIN}%")
    assert rows["held-out accuracy"] == ("n/a", "0.9", "n/a")
    assert rows["samples/s"] == ("40", "28.6", f"−28.6{THIN}%")
    assert rows["s/step, median of the last steps"] == ("0.2", "0.3", f"+50{THIN}%")
    assert rows["peak memory of a rank"] == (f"768{THIN}MiB", f"1{THIN}GiB", f"+33.3{THIN}%")
    assert rows["restarts"] == ("1", "2", f"+100{THIN}%")


def test_what_is_not_known_is_never_a_zero(view):
    begun = replace(view, launch=None, steps=Steps(), ranks=(), events=(), facts={})
    rows = by_name(view, begun)
    assert rows["loss at the last common step"] == ("n/a", "n/a", "n/a")
    for name in (
        "model", "strategy", "precision", "global batch size", "samples/s", "s/step, median of the last steps",
        "peak memory of a rank", "restarts",
    ):  # fmt: skip
        assert rows[name][1:] == ("n/a", "n/a"), name


def test_rows_that_differ_are_bold_and_texts_are_no_markup():
    rows = [RunFigure("a<b>", "1", "2", "+100 %"), RunFigure("b", "1", "1", "")]
    text = comparison_html(["<i>", "y"], [colour_of(0), colour_of(1)], rows)
    assert "<td><strong>1</strong></td><td><strong>2</strong></td><td><strong>+100 %</strong></td>" in text
    assert "<td>1</td><td>1</td><td></td>" in text and "a&lt;b&gt;" in text and "&lt;i&gt;</th>" in text
    assert list(comparison_frame(["x", "y"], rows).columns) == ["figure", "x", "y", "difference"]


def test_the_page_of_all_runs_has_two_of_those_chosen_side_by_side(page, workspace):
    kept(workspace, "diamond-1")
    assert "Side by side" not in said(page("runs", workspace))
    kept(workspace, "llama-1", steps=4, wanted=9, source="sample:llama")
    test = page("runs", workspace)
    assert "loss at step 4" in said(test) and "runs-first" not in test.session_state
    kept(workspace, "bert-1", source="sample:bert")
    test = page("runs", workspace)
    test.selectbox(key="runs-first").set_value("llama-1").run()
    assert test.selectbox(key="runs-second").options == ["bert-1", "diamond-1"]
    test.selectbox(key="runs-second").set_value("diamond-1").run()
    assert "<strong>sample:llama</strong></td><td><strong>sample:diamond</strong>" in said(test)
    test.multiselect(key="runs-picked").set_value(["llama-1"]).run()
    assert "Choose two runs to see their strategies" in said(test)
