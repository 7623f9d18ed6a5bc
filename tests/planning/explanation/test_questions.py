"""Questions that bound each other: answers never contradict, bounds hold for every level, and none is without both."""

from dataclasses import replace

import pytest

from tests.support.planning.oracle import best_plan
from tests.support.planning.requests import on_a30, published, random_request, simple, with_tiers
from tests.support.seeds import repeated
from torchsplit_core.planning import plan
from torchsplit_core.planning.explanation import planner_process, settling
from torchsplit_core.planning.explanation.changes import add_gpu, relaxed_demand, remove_gpu, without_demand
from torchsplit_core.planning.explanation.explain import explain_plan
from torchsplit_core.planning.explanation.questions import LAST, Question, Questions
from torchsplit_core.planning.explanation.relaxation_bound import relaxation_bound
from torchsplit_core.planning.outcome.levels import Levels
from torchsplit_core.planning.outcome.resilience import levels_without_gpus
from torchsplit_core.values import ChangeEffect, Objective, PlanExplanation, PlanRequest

LONG_S = 60.0


def question(
    lower: tuple[float, ...] = (), upper: tuple[float, ...] = (), *, relaxes: bool = True
) -> Question:
    return Question(on_a30(simple("a", {"4g.24gb": 1.0})), relaxes, 2, lower=lower, upper=upper)


def test_answers_bound_those_of_easier_and_stricter_requests():
    questions = Questions(question((1.0, 2.0), (1.0, 2.0)))
    dropped, eased = questions.add(question()), questions.add(question(upper=(9.0,)))
    fewer = questions.add(question((0.5, 0.5), relaxes=False))
    layout = questions.add(question(relaxes=False))
    questions.pairs += [(eased, dropped), (fewer, layout)]
    dropped.take_plan((1.5, 1.5))
    dropped.take_bound((1.5, 3.0))
    questions.spread()
    assert (eased.lower, eased.upper) == ((1.0, 2.0), (1.5, 3.0))
    assert (layout.lower, layout.upper) == ((0.5, 0.5), (1.0, 2.0))
    eased.take_plan((1.5, 2.5))
    questions.spread()
    assert dropped.lower == (1.5, 2.5) and dropped.levels() == Levels((1.5, 2.5), 1, 3.0)
    layout.feasible = False
    questions.spread()
    assert not fewer.feasible and dropped.feasible


def test_a_bound_below_a_plan_is_not_believed():
    item = question((2.0, 2.0))
    assert not item.take_bound((1.0,)) and item.upper == ()
    assert item.take_bound((2.5,)) and not item.take_bound((3.0,))
    assert item.take_plan((3.0, 1.0)) and item.upper == ()
    assert not item.take_plan((3.0 * (1 + 1e-9), 1.0))


def test_a_question_is_settled_at_the_first_level_that_differs():
    before = question((1.0, 2.0), (1.0, 2.0))
    assert question((1.5, 0.0), (1.5, 9.0)).settled(before)
    assert not replace(question((1.5, 0.0), (1.5, 9.0)), whole=True).settled(before)
    assert not question((1.0, 2.0), (1.0, 3.0)).settled(before)
    assert question((1.0, 2.0), (1.0, 2.0)).settled(before)
    assert not question((0.5, 9.0), (0.9,), relaxes=False).settled(before)


def test_what_tells_most_is_planned_first_and_what_failed_last():
    questions = Questions(question((1.0, 1.0), (1.0, 1.0)))
    small, large, failed, first = (questions.add(question(upper=(9.0,))) for _ in range(4))
    small.telling, large.telling, failed.telling, failed.attempts, first.order = 0.1, 0.2, 0.3, 1, 0
    assert questions.unsettled() == [first, large, small, failed]


def test_what_comes_last_is_planned_once(monkeypatch):
    asked: list[int] = []
    submit = planner_process.PlannerProcesses.submit

    def note(self, subject, request, seconds, *, relaxes):
        asked.append(subject.order)
        submit(self, subject, request, seconds, relaxes=relaxes)

    monkeypatch.setattr(settling.PlannerProcesses, "submit", note)
    monkeypatch.setattr(planner_process, "_plan_request", lambda *_: None)
    request = on_a30(simple("a", {"2g.12gb": 10.0}), count=2)
    assert explain_plan(request, plan(request)) is not None
    assert asked.count(LAST) == 1 and asked.count(1) % settling.MAX_ATTEMPTS == 0 and asked[0] == 1


@pytest.mark.parametrize("tiers", [False, True])
def test_the_relaxation_bounds_every_level_after_those_that_are_known(tiers):
    seen = 0
    for seed in range(12):
        request = random_request(seed, "leximin", "exclusive")
        request = replace(with_tiers(request, seed) if tiers else request, gpus=request.gpus[:1])
        if request.gpus[0].count > 1 or (best := best_plan(request)) is None:
            continue
        for level, value in enumerate(best[0]):
            bound = relaxation_bound(request, LONG_S, best[0][:level])
            assert bound is not None and bound.bound >= value - 1e-6 * abs(value) - 1e-9, (seed, level)
            seen += 1
    assert seen > 10


def test_the_least_of_several_is_bounded_by_their_sum():
    # Two models on four quarters: a takes 2 of each, b 1: (2, 2) is best, and 2 + 2 is all there is.
    request = on_a30(simple("a", {"1g.6gb": 1.0}), simple("b", {"1g.6gb": 1.0}))
    second = relaxation_bound(request, LONG_S, (1.0,))
    assert second is not None and second.bound == pytest.approx(3.0)


def test_the_gpu_that_matters_least_is_left_out():
    request = published(2)
    outcome = plan(request)
    left = levels_without_gpus(request, outcome.gpus, (0, 1))
    each = [levels_without_gpus(request, outcome.gpus, (index,)) for index in (0, 1)]
    assert left == max(each) and left <= plan(published(1)).objective.sorted_normalised
    unmet = replace(request, models=tuple(replace(m, min_throughput_rps=1e6) for m in request.models))
    assert levels_without_gpus(unmet, outcome.gpus, (0, 1)) == ()


def by_planning(request: PlanRequest) -> dict[tuple[object, ...], PlanRequest]:
    """Every changed request by the words of its change."""
    changes = (*add_gpu(request), *without_demand(request), *relaxed_demand(request))
    changes += tuple(change for change, _ in remove_gpu(request))
    return {words(change.spec): change.apply(request) for change in changes}


def words(change: ChangeEffect) -> tuple[object, ...]:
    return change.what, change.model, change.models, change.gpu_id, change.old, change.new


def changes_of(explanation: PlanExplanation) -> list[ChangeEffect]:
    limits = [limit.change for model in explanation.models for limit in model.limits if limit.change]
    return [*explanation.changes, *limits, *(reason.trial for reason in explanation.layouts if reason.trial)]


@repeated("seeds", [(4,), (1, 5)])
def test_without_one_changed_plan_every_question_has_both_bounds(seeds, monkeypatch):
    """All are between a plan and a relaxation, and what planning them gives is between these. A minimum that a GPU less
    does not keep leaves nothing to one side."""
    seen = 0
    for seed in seeds:
        request = replace(random_request(seed, "leximin"), colocations=(), objective=Objective())
        free = tuple(replace(model, min_throughput_rps=None) for model in request.models)
        request = replace(request, models=free)
        requests = by_planning(request)
        before = plan(request)
        with monkeypatch.context() as patched:
            patched.setattr(planner_process, "_plan_request", lambda *_: None)
            explanation = explain_plan(request, before)
        assert explanation is not None
        for change in changes_of(explanation):
            if change.effect == "same":
                continue
            assert change.level and change.value_after is not None and change.bound_after is not None, change
            assert change.value_after <= change.bound_after * (1 + 1e-6)
            if change.what != "layout":
                best = plan(requests[words(change)]).objective.sorted_normalised[: change.level]
                assert best[:-1] == pytest.approx(before.objective.sorted_normalised[: change.level - 1])
                assert change.value_after - 1e-6 <= best[-1] <= change.bound_after + 1e-6, (seed, change)
                seen += 1
    assert seen > 5


def test_plans_that_are_known_are_not_planned_again(monkeypatch):
    request = published()
    outcome = plan(request)
    known: dict[PlanRequest, object] = {}
    first = explain_plan(request, outcome, on_outcome=known.__setitem__)
    assert first is not None and first.complete and known
    monkeypatch.setattr(planner_process, "_plan_request", lambda *_: 1 / 0)
    again = explain_plan(request, outcome, known=known.get)  # type: ignore[arg-type]
    assert again is not None and again.complete
    assert [(c.effect, c.level, c.value_after) for c in changes_of(again)] == [
        (c.effect, c.level, c.value_after) for c in changes_of(first)
    ]


def test_a_plan_without_a_limit_that_keeps_the_eased_one_answers_both(monkeypatch):
    asked: list[PlanRequest] = []
    submit = planner_process.PlannerProcesses.submit

    def note(self, subject, request, seconds, *, relaxes):
        asked.append(request)
        submit(self, subject, request, seconds, relaxes=relaxes)

    monkeypatch.setattr(settling.PlannerProcesses, "submit", note)
    monkeypatch.setattr(planner_process, "WORKERS", 1)
    # 16 requests/s take 10.5 ms: more than the limit, less than a tenth more.
    point = replace(simple("a", {"4g.24gb": 10.0}).variants[0].stages[0].points[0], latency_ms=9.0)
    better = replace(point, batch_size=2, throughput_rps=16.0, latency_ms=10.5)
    model = simple("a", {"4g.24gb": 10.0})
    stage = replace(model.variants[0].stages[0], points=(point, better))
    model = replace(model, variants=(replace(model.variants[0], stages=(stage,)),), max_latency_ms=10.0)
    explanation = explain_plan(on_a30(model), plan(on_a30(model)))
    assert explanation is not None
    (eased,) = [c for c in explanation.changes if c.what == "max_latency_ms"]
    assert (eased.effect, eased.value_after, eased.proven) == ("better", 16.0, True)
    limits = {request.models[0].max_latency_ms for request in asked}
    assert limits == {10.0, None}
