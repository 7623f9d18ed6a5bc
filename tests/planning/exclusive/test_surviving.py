"""Plans that survive the loss of a GPU, by patterns and questions: against every plan, and spread over many GPUs."""

import math
import random
import time
from collections import Counter
from dataclasses import replace

import pytest

from tests.support.planning.oracle import best_plan, levels_of
from tests.support.planning.requests import model as random_model
from tests.support.planning.requests import on_a30, with_another_type
from tests.support.seeds import repeated
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.exclusive import plan as exclusive_plan
from torchsplit_core.planning.exclusive.filled import FilledPlan, raise_surviving, surviving_counts
from torchsplit_core.planning.exclusive.surviving import SurvivingPlan, plan_surviving
from torchsplit_core.planning.formulation.leximin import LevelsResult
from torchsplit_core.planning.outcome.assignment import Assignment, assign_layouts, build_planned_gpus
from torchsplit_core.planning.outcome.figures import level_values, planned_models_of
from torchsplit_core.planning.outcome.resilience import survives_failure
from torchsplit_core.planning.outcome.spread_assignment import assign_spread, spread_further
from torchsplit_core.planning.patterns import PatternSolution
from torchsplit_core.planning.problem.build import Problem, build_problem
from torchsplit_core.planning.request.objective import goal_of
from torchsplit_core.values import (
    Colocation,
    FleetEntry,
    Objective,
    PlanModel,
    PlanRequest,
    Point,
    SolverOptions,
    Stage,
    Variant,
    ignore_progress,
)

A30 = "A30-24GB"
RATES = {"1g.6gb": 10.0, "2g.12gb": 19.0, "4g.24gb": 35.0}
QUARTERS, HALVES = ("1g.6gb",) * 4, ("2g.12gb",) * 2


def model(name: str, minimum: float | None, factor: float = 1.0, parts: int = 1) -> PlanModel:
    stages = tuple(
        Stage(f"s{part}", tuple(
            Point(A30, profile, 1, rate * factor * (part + 1), 5.0) for profile, rate in RATES.items()
        ))
        for part in range(parts)
    )  # fmt: skip
    variant = Variant("cut" if parts > 1 else "whole", stages, (0.0,) * (parts - 1))
    return PlanModel(name, (variant,), demand_rps=10.0, min_throughput_rps=minimum)


def asked(models: list[PlanModel], gpus: tuple[FleetEntry, ...], kind: str = "leximin") -> PlanRequest:
    return PlanRequest(
        gpus,
        tuple(models),
        objective=Objective(kind, survives=1),  # type: ignore[arg-type]
        solver=SolverOptions(30.0),
    )


def counted(request: PlanRequest) -> Problem:
    return build_problem(replace(request, objective=replace(request.objective, survives=0)))


def small(seed: int) -> PlanRequest:
    """One or two models, some cut, on three or four GPUs that are equal but for their layouts."""
    rng = random.Random(f"surviving{seed}")
    models = [
        model(
            f"m{number}",
            rng.choice([None, 5.0, 12.0, 25.0]),
            rng.choice([0.7, 1.0, 1.3]),
            rng.choice([1, 1, 2]),
        )
        for number in range(rng.choice([1, 2]))
    ]
    models[0] = replace(models[0], min_throughput_rps=rng.choice([5.0, 12.0, 25.0, 40.0]))
    layouts = rng.choice([(QUARTERS,), (HALVES,), (QUARTERS, ("4g.24gb",)), (HALVES, ("4g.24gb",))])
    gpus = (FleetEntry(A30, count=rng.choice([2, 3]), layouts=layouts, cost=rng.choice([1.0, 2.5])),)
    return asked(models, gpus, rng.choice(["leximin", "max_min", "min_gpus"]))


@repeated("block", range(4), kept=1)
def test_what_patterns_prove_and_find_agrees_with_every_plan(block):
    plans = proven = infeasible = 0
    for seed in range(block * 15, block * 15 + 15):
        request = small(seed)
        expected = best_plan(request)
        surviving = plan_surviving(request, counted(request), time.perf_counter() + 20.0, ignore_progress)
        assert surviving is not None, seed
        if expected is None:
            assert surviving.assignment is None, seed
            infeasible += surviving.relaxed.status == "infeasible"
            continue
        best, minimised = expected[0], goal_of(request).minimised
        assert surviving.relaxed.status != "infeasible", seed
        bound = surviving.relaxed.bounds[0] * (-1 if minimised else 1)
        assert bound >= best[0] - 1e-6 * abs(best[0]), seed
        if surviving.assignment is None:
            continue
        plans += 1
        assert survives_failure(request, build_planned_gpus(request, surviving.assignment)), seed
        reached = surviving.values[0] * (-1 if minimised else 1)
        assert reached <= best[0] + 1e-6 * abs(best[0]), seed
        outcome = plan(request, reasons=False)
        if outcome.status == "optimal":
            proven += 1
            assert levels_of(request, outcome) == pytest.approx(best, rel=1e-6), seed
    assert plans >= 5 and proven >= 5 and infeasible >= 1


@pytest.mark.parametrize("kind", ["leximin", "max_min", "min_gpus"])
def test_a_fleet_is_planned_without_the_program(kind, monkeypatch):
    """40 GPUs, on which each of ten models must lose any one: the program would have 1,200 whole numbers."""
    monkeypatch.setattr(
        "torchsplit_core.planning.exclusive.plan.build",
        lambda *given, **named: pytest.fail("a program is built"),
    )
    models = [model(f"m{number}", 20.0 + 7 * number, 0.8 + 0.05 * number) for number in range(10)]
    outcome = plan(asked(models, (FleetEntry(A30, count=40),), kind))
    request = asked(models, (FleetEntry(A30, count=40),), kind)
    assert survives_failure(request, outcome.gpus) and outcome.objective.gap is not None
    # The least that survives is above the minima: without an instance the model still has its own.
    for spec, planned in zip(request.models, outcome.models, strict=True):
        assert planned.throughput_rps > (spec.min_throughput_rps or 0.0)
    assert outcome.objective.gap < 0.05


def colocated(seed: int) -> PlanRequest:
    """Two or three models on two or three equal GPUs, two of them co-located or a sum to be raised."""
    rng = random.Random(f"surviving together{seed}")
    models = [
        model(f"m{number}", rng.choice([None, 2.0, 5.0, 9.0]), rng.choice([0.7, 1.0, 1.3]))
        for number in range(rng.choice([2, 3]))
    ]
    models[0] = replace(models[0], min_throughput_rps=rng.choice([5.0, 9.0, 12.0]))
    layouts = rng.choice([(QUARTERS,), (QUARTERS, HALVES), (HALVES, ("4g.24gb",))])
    gpus = (FleetEntry(A30, count=rng.choice([2, 3]), layouts=layouts),)
    request = asked(models, gpus, rng.choice(["leximin", "max_min", "min_gpus", "weighted_sum"]))
    pairs = (Colocation(("m0", "m1"), rng.choice(["hard", "hard", "soft"]), 1e6),)
    return request if request.objective.kind == "weighted_sum" else replace(request, colocations=pairs)


@repeated("block", range(4), kept=1)
def test_a_plan_with_pairs_or_for_a_sum_is_made_to_survive(block, monkeypatch):
    """Where the program is too large, which is shown on small requests: no plan is better than the best, no bound
    below it."""
    monkeypatch.setattr(exclusive_plan, "MAX_SPREAD_CHOICES", 0)
    plans = optimal = 0
    for seed in range(block * 10, block * 10 + 10):
        request = colocated(seed)
        expected = best_plan(request)
        outcome = plan(request, reasons=False)
        assert not list(violations(request, outcome)), seed
        assert (outcome.status == "infeasible") <= (expected is None), seed
        if expected is None or not outcome.gpus:
            continue
        plans += 1
        sign = -1 if goal_of(request).minimised else 1
        reached, best = sign * levels_of(request, outcome)[0], sign * expected[0][0]
        assert sign * outcome.objective.bound >= sign * best - 1e-6 * abs(best), seed
        assert sign * reached <= sign * best + 1e-6 * abs(best), seed
        if outcome.status == "optimal":
            optimal += 1
            assert reached == pytest.approx(best, rel=1e-6), seed
    assert plans >= 5 and optimal >= 1


def asked_alone(request: PlanRequest, start: Assignment | None = None) -> FilledPlan | None:
    """What questions find without a bound to begin with; None where they do not apply."""
    objective = replace(request.objective, survives=0)
    problem = build_problem(request)
    free = build_problem(replace(request, colocations=(), objective=objective))
    counts = surviving_counts(problem, free)
    if counts is None:
        return None
    until = time.perf_counter() + 60.0
    return raise_surviving(problem, free, counts, start, math.inf, until, ignore_progress)


def cut_apart(seed: int) -> PlanRequest:
    """Two or three models on two A30, whole or cut, in some requests beside another type or two of them together."""
    rng = random.Random(f"surviving cut{seed}")
    models = []
    for number in range(rng.choice([2, 3])):
        spec = random_model(rng, f"m{number}", 6, cuts=True)
        rates = [p.throughput_rps for v in spec.variants for stage in v.stages for p in stage.points]
        minimum = rng.choice([0.0, 0.03, 0.1]) * max(rates, default=0.0)
        models.append(replace(spec, min_throughput_rps=minimum or None))
    pairs = (Colocation(("m0", "m1"), "hard"),) if rng.random() < 0.4 else ()
    request = on_a30(*models, count=2, colocations=pairs, objective=Objective("leximin", survives=1))
    return with_another_type(request) if seed % 5 == 0 else request


@repeated(
    ("draw", "seeds"),
    [
        (small, range(24)),
        (colocated, range(24)),
        (small, range(24, 100)),
        (colocated, range(24, 100)),
        (cut_apart, range(24)),
        (cut_apart, range(24, 48)),
    ],
    kept=2,
)
def test_questions_find_and_prove_the_best_plan_that_survives(draw, seeds):
    proven = infeasible = 0
    for seed in seeds:
        request = draw(seed)
        soft = any(pair.mode == "soft" for pair in request.colocations)
        asked = asked_alone(request)
        if soft or request.objective.kind not in ("leximin", "max_min") or asked is None:
            assert asked is None
            continue
        expected = best_plan(request)
        if expected is None:
            infeasible += 1
            assert asked.status == "infeasible", seed
            continue
        proven += 1
        assert asked.status == "optimal" and asked.assignment is not None, seed
        gpus = build_planned_gpus(request, asked.assignment)
        assert survives_failure(request, gpus), seed
        levels = level_values(request, gpus, planned_models_of(request, gpus))
        assert list(levels) == pytest.approx(list(expected[0])[: len(levels)], rel=1e-6), seed
        # From its own plan on nothing is to be found.
        again = asked_alone(request, asked.assignment)
        assert again is not None and again.status == "optimal", seed
    assert proven >= 3 and infeasible >= 2


def test_questions_have_time_for_a_first_plan_though_none_is_left(monkeypatch):
    given: list[float] = []

    def raised(problem: Problem, *args: object) -> FilledPlan:
        given.append(args[4] - time.perf_counter())  # type: ignore[operator]
        return FilledPlan(problem, "timeout")

    without = SurvivingPlan(PatternSolution("timeout"))
    monkeypatch.setattr(exclusive_plan, "plan_surviving", lambda *given: without)
    monkeypatch.setattr(exclusive_plan, "solve_objective", lambda *args, **named: LevelsResult())
    monkeypatch.setattr(exclusive_plan, "raise_surviving", raised)
    request = asked([model("a", 9.0), model("b", None)], (FleetEntry(A30, count=2, layouts=(QUARTERS,)),))
    plan(replace(request, solver=SolverOptions(0.01)), reasons=False)
    assert len(given) == 1 and given[0] > 0.5 * exclusive_plan.FALLBACK_S


def test_any_plan_gets_all_the_time_where_no_level_has_one(monkeypatch):
    """The first level had a part of the time, and no plan."""
    given: list[float] = []

    def any_plan(formulation: object, seconds: float) -> LevelsResult:
        given.append(seconds)
        return LevelsResult()

    monkeypatch.setattr(exclusive_plan, "solve_objective", lambda *args, **named: LevelsResult())
    monkeypatch.setattr(exclusive_plan, "find_any_plan", any_plan)
    request = replace(colocated(1), objective=Objective("weighted_sum"), colocations=())
    plan(replace(request, solver=SolverOptions(600.0)), reasons=False)
    assert len(given) == 1 and given[0] > 300.0


def test_instances_change_places_and_co_located_ones_stay():
    """All of `a` on the first GPU, where the pair `p` and `q` stays."""
    names = ["a", "b", "p", "q"]
    request = replace(
        asked(
            [model(name, 10.0 if name == "a" else None) for name in names],
            (FleetEntry(A30, count=2, layouts=(QUARTERS,)),),
        ),
        colocations=(Colocation(("p", "q"), "hard"),),
    )
    problem = counted(replace(request, colocations=()))
    choice_of = {choice.model: choice for choice in problem.choices if choice.profile == "1g.6gb"}
    assignment = assign_layouts(problem, {(0, 0): 2})
    for slice_, number in zip(assignment.slices, [0, 0, 2, 3, 1, 1, 1, 1], strict=True):
        slice_.tenants.append((choice_of[number], 1.0))
    assert not survives_failure(request, build_planned_gpus(request, assignment))
    spread_further(problem, assignment, [10.0, 0.0, 0.0, 0.0], {2, 3})
    gpus = build_planned_gpus(request, assignment)
    assert survives_failure(request, gpus)
    models = [Counter(tenant.model for item in gpu.slices for tenant in item.tenants) for gpu in gpus]
    assert models == [Counter(a=1, b=1, p=1, q=1), Counter(a=1, b=3)]


def test_a_stage_that_is_co_located_stays_too():
    """`a` must leave the first GPU, and the second begins with the stages of `p`, which are to be together."""
    request = replace(
        asked(
            [model("a", 10.0), model("b", None), model("p", None, parts=2)],
            (FleetEntry(A30, count=2, layouts=(QUARTERS,)),),
        ),
        colocations=(Colocation(("p/s0", "p/s1"), "hard"),),
    )
    problem = counted(replace(request, colocations=()))
    choice_of = {(c.model, c.stage): c for c in problem.choices if c.profile == "1g.6gb"}
    assignment = assign_layouts(problem, {(0, 0): 2})
    tenants = [(0, 0), (0, 0), (1, 0), (1, 0), (2, 0), (2, 1), (1, 0), (1, 0)]
    for slice_, key in zip(assignment.slices, tenants, strict=True):
        slice_.tenants.append((choice_of[key], 1.0))
    without = exclusive_plan.ExclusiveResult(problem, LevelsResult("feasible"), assignment)
    survivor = exclusive_plan._made_to_survive(build_problem(request), without)
    assert survivor is not None and survivor.assignment is not None
    gpus = build_planned_gpus(request, survivor.assignment)
    assert survives_failure(request, gpus)
    stages = [
        {tenant.stage for item in gpu.slices for tenant in item.tenants if tenant.model == "p"}
        for gpu in gpus
    ]
    assert stages == [set(), {"s0", "s1"}]


def test_a_small_model_gets_a_second_instance_elsewhere():
    request = asked([model("tiny", 2.0), model("large", 60.0)], (FleetEntry(A30, count=40),), "min_gpus")
    outcome = plan(request)
    homes = [gpu.id for gpu in outcome.gpus for item in gpu.slices for t in item.tenants if t.model == "tiny"]
    assert len(set(homes)) >= 2


def per_gpu(assignment: Assignment) -> Counter[tuple[int, str]]:
    return Counter(
        (choice.model, slice_.gpu_id) for slice_ in assignment.slices for choice, _ in slice_.tenants
    )


def test_no_gpu_has_two_of_a_model_where_there_is_room():
    problem = counted(
        asked([model(f"m{i}", 25.0) for i in range(4)], (FleetEntry(A30, count=4, layouts=(QUARTERS,)),))
    )
    amounts = [(choice, 4) for choice in problem.choices]
    assignment = assign_spread(problem, {(0, 0): 4}, amounts, [30.0] * 4)
    assert set(per_gpu(assignment).values()) == {1} and len(per_gpu(assignment)) == 16


def test_what_a_gpu_has_too_much_of_gets_more_elsewhere():
    problem = counted(asked([model("m", 30.0)], (FleetEntry(A30, count=3, layouts=(QUARTERS,)),)))
    amounts = [(problem.choices[0], 4)]
    # Two GPUs have two instances each, so that 20 of 40 are left; one more on the third GPU makes it 30.
    short = assign_spread(problem, {(0, 0): 2}, amounts, [30.0])
    assert sorted(per_gpu(short).values()) == [2, 2]
    complete = assign_spread(problem, {(0, 0): 2}, amounts, [30.0], complete=True)
    assert sorted(per_gpu(complete).values()) == [1, 2, 2]


def test_nothing_is_added_where_the_fleet_has_no_more():
    problem = counted(asked([model("m", 30.0)], (FleetEntry(A30, count=2, layouts=(HALVES,)),)))
    amounts = [(problem.choices[0], 4)]
    complete = assign_spread(problem, {(0, 0): 2}, amounts, [60.0], complete=True)
    assert sorted(per_gpu(complete).values()) == [2, 2]
