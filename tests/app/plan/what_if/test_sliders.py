"""What if: sliders plan at once in the session; keeping stores and proves, going back forgets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.plan.what_if import sliders
from tests.support.app.values import request
from torchsplit_core import jobs, workflow
from torchsplit_core.files import read_text
from torchsplit_core.jobs.names import RequestParameters
from torchsplit_core.planning.comparison.compare import compare
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import FleetEntry
from torchsplit_core.workspace.store import Workspace

Open = Callable[..., AppTest]
pytestmark = pytest.mark.usefixtures("native_sliders")


@pytest.fixture
def solved(workspace: Workspace) -> Workspace:
    workspace.put("plan_request", "review", request())
    workspace.put("plan", "review", workflow.plan(request()))
    return workspace


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(jobs, "start", lambda w, title, target, parameters: found.append(parameters) or "job")
    return found


def slider(page: AppTest, label: str) -> Any:
    return next(one for one in (*page.slider, *page.select_slider) if one.label == label)


def badges(page: AppTest) -> str:
    kinds = ("markdown", "error", "header", "subheader")
    return "\n".join(str(one.value) for kind in kinds for one in page.get(kind)).replace("\\", "")


def captions(page: AppTest) -> str:
    return "\n".join(str(one.value) for one in page.caption).replace("\\", "")


def metric(page: AppTest) -> str:
    return str(page.metric[0].value)


def press(page: AppTest, label: str) -> AppTest:
    next(button for button in page.button if button.label == label).click().run()
    assert not page.exception
    return page


def test_a_slider_plans_at_once_and_nothing_is_stored(
    page: Open, solved: Workspace, started: list[Any]
) -> None:
    opened = page("plan", solved)
    before = metric(opened)
    slider(opened, "GPUs, A100-80GB").set_value(2).run()
    assert not opened.exception and metric(opened) != before
    assert "what if, not stored" in badges(opened) and "A100-80GB 1 → 2" in badges(opened)
    stored, tried = (
        solved.get("plan", "review"),
        sliders.attempt(request(), replace(request(), gpus=(FleetEntry("A100-80GB", count=2),))),
    )
    assert tried.outcome is not None and compare(stored, tried.outcome).lines[1] not in badges(opened)
    opened.session_state["what-if-lines"] = True
    opened.run()
    assert compare(stored, tried.outcome).lines[1] in badges(opened)
    slider(opened, "Weight").set_value(2.0).run()
    assert "weight of bert 1 → 2; A100-80GB 1 → 2" in badges(opened)
    expected = replace(
        request(),
        gpus=(FleetEntry("A100-80GB", count=2),),
        models=(replace(request().models[0], weight=2.0), request().models[1]),
    )
    best = workflow.plan(expected).objective.value
    assert best is not None and metric(opened).startswith(f"{best:.3g}")
    assert solved.get("plan_request", "review") == request() and not started
    assert "Why this plan" not in badges(opened)


def test_keeping_stores_the_request_and_looks_for_the_proof(
    page: Open, solved: Workspace, started: list[Any]
) -> None:
    opened = page("plan", solved)
    slider(opened, "Demand, req/s").set_value(400.0).run()
    press(opened, "Keep and prove")
    assert solved.get("plan_request", "review").models[0].demand_rps == 400.0
    assert started == [RequestParameters("review")] and "not stored" not in badges(opened)


def test_going_back_shows_what_is_stored_and_the_sliders_as_stored(page: Open, solved: Workspace) -> None:
    opened = page("plan", solved)
    before = metric(opened)
    slider(opened, "GPUs, A100-80GB").set_value(5).run()
    press(opened, "Back")
    assert metric(opened) == before and "not stored" not in badges(opened)
    assert slider(opened, "GPUs, A100-80GB").value == 1


def test_what_is_downloaded_is_what_is_on_screen_and_says_so(
    page: Open, solved: Workspace, files: dict[str, Any]
) -> None:
    opened = page("plan", solved)
    told = {"review.plan_request.json", "review.plan.json", "review.html"}
    assert set(files) == told | {"review.losses.csv"}
    files.clear()
    slider(opened, "GPUs, A100-80GB").set_value(2).run()
    assert set(files) == {
        "review.what-if.plan_request.json",
        "review.what-if.plan.json",
        "review.what-if.html",
        "review.what-if.losses.csv",
    }
    two = replace(request(), gpus=(FleetEntry("A100-80GB", count=2),))
    asked = read_text(files["review.what-if.plan_request.json"](), origin="a download")[1]
    tried = read_text(files["review.what-if.plan.json"](), origin="a download")[1]
    assert asked == two and tried.request_sha256 == request_hash(two)
    told = files["review.what-if.html"]()
    assert "review, what if: A100-80GB 1 → 2" in told and "2 × A100-80GB" in told
    assert "of the what-if on screen, which is not stored" in captions(opened)


def test_plan_waits_while_a_what_if_is_on_screen(page: Open, solved: Workspace, started: list[Any]) -> None:
    opened = page("plan", solved)
    assert not opened.button(key="plan").disabled
    slider(opened, "GPUs, A100-80GB").set_value(2).run()
    assert opened.button(key="plan").disabled and "choose Keep and prove, or Back" in captions(opened)
    press(opened, "Back")
    assert not opened.button(key="plan").disabled and not started


def test_a_slider_moved_back_ends_the_trial(page: Open, solved: Workspace) -> None:
    opened = page("plan", solved)
    slider(opened, "Weight").set_value(3.0).run()
    slider(opened, "Weight").set_value(1.0).run()
    assert "not stored" not in badges(opened)


def test_a_trial_of_a_request_that_changed_meanwhile_is_dropped(page: Open, solved: Workspace) -> None:
    opened = page("plan", solved)
    slider(opened, "Weight").set_value(3.0).run()
    solved.put("plan_request", "review", replace(request(), sharing="fractional"))
    assert "not stored" not in badges(opened.run())


def test_demands_that_contradict_while_dragging_are_said_and_nothing_raises() -> None:
    least = replace(request().models[0], min_throughput_rps=1e6)
    asked = replace(request(), models=(least, request().models[1]))
    tried = sliders.attempt(request(), asked)
    assert tried.outcome is not None and tried.outcome.status == "infeasible" and tried.outcome.conflicts
    assert tried.outcome.request_sha256 == request_hash(asked)
    broken = sliders.attempt(request(), replace(asked, gpus=(FleetEntry("none"),)))
    assert broken.outcome is None and "none" in broken.fault


def test_changes_are_named_in_words() -> None:
    edited = replace(
        request(),
        gpus=(FleetEntry("A100-80GB", count=3),),
        models=(request().models[0], replace(request().models[1], demand_rps=100.0, weight=0.5)),
    )
    assert sliders.changes(request(), edited) == (
        "weight of ocr 1 → 0.5", "demand of ocr 200 → 100", "A100-80GB 1 → 3",
    )  # fmt: skip
