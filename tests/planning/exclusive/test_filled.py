"""Hard co-locations over fillings of GPUs: against every plan, and proven where two sets share a GPU."""

import random
import time
from dataclasses import replace

import pytest

from benchmarks.fleet_instances import Family, fleet_instance
from tests.planning.patterns.test_colocated import whole_models
from tests.support.planning.oracle import best_plan, levels_of
from tests.support.planning.requests import A30, on_a30, simple
from tests.support.seeds import in_blocks, repeated
from torchsplit_core.evaluation.mixes import mix
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.exclusive import filled
from torchsplit_core.planning.exclusive.level_questions import RaisedLevels
from torchsplit_core.planning.outcome.build import build_planned_models
from torchsplit_core.planning.patterns import feasibility
from torchsplit_core.planning.patterns.colocated import plan_colocated
from torchsplit_core.planning.patterns.feasibility import PatternSearch
from torchsplit_core.planning.patterns.leximin_levels import LevelResult, raise_levels
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.request.objective import unit_rps
from torchsplit_core.values import Colocation, Objective, PlanOutcome, PlanRequest, SolverOptions

pytestmark = pytest.mark.slow


def request_of(seed: int) -> PlanRequest:
    """Three or four models on two A30 with one or two sets, of every objective that fillings are for."""
    rng = random.Random(f"fillings{seed}")
    models = whole_models(rng, rng.choice([3, 4, 4]))
    colocations = [Colocation(("m0", "m1"), "hard")]
    extra = rng.random()
    if len(models) == 4 and extra < 0.4:
        colocations.append(Colocation(("m2", "m3"), "hard"))
    elif extra < 0.6:
        colocations.append(Colocation(("m1", "m2"), "hard"))
    kind = rng.choice(["leximin", "leximin", "max_min", "min_gpus"])
    if kind == "min_gpus":
        models = [replace(item, min_throughput_rps=rng.choice([2.0, 5.0, 9.0])) for item in models]
    elif rng.random() < 0.3:
        models = [replace(item, tier=rng.choice([0, 1])) for item in models]
    return on_a30(*models, count=2, colocations=tuple(colocations), objective=Objective(kind))


def planned_best(request: PlanRequest) -> PlanOutcome:
    """The plan of a request, proven and the best of all, or infeasible where there is none."""
    expected, outcome = best_plan(request), plan(request)
    assert not list(violations(request, outcome))
    if expected is None:
        assert outcome.status == "infeasible"
    else:
        assert outcome.status == "optimal"
        assert levels_of(request, outcome) == pytest.approx(expected[0], rel=1e-6)
    return outcome


def test_a_plan_by_rule_has_a_bound(monkeypatch):
    """Where no search has a plan in time."""
    request = fleet_instance(8, 8, seed=1, family=Family(pairs=3), seconds=2.0)
    searched = plan(request, reasons=False)
    monkeypatch.setattr(filled, "plan_colocated", lambda *given: None)
    monkeypatch.setattr(filled, "raise_by_questions", lambda *given: RaisedLevels(()))
    monkeypatch.setattr(filled, "raise_levels", lambda *given, **named: LevelResult(()))
    by_rule = plan(request, reasons=False)
    assert by_rule.objective.value == by_rule.statistics.details["by_rule_value"]
    assert by_rule.objective.value <= searched.objective.value <= by_rule.objective.bound
    assert by_rule.objective.gap > 0


@in_blocks("seed", [*range(20, 40), *range(20)], kept=1)
def test_every_level_against_every_plan(seed):
    outcome = planned_best(request_of(seed))
    assert outcome.status == "infeasible" or (
        outcome.statistics.details["method"] == "patterns, on filled GPUs"
    )


def test_fillings_that_no_plan_can_have_are_left_out(monkeypatch):
    """As where they are many: at interior prices a GPU with one of them is worth less than any plan leaves it."""
    monkeypatch.setattr(feasibility, "MANY_LAYOUTS", 0)
    usable_layouts, left_out = PatternSearch._usable_layouts, []

    def usable(search, slack):
        layouts = usable_layouts(search, slack)
        left_out.append(int((~layouts).sum()))
        return layouts

    monkeypatch.setattr(PatternSearch, "_usable_layouts", usable)
    for seed in range(20, 32):
        planned_best(request_of(seed))
    assert sum(left_out) > 10


def test_two_sets_share_a_gpu():
    """Four models in two pairs on one GPU: patterns of whole sets have no plan for it."""
    models = [simple(f"m{number}", {"1g.6gb": 10.0}, demand_rps=10.0) for number in range(4)]
    pairs = (Colocation(("m0", "m1"), "hard"), Colocation(("m2", "m3"), "hard"))
    outcome = plan(on_a30(*models, count=1, colocations=pairs))
    assert outcome.status == "optimal"
    assert outcome.objective.value == pytest.approx(1.0)
    assert {item.profile for gpu in outcome.gpus for item in gpu.slices} == {"1g.6gb"}
    assert outcome.gpus[0].type == A30


@repeated(("count", "least"), [(2, 1.1283941), (5, 1.1221026)], kept=1)
def test_a_published_mix_with_pairs_is_proven_at_every_level(count, least):
    pairs = tuple(Colocation((pair.first, pair.second), "hard") for pair in mix("S3").pairs[:count])
    request = replace(mix("S3").request, colocations=pairs, solver=SolverOptions(120.0))
    outcome = plan(request, reasons=False)
    assert not list(violations(request, outcome))
    assert outcome.status == "optimal"
    assert outcome.objective.value == pytest.approx(least, rel=1e-6)


def test_few_fillings_are_proven_without_a_plan_of_whole_sets(monkeypatch):
    calls = []
    monkeypatch.setattr(filled, "plan_colocated", lambda *given: calls.append(given))
    problem = build_problem(replace(request_of(20), objective=Objective("leximin")))

    def planned():
        return filled.plan_fillings(problem, time.perf_counter() + 60.0, lambda part, text: None)

    alone = planned()
    assert alone is not None and alone.status == "optimal" and not calls
    monkeypatch.setattr(filled, "FEW_FILLINGS", 0)
    after_sets = planned()
    assert after_sets is not None and after_sets.status == "optimal" and len(calls) == 1
    assert after_sets.bounds == pytest.approx(alone.bounds)


def test_where_gpus_are_equal_fillings_follow_a_plan_of_whole_sets(monkeypatch):
    monkeypatch.setattr(filled, "FEW_FILLINGS", 0)
    asked = []
    raise_by_questions = filled.raise_by_questions

    def noted(*given):
        asked.append(given)
        return raise_by_questions(*given)

    monkeypatch.setattr(filled, "raise_by_questions", noted)
    problem = build_problem(replace(request_of(20), objective=Objective("leximin")))
    for equal, questions in ((3, 1), (2, 0)):
        asked.clear()
        monkeypatch.setattr(filled, "EQUAL_GPUS", equal)
        planned = filled.plan_fillings(problem, time.perf_counter() + 60.0, lambda part, text: None)
        assert planned is not None and planned.status == "optimal" and len(asked) == questions


def test_the_lesser_bound_of_the_first_open_level_stays():
    problem = build_problem(replace(request_of(20), objective=Objective("leximin")))
    raising = filled._Raising(problem, problem, problem, None, None, 0.0, lambda part, text: None)
    raising._take(filled.RaisedPlan(None, (1.0, 1.0), (1.0, 5.0), 1))
    raising._take(filled.RaisedPlan(None, (1.0, 1.5), (1.0, 7.0), 1))
    assert (raising.best.levels, raising.best.bounds) == ((1.0, 1.5), (1.0, 5.0))
    raising._take(filled.RaisedPlan(None, (1.0, 1.5), (1.0, 1.5), 2))
    assert (raising.best.proven, raising.best.bounds) == (2, (1.0, 1.5))


@repeated("seed", [1, 2, 3], kept=0)
def test_a_plan_of_whole_sets_is_the_one_to_begin_with(seed, monkeypatch):
    """On 32 GPUs a first plan over fillings is far below."""
    problem = build_problem(fleet_instance(12, 32, seed=seed, family=Family(pairs=3)))
    sets_plans, starts = [], []

    def of_sets(problem, until, *given):
        sets_plans.append(plan_colocated(problem, until + 2.0, *given))
        return sets_plans[-1]

    monkeypatch.setattr(filled, "plan_colocated", of_sets)

    def raised(search, *given, start, **named):
        starts.append(start)
        return raise_levels(search, *given, start=start, **named)

    monkeypatch.setattr(filled, "raise_levels", raised)
    result = filled.plan_fillings(problem, time.perf_counter() + 1.0, lambda part, text: None)
    (start,), (sets_plan,) = starts, sets_plans
    assert sets_plan is not None
    before = planned_rates(sets_plan.problem, sets_plan.assignment)
    assert [pattern.rate for pattern in start.plan.patterns] == pytest.approx(before)
    assert result is not None and result.assignment is not None
    units = [unit_rps(spec) for spec in problem.request.models]

    def levels(rates):
        return sorted(rate / unit for rate, unit in zip(rates, units, strict=True))

    after = levels(planned_rates(result.problem, result.assignment))
    assert after >= [level * (1 - 1e-9) for level in levels(before)][:1]
    assert levels(before)[0] <= result.bounds[0] * (1 + 1e-9) and result.bounds[0] <= sets_plan.bounds[0]


def planned_rates(problem, assignment):
    return [model.throughput_rps for model in build_planned_models(problem, assignment)]
