"""A training in a browser: a pipeline across unlike nodes stage by stage, in both themes and on a phone."""

import pytest
from playwright.sync_api import expect

from tests.support.browser.access import PHONE, in_scheme, ours
from tests.support.browser.pages import heading
from tests.support.browser.settle import settle
from tests.support.browser.workspaces import begun
from torchsplit_core.jobs.job_kinds import RequestParameters
from torchsplit_core.jobs.strategy import strategy_job
from torchsplit_core.values import ignore_progress
from torchsplit_core.values.strategy.request import (
    StrategyFix,
    StrategyNodes,
    StrategyRequest,
    TransformerSizes,
)
from torchsplit_core.values.training import TrainingJob

pytestmark = pytest.mark.browser
REQUEST = StrategyRequest(
    TransformerSizes(9, 4096, 32, 32, 16384, 32000, 512),
    (StrategyNodes(1, 2, "T4-16GB"), StrategyNodes(1, 1, "L4-24GB")),
    TrainingJob(8, "fp16"),
    StrategyFix(tensor=1, data=1, context=1),
    may_need=("precision",),
)
INK = {"light": "rgb(27, 31, 36)", "dark": "rgb(230, 234, 238)"}


@pytest.mark.repeated
def test_a_pipeline_across_unlike_nodes_is_shown_stage_by_stage(session, address, home):
    workspace = begun(home, "across")
    workspace.put("strategy_request", "across", REQUEST)
    strategy_job(workspace, RequestParameters("across"), ignore_progress)
    page = session()
    page.goto(f"{address}/training?workspace={workspace.id}&training=across")
    heading(page, "across")
    expect(page.get_by_role("heading", name="A pipeline across unlike nodes")).to_be_visible()
    expect(page.get_by_text("8 micro-batches pass every stage")).to_be_visible()
    settle(page)
    for scheme in ("light", "dark"):
        in_scheme(page, scheme)
        # A chart has the colours that the page was drawn with: it is drawn again.
        expect(page.locator(".st-key-training-memory svg.main-svg text").first).to_have_css(
            "fill", INK[scheme]
        )
        assert not ours(page)
    page.set_viewport_size({"width": PHONE, "height": 1000})
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
