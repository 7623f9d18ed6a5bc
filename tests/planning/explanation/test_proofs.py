"""What explanations prove: bounds and statements against a look at all plans, and no claims beyond what is known."""

import time
from functools import cache

import pytest

from tests.support.planning.insight import LONG_S, changed, explain
from tests.support.planning.oracle import best_plan
from tests.support.planning.requests import on_a30, published, random_request, simple, with_tiers
from tests.support.seeds import repeated
from torchsplit_core.planning import plan
from torchsplit_core.planning.explanation import planner_process
from torchsplit_core.planning.explanation.changes import (
    add_gpu,
    force_layout,
    relaxed_demand,
    remove_gpu,
    without_demand,
)
from torchsplit_core.planning.explanation.explain import explain_plan
from torchsplit_core.planning.explanation.level_comparison import compare_levels
from torchsplit_core.planning.explanation.relaxation_bound import relaxation_bound
from torchsplit_core.planning.explanation.unused_layouts import gpu_classes
from torchsplit_core.planning.outcome.levels import NO_PLAN, Levels
from torchsplit_core.values import ChangeEffect, Objective, PlanRequest

pytestmark = pytest.mark.slow


@repeated("kind", ["max_min with tiers", "max_min", "weighted_sum", "min_gpus"])
def test_the_relaxed_bound_holds(kind):
    seen = 0
    for seed in range(25):
        request = random_request(seed, kind.partition(" ")[0], "fractional" if seed % 2 else "exclusive")
        if kind.endswith("tiers"):
            request = with_tiers(request, seed)
        outcome = plan(request)
        if outcome.objective.value is None:
            continue
        seen += 1
        found = relaxation_bound(request, LONG_S)
        assert found is not None, seed
        slack = 1e-6 * abs(outcome.objective.value) + 1e-12
        if kind == "min_gpus":
            assert found.bound <= outcome.objective.value + slack, seed
        else:
            assert found.bound >= outcome.objective.value - slack, seed
    assert seen > 10


@repeated(
    ("kind", "seeds"),
    [
        ("leximin", (5,)),
        ("min_gpus", range(8)),
        ("max_min", (2, 6, 7)),
        ("weighted_sum", range(8)),
        ("leximin with tiers", (5,)),
        ("leximin", range(9)),
        ("max_min", range(8)),
        ("leximin with tiers", range(9)),
    ],
    kept=2,
)
def test_every_statement_against_a_look_at_all_plans(kind, seeds):
    checked = 0
    for seed in seeds:
        request = random_request(seed, kind.partition(" ")[0])
        if kind.endswith("tiers"):
            request = with_tiers(request, seed)
        if sum(entry.count for entry in request.gpus) > 1:
            # Looking at every plan of three GPUs takes minutes.
            continue
        outcome = plan(request)
        if outcome.status == "infeasible":
            assert explain_plan(request, outcome) is None
            continue
        explanation = explain(request)
        assert explanation.complete
        best = vector(request)
        assert best is not None
        by_words = {
            words(change.spec): change.apply(request)
            for change in (
                *add_gpu(request),
                *without_demand(request),
                *relaxed_demand(request),
                *(change for change, _ in remove_gpu(request)),
            )
        }
        told = [
            *explanation.changes,
            *(limit.change for entry in explanation.models for limit in entry.limits if limit.change),
        ]
        for change in told:
            check(change, best, vector(by_words[words(change)]), negated=kind == "min_gpus")
            checked += 1
        for gpu, places in gpu_classes(request):
            for reason in explanation.layouts:
                # An idle GPU takes a layout for nothing, so under min_gpus the question is another one.
                if reason.gpu_id == gpu.id and reason.trial and kind != "min_gpus":
                    forced_one = force_layout(request, gpu, places[-1], reason.layout).apply(request)
                    check(reason.trial, best, vector(forced_one), negated=False)
                    checked += 1
    assert checked > 20


def words(change: ChangeEffect) -> tuple[object, ...]:
    return (change.what, change.model, change.models, change.gpu_id, change.old, change.new)


@cache
def vector(request: PlanRequest) -> tuple[float, ...] | None:
    found = best_plan(request)
    return None if found is None else found[0]


def check(
    told: ChangeEffect, best: tuple[float, ...], after: tuple[float, ...] | None, *, negated: bool
) -> None:
    assert told.proven, told
    if after is None:
        assert told.effect == "infeasible", told
        return
    sign = -1.0 if negated else 1.0
    differing = [
        level
        for level, (old, new) in enumerate(zip(best, after, strict=True))
        if abs(old - new) > 1e-6 * max(abs(old), abs(new))
    ]
    assert told.level is not None and told.value_after is not None
    if differing:
        assert told.effect == ("better" if after[differing[0]] > best[differing[0]] else "worse"), told
        assert told.level == differing[0] + 1
    else:
        assert told.effect == "same", told
    assert sign * told.value_after == pytest.approx(after[told.level - 1], rel=1e-5, abs=1e-9)


# What can be said of plans that are not proven


@pytest.mark.parametrize(("before", "after", "eases", "effect", "level", "exact"), [
    (Levels((1.0, 2.0), 2), Levels((1.0, 2.0), 2), True, "same", None, True),
    (Levels((1.0, 2.0), 2), Levels((1.0, 3.0), 2), True, "better", 1, True),
    (Levels((1.0, 2.0), 2), Levels((1.0, 3.0), 1, 4.0), True, "better", 1, False),
    (Levels((1.0, 2.0), 2), Levels((1.0, 2.0), 1, 4.0), True, "open", 1, False),
    (Levels((1.0, 2.0), 0, 1.5), Levels((1.2, 9.0), 2), True, "open", 0, False),
    (Levels((1.0, 2.0), 0, 1.5), Levels((1.6, 2.0), 0, 9.0), True, "better", 0, False),
    # A bound of the easier request is one of the harder: the plan is proven with it.
    (Levels((1.0, 2.0), 0, 1.5), Levels((1.0, 2.0), 2), True, "same", None, True),
    (Levels((1.0, 2.0), 2), Levels((0.5, 9.0), 0, 0.9), False, "worse", 0, False),
    (Levels((1.0, 2.0), 2), Levels((0.5, 9.0), 1), False, "worse", 0, True),
    (Levels((1.0, 2.0), 2), Levels((0.5, 9.0), 0, None), False, "open", 0, False),
    (Levels((1.0, 2.0), 2), Levels((1.0, 2.0), 0, None), False, "same", None, True),
    (Levels((1.0, 2.0), 2), Levels((1.0,), 1), True, "open", 1, False),
    (Levels((1.0, 2.0), 2), Levels((1.0,), 1), False, "open", 1, False),
    (Levels((1.0, 2.0), 2), NO_PLAN, False, "infeasible", 0, True),
    # A worse answer to an easier request is a fault of the solver: the plan itself stands.
    (Levels((1.0, 2.0), 2), Levels((0.5, 2.0), 2), True, "open", 0, False),
    (Levels((1.0,), 1), None, True, "not_examined", None, False),
])  # fmt: skip
def test_comparisons_claim_no_more_than_is_proven(before, after, eases, effect, level, exact):
    found = compare_levels(before, after, relaxes=eases)
    assert (found.effect, found.level) == (effect, level)
    if effect not in ("same", "not_examined"):
        assert found.exact == exact


def test_without_time_nothing_is_claimed():
    request = published()
    explanation = explain_plan(request, plan(request), time.perf_counter())
    assert explanation is not None and not explanation.complete
    assert {change.effect for change in explanation.changes} == {"not_examined"}
    assert {limit.binds for entry in explanation.models for limit in entry.limits} == {None}


def test_a_planner_that_does_not_answer_is_ended(monkeypatch):
    request = published()
    outcome = plan(request)
    monkeypatch.setattr(planner_process, "_plan_request", lambda *_: time.sleep(1e6))
    explanation = explain_plan(request, outcome, time.perf_counter() + 2.0)
    assert explanation is not None and not explanation.complete
    assert not any(change.proven for change in explanation.changes)


def test_a_planner_that_fails_leaves_bounds(monkeypatch):
    request = published()
    outcome = plan(request)
    monkeypatch.setattr(planner_process, "_plan_request", lambda *_: 1 / 0)
    explanation = explain_plan(request, outcome, time.perf_counter() + LONG_S)
    assert explanation is not None
    more = changed(explanation, "gpu", new=3.0)
    assert (more.effect, more.value_before, more.value_after) == ("open", 7.8, 7.8)
    # Three GPUs in any fractions: one and a half times what two give.
    assert more.bound_after == pytest.approx(1.5 * explanation.steps[0].bound)  # type: ignore[operator]


def test_a_relaxation_that_highs_does_not_take_bounds_nothing():
    fast = simple("fast", {"4g.24gb": 1e16})
    request = on_a30(fast, objective=Objective("max_min"))
    assert relaxation_bound(request, 10.0) is None
    known = relaxation_bound(PlanRequest(request.gpus, (simple("slow", {"4g.24gb": 10.0}),)), 10.0)
    assert known is not None and known.bound == pytest.approx(10.0)
