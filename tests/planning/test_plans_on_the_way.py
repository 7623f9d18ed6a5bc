"""Plans that the planner hands out while it searches: sound, each better than the last, and of the same search."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.support.planning.requests import published, random_request
from tests.support.seeds import in_blocks
from torchsplit_core.planning import plan, planner
from torchsplit_core.planning.exclusive.plan import ExclusiveResult
from torchsplit_core.planning.formulation.leximin import LevelsResult
from torchsplit_core.planning.infeasibility.notes import NO_CONFLICT, NO_RELAXATION, unsettled_notes
from torchsplit_core.planning.request.objective import goal_of, reached_levels
from torchsplit_core.planning.verification.outcome import violations
from torchsplit_core.values import Colocation, Objective, PlanOutcome, PlanRequest


def plan_with_handed(request: PlanRequest) -> tuple[list[PlanOutcome], PlanOutcome]:
    """The plans handed out on the way, and the outcome."""
    handed: list[PlanOutcome] = []
    return handed, plan(request, on_plan=handed.append)


KINDS = ("leximin", "max_min", "weighted_sum", "min_gpus")


@in_blocks(
    "seed, kind, sharing",
    [(s, kind, sharing) for s in range(10) for kind in KINDS for sharing in ("exclusive", "fractional")],
    kept=1,
)
def test_plans_on_the_way_are_sound_and_no_better_than_the_outcome(seed, kind, sharing):
    request = random_request(seed, kind, sharing)
    handed, outcome = plan_with_handed(request)
    goal = goal_of(request)
    if outcome.status == "infeasible":
        assert [(item.status, unsettled_notes(item)) for item in handed] == [
            ("infeasible", (NO_RELAXATION, NO_CONFLICT))
        ]
        return
    assert outcome.status == "optimal"
    for item in handed:
        assert item.status == "feasible" and not list(violations(request, item))
        assert item.objective.bound is None and (item.objective.value or 0.0) > 0
        assert not goal.fair or all(model.throughput_rps for model in item.models)
    firsts = [reached_levels(item.objective)[0] for item in handed]
    for before, after in itertools.pairwise(firsts):
        assert goal.better((after,), (before,))
    if handed:
        final = reached_levels(outcome.objective)[0]
        assert goal.better((final * (0.999999 if goal.minimised else 1.000001),), (firsts[-1],))
    assert reached_levels(outcome.objective) == pytest.approx(reached_levels(plan(request).objective))


PAIR = ("text check", "encoder")


class Ended(Exception):
    """The search was left."""


def plans_before(step: str, request: PlanRequest, monkeypatch: pytest.MonkeyPatch) -> list[PlanOutcome]:
    """The plans handed out until the planner comes to a step."""
    handed: list[PlanOutcome] = []

    def end(*_: object) -> None:
        raise Ended

    monkeypatch.setattr(planner, step, end)
    with pytest.raises(Ended):
        plan(request, on_plan=handed.append)
    return handed


@pytest.mark.parametrize(
    "request_",
    [
        published(4),
        published(4, sharing="fractional"),
        published(4, objective=Objective("weighted_sum")),
        published(4, colocations=(Colocation(PAIR, "hard"),)),
        published(4, colocations=(Colocation(PAIR, "soft", 1e6),)),
        published(4, colocations=(Colocation(PAIR, "routed", 1e6),)),
        published(4, sharing="fractional", colocations=(Colocation(PAIR, "hard"),)),
    ],
)
def test_every_search_has_a_plan_before_its_end(request_, monkeypatch):
    handed = plans_before("verify", request_, monkeypatch)
    assert handed and not list(violations(request_, handed[-1]))


def test_a_rule_has_the_first_plan_that_keeps_pairs_together(monkeypatch):
    request = published(4, colocations=(Colocation(PAIR, "hard"),))
    (handed,) = plans_before("plan_exclusive", request, monkeypatch)
    assert not list(violations(request, handed))


@pytest.mark.parametrize("found", ["nothing", "a worse plan"])
def test_what_was_handed_out_is_not_lost_at_the_end(found, monkeypatch):
    request = published(4)
    whole = planner.plan_exclusive

    def ends_early(problem, deadline, progress):
        result = whole(problem, deadline, progress)
        worse = ExclusiveResult(problem, LevelsResult(bounds=[100.0]))
        if found == "a worse plan":
            worse.assignment = replace(result.assignment, slices=result.assignment.slices[:1])
        return worse

    monkeypatch.setattr(planner, "plan_exclusive", ends_early)
    handed, outcome = plan_with_handed(request)
    assert outcome.status == "feasible" and outcome.gpus == handed[-1].gpus
    assert outcome.objective.value == handed[-1].objective.value
    assert outcome.objective.bound == (100.0 if found == "a worse plan" else None)


def test_a_plan_that_fails_its_check_is_not_handed_out(monkeypatch):
    monkeypatch.setattr(planner, "violations", lambda *_: iter(["it is wrong"]))
    handed, outcome = plan_with_handed(published(2))
    assert outcome.status == "optimal" and not handed


def test_the_fewest_gpus_have_a_plan_with_more_first():
    models = tuple(replace(model, min_throughput_rps=4.0) for model in published(1).models)
    request = replace(published(6, objective=Objective("min_gpus")), models=models)
    handed, outcome = plan_with_handed(request)
    assert outcome.status == "optimal"
    assert handed and (handed[0].objective.value or 0.0) >= (outcome.objective.value or 0.0)


def test_a_fault_of_the_callback_ends_the_search():
    def refuse(handed: PlanOutcome) -> None:
        raise ValueError("no room")

    for request in (published(2), published(2, objective=Objective("weighted_sum"))):
        with pytest.raises(ValueError, match="no room"):
            plan(request, on_plan=refuse)
