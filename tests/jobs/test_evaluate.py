"""The evaluation as a job: stored in the workspace, and taken over from there."""

from __future__ import annotations

import time

import pytest

from torchsplit_core import jobs
from torchsplit_core.evaluation import grid, run
from torchsplit_core.jobs import evaluate as job
from torchsplit_core.jobs.evaluate import evaluate_job
from torchsplit_core.jobs.job_kinds import EVALUATE, EvaluateParameters, from_stored, kind_of
from torchsplit_core.values import ignore_progress
from torchsplit_core.values.evaluation.outcome import CaseKey, EvaluationOutcome, EvaluationSettings
from torchsplit_core.workspace.store import Store

SETTINGS = EvaluationSettings(quick=True, requests_per_model=200, replications=2, time_limit_s=2.0)


def test_it_stores_what_it_finds_as_it_goes_and_takes_it_over(tmp_path, monkeypatch):
    keys = tuple(
        CaseKey("S1", "stock", "exclusive", "off", "equal", rule) for rule in ("whole_gpu", "uniform")
    )
    monkeypatch.setattr(run, "cases", lambda quick: keys)
    monkeypatch.setattr(grid, "QUICK", SETTINGS)
    monkeypatch.setattr(job, "SAVE_EVERY_S", -1.0)
    workspace = Store(tmp_path).create("mine")
    seen: list[int] = []
    told: list[tuple[float, str]] = []

    def look(share: float, message: str) -> None:
        told.append((share, message))
        found = workspace.artifacts("evaluation")
        seen.append(len(workspace.get("evaluation", "quick").cases) if found else 0)

    assert evaluate_job(workspace, EvaluateParameters(quick=True), look)["cases"] == 2
    assert seen == [0, 1, 2]
    assert told == [(0.0, "0 of 2 cases"), (0.5, "1 of 2 cases"), (1.0, "2 of 2 cases")]
    stored: EvaluationOutcome = workspace.get("evaluation", "quick")
    assert stored.complete and len(stored.claims) == 4
    evaluate_job(workspace, EvaluateParameters(quick=True), ignore_progress)
    assert workspace.get("evaluation", "quick").statistics["taken_over"] == 2
    assert not workspace.find("evaluation", "whole")
    evaluate_job(workspace, EvaluateParameters(quick=True, time_limit_s=7.0), ignore_progress)
    stored = workspace.get("evaluation", "quick")
    assert stored.settings.time_limit_s == 7.0 and stored.statistics["taken_over"] == 0


@pytest.mark.slow
def test_it_tells_how_far_it_is_and_ends_when_it_is_cancelled(tmp_path):
    workspace = Store(tmp_path).create("mine")
    # Searches far longer than this test waits for.
    asked = EvaluateParameters(quick=True, time_limit_s=3000.0)
    made = jobs.start(workspace, "Evaluation (quick)", EVALUATE, asked)
    deadline = time.monotonic() + 60
    while "of 72 cases" not in jobs.status(workspace, made).message and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "of 72 cases" in jobs.status(workspace, made).message
    jobs.cancel(workspace, made)
    assert jobs.status(workspace, made).state == "cancelled" and not jobs.running(workspace, (EVALUATE,))


def test_it_can_be_resumed_by_its_name():
    assert kind_of(EVALUATE).resumable and kind_of(EVALUATE).function() is evaluate_job
    assert from_stored(EVALUATE, {"quick": True}) == EvaluateParameters(quick=True)
    asked = {"quick": True, "time_limit_s": 3.0}
    assert from_stored(EVALUATE, asked) == EvaluateParameters(quick=True, time_limit_s=3.0)
