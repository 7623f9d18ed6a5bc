"""The By hand tab: rows to GPUs and back, every fault said, a legal one beside the best plan and kept."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest
from app_values import request
from streamlit.testing.v1 import AppTest

from app import plan_by_hand, plan_view, scenario
from torchsplit_core import workflow
from torchsplit_core.planning.by_hand import HandGpu, HandSlice, HandTenant, evaluate, from_plan
from torchsplit_core.storage import Workspace

Open = Callable[..., AppTest]


@pytest.fixture
def solved(workspace: Workspace) -> Workspace:
    workspace.put("plan_request", "review", request())
    workspace.put("plan", "review", workflow.plan(request()))
    return workspace


def tab(page: AppTest) -> AppTest:
    page.session_state[plan_view.TAB] = "By hand"
    page.run()
    assert not page.exception
    return page


def said(page: AppTest) -> str:
    kinds = ("markdown", "error", "caption", "success")
    return "\n".join(str(e.value) for kind in kinds for e in page.get(kind)).replace("\\", "")


def test_the_table_is_the_plan_and_back() -> None:
    plan = workflow.plan(request())
    rows = plan_by_hand.rows_of(from_plan(plan))
    assert list(rows.columns) == list(plan_by_hand.COLUMNS)
    assert sorted(rows["model"]) == ["bert", "ocr"] and set(rows["GPU"]) == {"gpu0"}
    found = evaluate(request(), plan_by_hand.gpus_of(rows), plan)
    assert found.outcome is not None and found.outcome.objective.value == plan.objective.value


def test_rows_of_one_slice_share_it_and_unfinished_rows_wait() -> None:
    rows = [
        ("gpu0", "4g.40gb", 0, "bert", None, None, 0.5), ("gpu0", "4g.40gb", 0, "ocr", "whole", 8, None),
        ("gpu0", "3g.40gb", 4, None, None, None, None), ("gpu1", None, None, "bert", None, None, None),
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=list(plan_by_hand.COLUMNS))
    shared = (HandTenant("bert", share=0.5), HandTenant("ocr", stage="whole", batch_size=8))
    assert plan_by_hand.gpus_of(table) == (
        HandGpu("gpu0", (HandSlice("4g.40gb", 0, shared), HandSlice("3g.40gb", 4, ()))),
    )


def test_the_plan_itself_is_legal_and_as_good_and_can_be_kept(page: Open, solved: Workspace) -> None:
    opened = tab(page("plan", solved))
    assert "The best plan has the same service for every model" in said(opened)
    next(button for button in opened.button if button.label == "Keep as a scenario").click().run()
    assert not opened.exception and set(scenario.known(solved)) == {"review", "review by hand"}
    assert (
        solved.get("plan", "review by hand").status == "feasible" or solved.get("plan", "review by hand").gpus
    )


def test_every_fault_is_said_at_once(page: Open, solved: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    first = HandSlice("4g.40gb", 4, (HandTenant("bert"),))
    wrong = (HandGpu("gpu0", (first, HandSlice("3g.40gb", 4, (HandTenant("ocr"),)))),)
    monkeypatch.setattr(plan_by_hand, "gpus_of", lambda table: wrong)
    opened = tab(page("plan", solved))
    faults = evaluate(request(), wrong).faults
    assert len(opened.error) == len(faults) >= 1
    assert all(str(fault) in said(opened) for fault in faults) and "legal, checked" not in said(opened)


def test_without_a_plan_there_is_no_ground_to_start_from(page: Open, workspace: Workspace) -> None:
    workspace.put("plan_request", "review", request())
    assert "Here you place slices and models yourself" in said(tab(page("plan", workspace)))
