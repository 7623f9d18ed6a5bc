"""One draft a scenario: whatever edits it, the bar says what it changes and brings, and it survives a reload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from app.plan.draft import words
from app.plan.inputs import form
from tests.support.app.values import request
from torchsplit_core import workflow
from torchsplit_core.jobs.names import PLAN, RequestParameters
from torchsplit_core.planning.request.difference import difference
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import FleetEntry, GammaArrivals, PlanRequest
from torchsplit_core.workspace.drafts import DraftStore, KeptDraft
from torchsplit_core.workspace.store import Workspace

Open = Callable[..., AppTest]
pytestmark = pytest.mark.usefixtures("native_sliders")
TWO = replace(request(), gpus=(FleetEntry("A100-80GB", count=2),))


@pytest.fixture
def solved(workspace: Workspace) -> Workspace:
    workspace.put("plan_request", "review", request())
    workspace.put("plan", "review", workflow.plan(request()))
    return workspace


def told(page: AppTest) -> str:
    kinds = ("markdown", "caption", "error", "warning", "success")
    return "\n".join(str(one.value) for kind in kinds for one in page.get(kind)).replace("\\", "")


def press(page: AppTest, label: str) -> AppTest:
    next(button for button in page.button if button.label == label).click().run()
    assert not page.exception
    return page


def gpus(page: AppTest, count: int) -> AppTest:
    next(one for one in page.select_slider if one.label.startswith("GPUs")).set_value(count).run()
    assert not page.exception
    return page


def drawn(page: AppTest) -> str:
    return "\n".join(str(one.proto.body) for one in page.get("html"))


def test_a_table_and_a_slider_write_into_one_draft(
    page: Open, solved: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = form._models

    def typed(*how: Any) -> Any:
        table, added = real(*how)
        return table.assign(demand=pd.Series([57.5, 200.0])), added

    opened = page("plan", solved)
    monkeypatch.setattr(form, "_models", typed)
    opened.run()
    assert "demand of bert 200 → 57.5" in told(opened)
    assert "demand of bert <s>200</s> <b>57.5</b>" in drawn(opened)
    monkeypatch.setattr(form, "_models", real)
    gpus(opened, 2)
    # The tables were drawn anew from the draft: the edit of each stands.
    assert "A100-80GB 1 → 2 · demand of bert 200 → 57.5" in told(opened)
    assert "<s>1</s> <b>2</b>" in drawn(opened)
    assert "GPUs used 1 → 2" in told(opened) and "requests/s" in told(opened)
    assert opened.metric[0].delta.startswith("+")
    assert solved.get("plan_request", "review") == request()


def test_a_draft_survives_a_reload_and_is_told_to_another_browser(page: Open, solved: Workspace) -> None:
    gpus(page("plan", solved), 2)
    kept = DraftStore(solved, "review").load()
    assert kept == KeptDraft(request_hash(request()), TWO)
    again = page("plan", solved)
    assert "A100-80GB 1 → 2" in told(again) and "draft, not kept" in told(again)
    press(again, "Discard")
    assert DraftStore(solved, "review").load() is None
    assert "draft, not kept" not in told(page("plan", solved))


def test_a_draft_that_is_kept_elsewhere_is_none_here(page: Open, solved: Workspace) -> None:
    opened = gpus(page("plan", solved), 2)
    solved.put("plan_request", "review", TWO)
    assert "draft, not kept" not in told(opened.run())


def test_a_row_that_makes_no_sense_is_told_and_nothing_is_kept_over_it(
    page: Open, solved: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pd.DataFrame({"type": ["A100-80GB", ""], "count": [1, 1]}).astype(
        {"type": "str", "count": "Int64"}
    )
    real = form._fleet
    monkeypatch.setattr(form, "_fleet", lambda asked, mark: table)
    opened = page("plan", solved)
    assert "every row names a GPU type" in told(opened) and opened.button(key="draft-keep").disabled
    monkeypatch.setattr(form, "_fleet", real)
    opened.run()
    assert "every row names a GPU type" not in told(opened) and "draft, not kept" not in told(opened)


def test_saved_as_a_new_scenario_the_old_one_stands(
    page: Open, solved: Workspace, started: list[tuple[str, Any]]
) -> None:
    opened = press(gpus(page("plan", solved), 2), "Save as new scenario")
    new = "review · A100-80GB 1 → 2"
    assert solved.get("plan_request", new) == TWO and solved.get("plan_request", "review") == request()
    assert started[0] == (PLAN, RequestParameters(new)) and opened.query_params["scenario"] == new
    assert DraftStore(solved, "review").load() is None


def test_the_smallest_changes_of_an_impossible_request_go_into_the_draft(
    page: Open, workspace: Workspace, started: list[tuple[str, Any]]
) -> None:
    first, second = request().models
    asked = replace(request(), models=(replace(first, min_throughput_rps=1000.0), second))
    workspace.put("plan_request", "review", asked)
    outcome = workflow.plan(asked)
    assert outcome.status == "infeasible" and outcome.least_relaxation
    workspace.put("plan", "review", outcome)
    opened = press(page("plan", workspace), "Apply these changes")
    assert not started and "minimum of bert 1000 req/s →" in told(opened)
    assert workspace.get("plan_request", "review") == asked
    press(opened, "Keep and prove")
    assert workspace.get("plan_request", "review").models[0].min_throughput_rps < 1000.0


def test_a_survivors_objective_outlives_an_edit_of_the_form() -> None:
    asked: PlanRequest = replace(request(), objective=replace(request().objective, survives=1))
    low = replace(form.Goal.of(asked), plan_at="low")
    assert low.applied(asked).objective.survives == 1


def test_limits_of_responses_are_edited_in_the_table_and_told(
    page: Open, solved: Workspace, monkeypatch: pytest.MonkeyPatch, started: list[tuple[str, Any]]
) -> None:
    real = form._editor

    def edited(table: pd.DataFrame, key: str, *rest: Any) -> pd.DataFrame:
        found = real(table, key, *rest)
        if key.startswith("models-"):
            found.loc[0, ["response", "percentile", "arrivals"]] = [200.0, 99.0, "gamma:2"]
        return found

    monkeypatch.setattr(form, "_editor", edited)
    opened = page("plan", solved)
    shown = told(opened)
    for text in (
        "response limit of bert none → 200 ms",
        "response percentile of bert 95 → 99",
        "arrivals of bert poisson → gamma:2",
    ):
        assert text in shown
    press(opened, "Keep and prove")
    kept = solved.get("plan_request", "review").models[0]
    assert (kept.max_response_ms, kept.response_percentile) == (200.0, 99.0)
    assert kept.arrivals == GammaArrivals(kept.demand_rps, 2.0)
    assert (PLAN, RequestParameters("review")) in started


def test_many_changes_are_counted_and_old_values_are_struck_out() -> None:
    many = replace(
        request(),
        gpus=(FleetEntry("A100-80GB", count=4),),
        models=tuple(
            replace(model, demand_rps=1.5, weight=2.0, max_latency_ms=None, cap_at_demand=True)
            for model in request().models
        ),
    )
    changes = difference(request(), many)
    assert len(changes) == 9 and words.changes_line("", changes).endswith("· 3 more")
    assert "p95 limit of bert <s>80 ms</s> <b>none</b>" in words.struck(changes, "models")
    assert words.struck(changes, "pairs") == ""
