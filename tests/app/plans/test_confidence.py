"""How sure a plan is: the verdict on the page and in the report, the tables, and the form that asks for the low end."""

from dataclasses import replace

import pytest

from app.plans.confidence import confidence_of
from app.plans.model_table import models_table
from app.plans.report import report
from tests.support.app.page import press, put_plan, said
from tests.support.app.values import point, request
from tests.support.planning.edits import with_each_model
from torchsplit_core.jobs.job_kinds import EXPLAIN, RequestParameters
from torchsplit_core.pictures.slice_map import fleet_svg, slice_table
from torchsplit_core.planning import plan as solved
from torchsplit_core.values import PlanRequest, SolverOptions, Stage, Variant
from torchsplit_core.workspace.store import Workspace


def uncertain() -> PlanRequest:
    """bert measured and far above its demand; ocr 300 (180 to 340) estimated for 200."""
    bert, ocr = request().models
    sure = replace(point("4g.40gb", 400.0), low_rps=390.0, high_rps=405.0)
    guessed = replace(point("3g.40gb", 300.0, "estimated"), low_rps=180.0, high_rps=340.0)
    return replace(request(), models=tuple(
        replace(model, variants=(Variant("whole", (Stage("whole", (one,)),)),))
        for model, one in ((bert, sure), (ocr, guessed))
    ))  # fmt: skip


@pytest.fixture
def stored(workspace) -> Workspace:
    put_plan(workspace, uncertain(), solved(uncertain()))
    return workspace


VERDICT = "Meets its demand even at the low end: no (ocr 90 %)."
NEXT = (
    "Best measured next: ocr, stage whole, on A100-80GB 3g.40gb, batch 8, 1 process: estimated, 180 to 340 requests/s; "
    "settles 20 requests/s of what is missing at the low end."
)


def test_the_page_says_the_verdict_who_fails_and_what_to_measure(page, stored):
    text = said(page("plan", stored))
    assert VERDICT in text and NEXT in text
    assert "Surest to fail: ocr: 180 of 200 requests/s at the low end (90 %)." in text
    assert "of which 1 of 2 are estimated" in text
    sure = replace(uncertain(), models=uncertain().models[:1])
    stored.put("plan_request", "review", sure)
    assert "low end: " not in said(page("plan", stored))  # the plan answers another request
    stored.put("plan", "review", solved(sure))
    text = said(page("plan", stored))
    assert "Meets its demand even at the low end: yes." in text
    assert "Surest to fail" not in text and "Best measured next" not in text


def test_the_report_says_it_too():
    text = report("review", uncertain(), solved(uncertain()), {})
    assert VERDICT in text and NEXT in text and "90 % interval" in text
    assert "How sure it is" not in report("review", None, solved(uncertain()), {})
    assert confidence_of(request(), solved(uncertain())) is None


def test_tables_and_titles_have_interval_and_basis():
    outcome = solved(uncertain())
    table = models_table(outcome, uncertain(), {})
    assert "90 % interval" in table and "180 to 340" in table and "<td>estimated</td>" in table
    assert "<td>measured</td>" in table
    row = next(row for row in slice_table(outcome) if row["model"] == "ocr")
    assert (row["low req/s"], row["high req/s"], row["basis"]) == (180.0, 340.0, "estimated")
    assert "90 % interval 180 to 340, estimated" in fleet_svg(outcome, {})
    bare = replace(uncertain(), models=request().models)
    outcome = solved(bare)
    rows = models_table(outcome, bare, {}).partition("<tbody>")[2]
    assert "interval n/a, estimated" in fleet_svg(outcome, {}) and rows and " to " not in rows
    crossing = with_each_model(outcome, bytes_across_cuts_per_s=3e7)
    assert "across its cuts" in models_table(crossing, bare, {})


def test_the_form_asks_for_the_low_end_tenants_and_penalties(page, stored, started, rows):
    opened = page("plan", stored)
    assert "not kept" not in said(opened)
    for column, value in (
        ("plan_at", "low"), ("max_tenants_per_slice", "3"), ("memory_violation_penalty", "0.5"),
        ("separation_weight", "1e-6"),
    ):  # fmt: skip
        rows.edit(opened, "Objective", "objective", column, value)
    assert rows.drawn["Objective"]["objective"].before["plan_at"] == "nominal"
    assert "plan at nominal → low" in said(opened).replace("\\", "")
    press(opened, "Keep and prove")
    assert started == [(EXPLAIN, RequestParameters("review"))]
    asked = stored.get("plan_request", "review")
    assert asked.solver == SolverOptions(60.0, "low") and asked.max_tenants_per_slice == 3
    goal = asked.objective
    assert (goal.memory_violation_penalty, goal.separation_weight) == (0.5, 1e-6)
    # What was stored is what the form shows: opened again, nothing waits.
    assert "not kept" not in said(page("plan", stored))
