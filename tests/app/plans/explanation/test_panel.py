"""The explanation on the Plan page: asked for by a button, made by a job, shown with what is proven."""

import time
from dataclasses import replace

import pytest

from app.plans.explanation import descriptions
from app.plans.explanation.panel import sections
from app.plans.model_table import models_table
from app.session import scenario
from tests.support.app.page import press, said, turn_to
from tests.support.app.values import plan, request
from torchsplit_core import jobs
from torchsplit_core.jobs import JobStatus
from torchsplit_core.jobs.job_kinds import EXPLAIN, RequestParameters
from torchsplit_core.jobs.plan import explain_job
from torchsplit_core.pictures.numbers import THIN
from torchsplit_core.planning.explanation import explain as explanation_explain
from torchsplit_core.values import (
    ChangeEffect,
    FleetEntry,
    LayoutReason,
    ModelBinding,
    ModelLimit,
    PlanExplanation,
    PriceStep,
    ignore_progress,
)


def test_the_button_starts_a_job(page, solved, started):
    opened = page("plan", solved)
    assert "Here you will see what binds each model" in said(opened)
    press(opened, "Explain this plan")
    assert started == [(EXPLAIN, RequestParameters("review"))]


def test_a_plan_that_was_just_made_is_explained_without_being_asked_once(page, solved, started):
    opened = page("plan", solved)
    assert started == []
    turn_to(opened, f"explain next {solved.id}", True)
    opened.run()
    assert not opened.exception and started == [(EXPLAIN, RequestParameters("review"))]


def test_what_an_explained_plan_says_first(page, solved):
    """The bound without whole slices, one more GPU, levels and what holds each model, at the numbers themselves."""
    before = said(page("plan", solved))
    assert "cut freely" not in before and "held back by" not in before and "1, proven" in before
    explain_job(solved, RequestParameters("review"), ignore_progress)
    found = solved.get("plan", "review").explanation
    relaxed = next(step for step in found.steps if step.step == "relaxed")
    after = said(page("plan", solved))
    assert f"{relaxed.bound:g} if GPUs could be cut freely" in after
    assert "one more A100-80GB: 1.5 → 3.5" in after and "held back by" in after
    assert "1, proven" in after and "2, proven" in after


def test_what_holds_a_model_is_only_said_where_it_is_settled():
    limits = {
        "GPUs": (ModelLimit("capacity", True), ModelLimit("memory", None)),
        "not settled": (ModelLimit("capacity", None), ModelLimit("memory", False)),
        "nothing on its own": (ModelLimit("capacity", False),),
    }
    for words_, held in limits.items():
        explanation = PlanExplanation((ModelBinding("bert", 1, 1.0, held),), (), (), (), 1.0, True)
        table = models_table(replace(plan(), explanation=explanation), request(), {})
        assert f"<td>{words_}" in table and "n/a</td>" in table  # ocr was not examined
    open_ = replace(plan(), objective=replace(plan().objective, kind="leximin", proven_levels=1))
    assert "1, proven" in models_table(open_, request(), {}) and "2, open" in models_table(
        open_, request(), {}
    )
    summed = replace(plan(), objective=replace(plan().objective, kind="weighted_sum"))
    assert "proven" not in models_table(summed, request(), {})


def test_a_link_is_told_where_it_binds_and_where_it_does_not():
    dropped = ChangeEffect("link", "better", 12.0, None, 1, 10.0, 10.0, 40.0, 40.0, True, model="bert")
    faster = ChangeEffect("link", "same", 12.0, 24.0, 1, 10.0, 10.0, 10.0, 10.0, True)
    held = ModelBinding("bert", 1, 1.0, (ModelLimit("link", True, dropped),))
    free = ModelBinding("ocr", 2, 1.0, (ModelLimit("link", False, replace(dropped, effect="same")),))
    explanation = PlanExplanation((held, free), (faster,), (), (), 1.0, True)
    table = models_table(replace(plan(), explanation=explanation), request(), {})
    assert "<td>the link binds</td>" in table
    parts = {title: text.replace(THIN, " ") for title, text in sections(explanation, plan())}
    assert "the link binds" in parts["What binds each model"]
    assert "<td>link, 12 GB/s</td>" in parts["What binds each model"]
    told = parts["What one change would bring"]
    assert "bert: without link, 12 GB/s" in told
    assert "Link and network: 12 → 24 GB/s</td><td>no change, proven" in told and "eased by 10" not in told


def test_many_unsettled_changes_stand_behind_one_line():
    open_ = tuple(
        ChangeEffect("max_latency_ms", "open", 10.0, 11.0, 1, 1.0, 1.0, 1.0, 2.0, model=f"m{number}")
        for number in range(5)
    )
    settled = ChangeEffect(
        "gpu", "better", 1, 2, 1, 1.0, 1.0, 2.0, 2.0, True, gpu_type="A100-80GB", gpu_id="gpu0"
    )
    explanation = PlanExplanation((), (settled, *open_), (), (), 1.0, False)
    text = dict(sections(explanation, plan()))["What one change would bring"]
    assert "5 changes of one demand" in text and text.count("<tr>") == 3 and text.count("<li>") == 5
    few = replace(explanation, changes=(settled, *open_[:2]))
    assert "<details" not in dict(sections(few, plan()))["What one change would bring"]


def test_the_job_stores_the_explanation_and_the_page_shows_it(page, solved):
    answer = explain_job(solved, RequestParameters("review"), ignore_progress)
    assert answer == {"plan": "review", "complete": True, "more": False}
    text = said(page("plan", solved))
    for heading in ("What binds each model", "What one change would bring", "Why not another layout"):
        assert heading in text
    assert "One more A100-80GB like gpu0: 1 → 2" in text
    # Two GPUs: 4g and 3g for each of the two models.
    assert "worst served: 1.5 → 3.5, proven" in text
    assert "Explain" not in [button.label for button in page("plan", solved).button]


def test_a_plan_of_another_request_is_not_explained(page, solved):
    solved.put("plan_request", "review", replace(request(), gpus=(FleetEntry("A100-80GB", count=2),)))
    opened = page("plan", solved)
    assert "plan again first" in said(opened)
    assert not any("Explain" in button.label for button in opened.button)


def test_a_plan_made_meanwhile_is_not_covered(solved, monkeypatch):
    newer = replace(plan(), warnings=("newer",))

    def explain(*given, **more):
        solved.put("plan", "review", newer)
        return PlanExplanation((), (), (), (), 0.0, True)

    monkeypatch.setattr(explanation_explain, "explain_plan", explain)
    explain_job(solved, RequestParameters("review"), ignore_progress)
    assert solved.get("plan", "review") == newer


def test_an_unfinished_explanation_says_so_and_can_be_asked_for_again(page, solved):
    open_change = ChangeEffect(
        "gpu", "open", 1.0, 2.0, 1, 1.5, 1.5, 1.5, 2.0, gpu_type="A100-80GB", gpu_id="gpu0"
    )
    binding = ModelBinding("ocr", 1, 1.5, (ModelLimit("capacity", None, open_change),))
    explanation = PlanExplanation(
        (binding,), (open_change,), (), (PriceStep("plan", 1.5, 1.5, None, True),), 5.0, False
    )
    solved.put("plan", "review", replace(solved.get("plan", "review"), explanation=explanation))
    opened = page("plan", solved)
    text = said(opened)
    assert "nothing proven" in text and "time ran out" in text
    assert "worst served: 1.5 → between 1.5 and 2, not proven" in text
    assert "Explain again" in [button.label for button in opened.button]


@pytest.mark.parametrize(("change", "kind", "text"), [
    (ChangeEffect("gpu", "not_examined"), "leximin", "not examined in the time given"),
    (ChangeEffect("gpu", "infeasible", level=1), "leximin", "no plan at all, proven"),
    (ChangeEffect("gpu", "same", level=1), "leximin", "no change, proven"),
    (ChangeEffect("gpu", "better", None, None, 2, 1.0, 1.0, 2.0, 2.0, True), "leximin",
     "level 2 from the worst served: 1 → 2, proven"),
    (ChangeEffect("gpu", "better", None, None, 1, 1.0, 1.0, 2.0, 2.5), "max_min",
     "worst served: 1 → 2, bound 2.5"),
    (ChangeEffect("gpu", "open", None, None, 1, 4.0, 2.0, 4.0, 2.0), "min_gpus",
     "GPUs (or cost): 4 → between 2 and 4, not proven"),
    (ChangeEffect("layout", "open", None, None, 1, 4.0, 4.0, None, 3.0), "weighted_sum",
     "weighted throughput: 4 → bound 3, not proven"),
    (ChangeEffect("gpu", "open", None, None, 1, 4.0, 4.0, 4.0, None), "leximin",
     "worst served: 4 → 4 or better, not proven"),
])  # fmt: skip
def test_figures_say_how_far_they_are_proven(change, kind, text):
    assert descriptions.describe_effect(change, kind).replace(THIN, " ") == text


def test_reasons_in_words():
    beaten = LayoutReason(
        "A100-80GB", "gpu0", ("3g.40gb", "3g.40gb"), "dominated", ("3g.40gb", "4g.40gb"),
        (("3g.40gb", "4g.40gb"), ("3g.40gb", "3g.40gb")),
    )  # fmt: skip
    assert descriptions.describe_layout(beaten.layout) == "2 × 3g.40gb"
    text = "3g.40gb + 4g.40gb serves every model at least as well (4g.40gb for 3g.40gb)"
    assert descriptions.describe_reason(beaten, "leximin") == text
    same = LayoutReason("A", "gpu0", ("x",), "tried", trial=ChangeEffect("layout", "same"))
    assert "equally good" in descriptions.describe_reason(same, "leximin")
    free = ModelBinding("a", 1, 1.0, (ModelLimit("capacity", False),))
    assert "only several changes" in descriptions.describe_binding(free)
    assert descriptions.describe_nonbinding(free) == "GPUs"


def test_what_is_open_is_settled_on_while_the_page_is_open(page, solved, monkeypatch):
    """Each time in twice the seconds of the job before; not after one that was cancelled, failed, or had no use for
    more."""
    open_change = ChangeEffect(
        "gpu", "open", 1.0, 2.0, 1, 1.5, 1.5, 1.5, 2.0, gpu_type="A100-80GB", gpu_id="gpu0"
    )
    spent: list[float] = []

    def explain(request, outcome, deadline, *, known, **_):
        spent.append(round(deadline - time.perf_counter()))
        return PlanExplanation((), (open_change,), (), (), 1.0 * spent[-1], False)

    monkeypatch.setattr(explanation_explain, "explain_plan", explain)
    answers = [explain_job(solved, RequestParameters("review"), ignore_progress) for _ in range(4)]
    assert spent == [20, 40, 80, 160]
    assert [answer["more"] for answer in answers] == [True, True, True, False]
    begun: list[str] = []
    monkeypatch.setattr(scenario, "start_explain", lambda workspace, name: begun.append(name))
    status = JobStatus("1", "", EXPLAIN, "cancelled", 1.0, "", answers[0], None, 20.0)
    for other in (status, replace(status, state="done", result=answers[-1])):
        monkeypatch.setattr(jobs, "newest", lambda *_, other=other: other)
        assert "Explain again" in [button.label for button in page("plan", solved).button]
        assert not begun
    monkeypatch.setattr(jobs, "newest", lambda *_: replace(status, state="running" if begun else "done"))
    page("plan", solved)
    assert begun == ["review"]
