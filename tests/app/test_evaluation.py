"""The page Evaluation: empty, with what was found, and the work it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tests.support.paths import ROOT
from torchsplit_core import jobs
from torchsplit_core.files import read_file
from torchsplit_core.jobs.names import EVALUATE, EvaluateParameters
from torchsplit_core.values.evaluation.outcome import EvaluationOutcome
from torchsplit_core.workspace.store import Workspace

Open = Callable[..., AppTest]


def stored() -> EvaluationOutcome:
    found: EvaluationOutcome = read_file(ROOT / "docs" / "evaluation.json")[1]
    return found


def said(page: AppTest) -> str:
    kinds = ("html", "markdown", "info", "caption")
    return "\n".join(str(getattr(e, "value", None) or e.proto.body) for kind in kinds for e in page.get(kind))


def test_an_empty_page_says_what_will_be_there_and_starts_it(
    page: Open, workspace: Workspace, started: list[tuple[str, Any]]
) -> None:
    opened = page("evaluation", workspace)
    assert "four claims: that sharing slices" in said(opened)
    opened.button(key="evaluate-quick").click().run()
    opened.button(key="evaluate-whole").click().run()
    assert not opened.exception
    assert started == [
        (EVALUATE, EvaluateParameters(quick=True)),
        (EVALUATE, EvaluateParameters(quick=False)),
    ]


def test_every_view_of_a_stored_evaluation_is_shown(page: Open, workspace: Workspace) -> None:
    outcome = stored()
    workspace.put("evaluation", "whole", outcome)
    opened = page("evaluation", workspace)
    text = said(opened)
    assert all(claim.text in text and claim.verdict.capitalize() in text for claim in outcome.claims)
    assert "Untested on hardware" in text
    for view, word in (("Tables", "The planner beside the rules"), ("Mixes", "ParvaGPU"), ("Pictures", "")):
        opened.session_state["evaluation-tab"] = view
        opened.run()
        assert not opened.exception
        headings = [one.value for one in opened.header]
        assert word in said(opened) or word in headings
    assert {button.proto.label for button in opened.get("download_button")} >= {
        "Report (HTML)",
        "Cases (CSV)",
    }


def test_one_that_is_not_done_says_so_and_has_no_verdicts(page: Open, workspace: Workspace) -> None:
    part = stored()
    part = replace(
        part, settings=replace(part.settings, quick=True), cases=part.cases[:5], claims=(), complete=False
    )
    workspace.put("evaluation", "quick", part)
    opened = page("evaluation", workspace)
    assert "5 of 64 cases are done. Press *Evaluate quickly* again" in said(opened) and "1\\." not in said(
        opened
    )
    assert not opened.get("download_button")


def test_while_it_runs_nobody_is_asked_to_start_it_again(
    page: Open, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = replace(stored(), cases=stored().cases[:5], claims=(), complete=False)
    workspace.put("evaluation", "whole", part)
    monkeypatch.setattr(jobs, "running", lambda *_: ("a job",))
    text = said(page("evaluation", workspace))
    assert "5 of 176 cases are done." in text and "goes on by itself" in text and "again" not in text


def test_each_button_says_before_it_is_pressed_what_it_does_and_how_long_it_takes(
    page: Open, workspace: Workspace
) -> None:
    text = said(page("evaluation", workspace))
    assert (
        text.count("on two cores") == 2 and "64 cases of 2 mixes" in text and "176 cases of 4 mixes" in text
    )
