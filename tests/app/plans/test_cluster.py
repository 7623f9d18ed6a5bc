"""The tab Deploy says how a cluster would place the plan, and draws the worst order."""

from dataclasses import replace

from app.plans.deploy.cluster import sentence
from tests.support.app.page import put_plan, said
from tests.support.app.values import plan, request
from tests.support.deployment.helpers import plan_of, planned_gpu
from torchsplit_core.deployment import forecast_cluster, group_by_host
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import FleetEntry, PlanOutcome


def test_the_tab_says_what_strands_and_draws_the_worst_order_when_it_is_opened(page, filled):
    opened = page("deploy", filled)
    text = said(opened)
    assert "With dynamic MIG up to 1 of 2 pods find no slice where each has a claim of its own" in text
    assert "not tried on a cluster" in text
    assert text.count("<td>none of 2</td>") == 3 and "<td>0 to 1 of 2, some in" in text
    assert "Without a slice:" not in text
    opened.session_state["cluster-worst"] = True
    assert "Without a slice: bert (4g.40gb)." in said(opened.run())


def test_a_plan_of_cores_has_no_such_table(page, workspace):
    cores = replace(plan(), gpus=plan_of(planned_gpu("cpu0", "CPU-4c", [("4c", 0, "bert")])).gpus)
    asked = replace(request(), gpus=(FleetEntry("CPU-4c", "cpu0"),))
    put_plan(workspace, asked, replace(cores, request_sha256=request_hash(asked)))
    workspace.set_setting("scenario", "review")
    assert "As your cluster" not in said(page("deploy", workspace))


def words(plan: PlanOutcome) -> str:
    return sentence(forecast_cluster(group_by_host(plan)))


def test_the_sentence_follows_what_strands():
    ones = [("1g.10gb", start, "a") for start in range(7)]
    assert words(plan_of(planned_gpu("gpu0", "A100-80GB", ones))).startswith(
        "All 7 pods find a slice either way"
    )
    assert words(plan_of(planned_gpu("gpu0", "A100-80GB", ones[:1]))).startswith("The pod finds its slice")
    part = plan_of(planned_gpu("gpu0", "A100-80GB", ones), planned_gpu("gpu1", "A100-80GB", ones[:2]))
    assert words(part).startswith(
        "With slices cut beforehand up to 7 of 9 pods find no slice even with the claims of these files"
    )
