"""What nobody plans for: names that are markup, a thousand of everything, one of each, a disk that is full, work that
ends unseen."""

import os
import re
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from app.plans.page import TITLES
from app.shell.address import slug
from tests.support.app.page import field, open_page, put_plan
from tests.support.app.values import plan, point, request
from tests.support.deployment.helpers import planned_gpu, tenant
from tests.support.seeds import repeated
from torchsplit_core import workflow
from torchsplit_core.jobs import runner
from torchsplit_core.jobs.job_kinds import PLAN
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import (
    FleetEntry,
    ObjectiveValue,
    PlannedModel,
    PlanOutcome,
    PlanRequest,
    Stage,
    Variant,
)
from torchsplit_core.workspace import faults, named_results
from torchsplit_core.workspace.drafts import DraftStore
from torchsplit_core.workspace.store import Workspace

HOSTILE = "<img src=x onerror=alert(1)>![a](http://x)**b**$x$:red[c]&quot;"
CODE = re.compile("`[^`\n]*`")
PAGES = ("overview", "models", "plan", "activity", "workspace", "help", "placements")


def every_page(workspace: Workspace, name: str, tabs: tuple[str, ...] = TITLES) -> list[AppTest]:
    """All pages of a workspace, that of a scenario at each of these tabs."""
    found = [open_page(page, workspace) for page in PAGES if page != "plan"]
    return found + [open_page("plan", workspace, scenario=name, tab=slug(tab)) for tab in tabs]


def renamed(asked: PlanRequest, outcome: PlanOutcome) -> tuple[PlanRequest, PlanOutcome]:
    """The same with hostile names for a model and a GPU."""
    asked = replace(
        asked,
        gpus=(replace(asked.gpus[0], id=HOSTILE),),
        models=(replace(asked.models[0], name=HOSTILE), *asked.models[1:]),
    )
    (gpu,) = outcome.gpus
    first, *rest = gpu.slices
    hostile = replace(first, tenants=(replace(first.tenants[0], model=HOSTILE),))
    gpus = (replace(gpu, id=HOSTILE, slices=(hostile, *rest)),)
    models = (replace(outcome.models[0], name=HOSTILE), *outcome.models[1:])
    return asked, replace(
        outcome, gpus=gpus, models=models, warnings=(HOSTILE,), request_sha256=request_hash(asked)
    )


def test_hostile_names_stay_words_on_every_page(store):
    workspace = store.create(HOSTILE)
    asked, outcome = renamed(request(), workflow.plan(request()))
    for name in (HOSTILE, f"{HOSTILE} 2"):
        put_plan(workspace, asked, outcome, name)
    for page in every_page(workspace, HOSTILE):
        for element in page.get("html"):
            assert "<img src=x" not in str(element.proto.body)
        for kind in ("markdown", "caption", "error", "warning", "success", "info", "header", "subheader"):
            for element in page.get(kind):
                # Escaped as Markdown, so that it is neither a picture nor a formula.
                told = CODE.sub("", str(element.value))
                assert "![a](http" not in told and "$x$" not in told, (kind, told)


def as_many_models_as_gpus(many: int) -> tuple[PlanRequest, PlanOutcome]:
    """So many models on so many GPUs, each on a seventh of seven of them."""
    base, one = request(), plan()
    seventh = (point("1g.10gb", 50.0),)
    spec = replace(base.models[0], variants=(Variant("whole", (Stage("whole", seventh),)),))
    asked = replace(
        base,
        gpus=(FleetEntry("A100-80GB", count=many),),
        models=tuple(replace(spec, name=f"m{number}") for number in range(many)),
    )
    gpus = tuple(
        planned_gpu(f"gpu{number}", "A100-80GB", [
            ("1g.10gb", start,
             tenant(f"m{(7 * number + start) % many}", throughput_rps=50.0, memory_gib=None))
            for start in range(7)
        ])
        for number in range(many)
    )  # fmt: skip
    models = tuple(PlannedModel(spec.name, "whole", 350.0, 1.75, 40.0) for spec in asked.models)
    # As a file of another hand may have it: without its levels.
    goal = ObjectiveValue("leximin", 1.75)
    return asked, replace(
        one, status="feasible", gpus=gpus, models=models, objective=goal, request_sha256=request_hash(asked)
    )


@pytest.mark.slow
@repeated("count", [250, 1000], kept=0)
def test_many_models_on_as_many_gpus(count, workspace):
    asked, outcome = as_many_models_as_gpus(count)
    put_plan(workspace, asked, outcome, "many")
    open_page("overview", workspace)
    page = open_page("plan", workspace)
    # Plans with exactly what is asked leave queues that grow.
    assert any(f"All {count} models get their demand, but under load" in one.value for one in page.warning)
    # One slider a model would be as many: the rest are in the table.
    assert len(page.get("bidi_component")) < 100


@pytest.mark.slow
def test_one_model_alone_also_with_a_plan_that_leaves_out_its_levels(workspace):
    asked = replace(request(), models=request().models[:1])
    outcome = workflow.plan(asked)
    put_plan(workspace, asked, outcome, "alone")
    for page in every_page(workspace, "alone"):
        assert not page.error
    bare = replace(outcome, objective=replace(outcome.objective, sorted_normalised=()))
    workspace.put("plan", "alone", bare)
    for tab in ("Baselines", "By hand"):
        assert not open_page("plan", workspace, scenario="alone", tab=slug(tab)).error
    # One that claims to be proven, and is not the best, is one message.
    workspace.put("plan", "alone", replace(bare, objective=replace(bare.objective, value=1.0, bound=1.0)))
    (error,) = open_page("plan", workspace, scenario="alone", tab="baselines").error
    assert "is beyond it" in error.value.replace("\\", "")


def test_a_full_disk_loses_nothing_of_a_draft(workspace, page, native_sliders, monkeypatch, started):
    put_plan(workspace, request(), workflow.plan(request()))
    plan_page = page("plan", workspace)

    def full(*_, **__):
        raise faults.disk_full_fault(workspace.store.root, "No space left on device")

    def told():
        assert not plan_page.exception
        return any("Free some space" in element.value.replace("\\", "") for element in plan_page.error)

    with monkeypatch.context() as patched:
        patched.setattr(DraftStore, "save", full)
        field(plan_page, "select_slider", "GPUs").set_value(2).run()
        assert told()
        patched.setattr(Workspace, "put", full)
        plan_page.button(key="draft-keep").click().run()
        assert told()
    assert workspace.get("plan_request", "review") == request() and not started
    # The draft is still there, and is kept once there is space.
    plan_page.run()
    assert any("1 → 2" in element.proto.body for element in plan_page.get("html"))
    (found,) = DraftStore(workspace, "review").all()
    assert found.request.gpus[0].count == 2


def test_work_that_ends_while_its_page_is_closed_is_found_done(workspace, page):
    workspace.put("plan_request", "review", request())
    job = workspace.add_job("Plan review", PLAN, {"request": "review"}).id
    state = {
        "state": "running",
        "share": 0.5,
        "message": "searching",
        "starter": runner._process_identity(os.getpid()),
    }
    runner._write(workspace.store, job, state)
    during = page("plan", workspace)
    assert any(element.label == "Cancel" for element in during.button)
    # Nobody looks: what the job stores, and how it ends, is found by the next page.
    named_results.store_outcome(workspace, "review", request(), workflow.plan(request()))
    runner._write(workspace.store, job, {**state, "state": "done", "share": 1.0, "seconds": 2.0})
    later = page("plan", workspace)
    assert any("All 2 models" in element.value for element in later.success) and not later.error
    assert not any(element.label == "Cancel" for element in later.button)
