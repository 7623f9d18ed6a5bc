"""How sure a plan is: the verdict on the page and in the report, the tables, and the form that asks for the low end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.charts.slice_map import fleet_svg, slice_table
from app.plan.inputs import request_tables
from app.plan.inputs.edits import Edits, Goal
from app.plan.model_table import models_table
from app.plan.report import report
from app.plan.sureness import sureness_of
from tests.support.app.values import point, request
from torchsplit_core import jobs
from torchsplit_core.jobs.names import RequestParameters
from torchsplit_core.planning import plan as solved
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.values import FleetEntry, InputFault, PlanRequest, SolverOptions, Stage, Variant
from torchsplit_core.workspace.store import Workspace

Open = Callable[..., AppTest]


def uncertain() -> PlanRequest:
    """bert measured and far above its demand; ocr 300 (180 to 340) estimated for 200."""
    bert, ocr = request().models
    sure = replace(point("4g.40gb", 400.0), low_rps=390.0, high_rps=405.0)
    guessed = replace(point("3g.40gb", 300.0, "estimated"), low_rps=180.0, high_rps=340.0)
    return replace(
        request(),
        models=tuple(
            replace(model, variants=(Variant("whole", (Stage("whole", (one,)),)),))
            for model, one in ((bert, sure), (ocr, guessed))
        ),
    )


@pytest.fixture
def stored(workspace: Workspace) -> Workspace:
    workspace.put("plan_request", "review", uncertain())
    workspace.put("plan", "review", solved(uncertain()))
    return workspace


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(jobs, "start", lambda w, title, target, parameters: found.append(parameters) or "job")
    return found


def said(page: AppTest) -> str:
    return " ".join(one.value.replace("\\", "") for one in (*page.markdown, *page.caption))


VERDICT = "Meets its demand even at the low end: no (ocr 90 %)."
NEXT = (
    "Best measured next: ocr, stage whole, on A100-80GB 3g.40gb, batch 8, 1 process: estimated, 180 to 340 requests/s; "
    "settles 20 requests/s of what is missing at the low end."
)


def test_the_page_says_the_verdict_who_fails_and_what_to_measure(page: Open, stored: Workspace) -> None:
    told = said(page("plan", stored))
    assert VERDICT in told and NEXT in told
    assert "Surest to fail: ocr: 180 of 200 requests/s at the low end (90 %)." in told
    assert "of which 1 of 2 are estimated" in told
    sure = replace(uncertain(), models=uncertain().models[:1])
    stored.put("plan_request", "review", sure)
    assert "low end: " not in said(page("plan", stored))  # the plan answers another request
    stored.put("plan", "review", solved(sure))
    told = said(page("plan", stored))
    assert "Meets its demand even at the low end: yes." in told
    assert "Surest to fail" not in told and "Best measured next" not in told


def test_the_report_says_it_too() -> None:
    text = report("review", uncertain(), solved(uncertain()), {})
    assert VERDICT in text and NEXT in text and "90 % interval" in text
    assert "How sure it is" not in report("review", None, solved(uncertain()), {})
    assert sureness_of(request(), solved(uncertain())) is None


def test_tables_and_titles_have_interval_and_basis() -> None:
    outcome = solved(uncertain())
    table = models_table(outcome, uncertain(), {})
    assert (
        "90 % interval" in table
        and "180 to 340" in table
        and "<td>estimated</td>" in table
        and "<td>measured</td>" in table
    )
    row = next(row for row in slice_table(outcome) if row["model"] == "ocr")
    assert (row["low req/s"], row["high req/s"], row["basis"]) == (180.0, 340.0, "estimated")
    assert "90 % interval 180 to 340, estimated" in fleet_svg(outcome, {})
    bare = replace(uncertain(), models=request().models)
    outcome = solved(bare)
    rows = models_table(outcome, bare, {}).partition("<tbody>")[2]
    assert "interval n/a, estimated" in fleet_svg(outcome, {}) and rows and " to " not in rows
    crossing = replace(outcome, models=tuple(replace(m, bytes_across_cuts_per_s=3e7) for m in outcome.models))
    assert "across its cuts" in models_table(crossing, bare, {})


def test_the_form_asks_for_the_low_end_tenants_and_penalties(
    page: Open, stored: Workspace, started: list[Any]
) -> None:
    opened = page("plan", stored)
    assert "not kept" not in said(opened)
    next(one for one in opened.radio if one.label == "Plan at").set_value("low").run()
    for label, value in (
        ("Tenants of a slice, at most", 3),
        ("Penalty γ for each GiB too much", 0.5),
        ("Weight of a byte between models apart", 1e-6),
    ):
        next(one for one in opened.number_input if one.label == label).set_value(value).run()
    assert "plan at nominal → low" in said(opened).replace("\\", "")
    next(button for button in opened.button if button.label == "Keep and prove").click().run()
    assert not opened.exception and started == [RequestParameters("review")]
    asked = stored.get("plan_request", "review")
    assert asked.solver == SolverOptions(60.0, "low") and asked.max_tenants_per_slice == 3
    goal = asked.objective
    assert (goal.memory_violation_penalty, goal.separation_weight) == (0.5, 1e-6)
    assert Goal.of(asked).applied(uncertain()) == asked
    # What was stored is what the form shows: opened again, nothing waits.
    assert "not kept" not in said(page("plan", stored))


def test_ids_nodes_costs_and_layouts_go_through_their_table() -> None:
    fleet = (
        FleetEntry(
            "A100-80GB", "n/g", layouts=(("3g.40gb", "4g.40gb"), ("1g.10gb",) * 7), cost=2.5, node="n"
        ),
        FleetEntry("A100-80GB", count=3),
    )
    asked = replace(uncertain(), gpus=fleet)
    table = request_tables.details_table(asked)
    assert list(table["layouts"]) == ["3g.40gb+4g.40gb/7x1g.10gb", ""]
    assert request_tables.with_details(asked, table) == asked
    table.loc[0, ["id", "node", "cost", "layouts"]] = ["", "", None, ""]
    table.loc[1, ["node", "layouts"]] = [" m ", "7g.80gb"]
    changed = request_tables.with_details(asked, table)
    assert changed.gpus == (
        FleetEntry("A100-80GB"),
        FleetEntry("A100-80GB", count=3, node="m", layouts=(("7g.80gb",),)),
    )
    # A row that stays in the fleet's table keeps them.
    kept = request_tables.with_fleet(changed, request_tables.fleet_table(changed).iloc[1:])
    assert kept.gpus == changed.gpus[1:]
    table.loc[1, "layouts"] = "7g"
    with pytest.raises(InputFault, match="unknown profile"):
        validate(request_tables.with_details(asked, table))


def test_details_wait_with_the_fleet_and_are_applied_before_its_rows_move() -> None:
    asked = replace(uncertain(), gpus=(FleetEntry("A100-80GB"), FleetEntry("A100-80GB", "kept")))
    fleet, details = request_tables.fleet_table(asked), request_tables.details_table(asked)
    details.loc[1, ["node", "cost"]] = ["n", 2.0]
    edits = Edits(
        fleet, details, (None, None), request_tables.models_table(asked), [], {}, {}, request_tables.pairs_table(asked),
        Goal.of(asked),
    )  # fmt: skip
    assert edits.waiting(asked) == ("fleet",)
    assert replace(edits, details=request_tables.details_table(asked)).waiting(asked) == ()
    assert replace(edits, fleet=fleet.iloc[1:]).applied(asked).gpus == (
        FleetEntry("A100-80GB", "kept", node="n", cost=2.0),
    )
