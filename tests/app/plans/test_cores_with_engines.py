"""A plan with an LLM's engines on cores beside a batch model: every tab of its page stands."""

from dataclasses import replace

import pytest

from app.plans.page import TITLES
from app.shell.address import slug
from tests.support.app.page import open_page, put_plan, said
from tests.support.serving.llm_plans import LLM, decoder_in
from torchsplit_core import workflow
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import FleetEntry, PlanModel, PlanRequest, Point, Stage, Variant


@pytest.fixture
def planned(workspace, tmp_path):
    points = tuple(Point("CPU", "1c", size, 50.0 * size, 20.0, memory_gib=0.1) for size in (1, 4))
    bert = PlanModel(
        "bert", (Variant("whole", (Stage("whole", points),)),), demand_rps=20.0, source="sample:bert"
    )
    chat = PlanModel("chat", demand_rps=4.0, source=decoder_in(tmp_path), llm=LLM)
    request = PlanRequest((FleetEntry("CPU-2c", id="host0"),), (bert, chat))
    plan = workflow.plan(request)
    put_plan(workspace, request, replace(plan, request_sha256=request_hash(request)), "cores")
    return plan


@pytest.mark.parametrize("title", TITLES)
def test_every_tab_stands(workspace, planned, title):
    page = open_page("plan", workspace, scenario="cores", tab=slug(title))
    assert page.session_state["plan-tab"] == title
    if title == "Deploy":
        assert page.error and all("Serve this plan on its host" in error.value for error in page.error)
    else:
        assert not page.error
    if title == "Plan":
        assert "chat" in said(page) and "CPU" in said(page)
    if title == "Run it":
        assert not page.button("run-start").disabled
