"""Levels asked of a program that counts GPU by GPU: against every plan, with and without prices, on mixed fleets."""

import random
import time
from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.fleet_instances import FIVE_TYPES, Family, fleet_instance
from tests.planning.exclusive.test_filled import planned_best, request_of
from tests.support.planning.oracle import levels_of
from tests.support.planning.requests import model, on_a30, simple, with_another_type
from tests.support.seeds import in_blocks, repeated
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.exclusive import filled
from torchsplit_core.planning.exclusive.gpu_counts import GpuCounts, GpuPlan
from torchsplit_core.planning.exclusive.level_questions import approach, ask, raise_by_questions
from torchsplit_core.planning.exclusive.question_program import QuestionProgram
from torchsplit_core.planning.outcome.assignment import build_planned_gpus
from torchsplit_core.planning.patterns import gpu_fillings
from torchsplit_core.planning.patterns.colocated import hard_sets, plan_colocated
from torchsplit_core.planning.patterns.feasibility import FeasibilityProblem
from torchsplit_core.planning.patterns.gpu_fillings import search_fillings
from torchsplit_core.planning.patterns.solve import build_search
from torchsplit_core.planning.problem.build import Problem, build_problem
from torchsplit_core.planning.request.objective import tier_groups
from torchsplit_core.values import Colocation, FleetEntry, Objective, PlanRequest, SolverOptions

pytestmark = pytest.mark.slow


def counts_of(request: PlanRequest, *, filled: bool = False) -> tuple[Problem, GpuCounts]:
    """The problem without co-locations, and its GPUs one by one."""
    sets = hard_sets(build_problem(request).colocation_index, len(request.models))
    free = build_problem(replace(request, colocations=()))
    base = build_search(free, {})
    assert sets is not None and base is not None
    return free, GpuCounts(base, sets, search_fillings(base, sets) if filled else None)


def by_gpu(counted: GpuPlan) -> Counter[tuple[int, frozenset[object]]]:
    """What stands on each GPU; equal ones may change places."""
    return Counter(
        (column, frozenset((key[1:], n) for key, n in counted.instances.items() if key[0] == gpu))
        for gpu, column in enumerate(counted.columns)
    )


def cut_request(seed: int) -> PlanRequest:
    """Two or three models on two A30, whole or cut, two of them together."""
    rng = random.Random(f"questions{seed}")
    models = [model(rng, f"m{number}", 6, cuts=True) for number in range(rng.choice([2, 3]))]
    kind = rng.choice(["leximin", "max_min"])
    return on_a30(
        *models, count=2, colocations=(Colocation(("m0", "m1"), "hard"),), objective=Objective(kind)
    )


@in_blocks("seed", range(40), kept=1)
def test_questions_alone_find_and_prove_the_best_plan(seed, monkeypatch):
    monkeypatch.setattr(gpu_fillings, "MAX_FILLINGS", 0)
    request = request_of(seed) if seed % 2 else cut_request(seed)
    if request.objective.kind == "min_gpus":
        request = replace(request, objective=Objective("leximin"))
    planned_best(request)


@repeated("seed", range(12), kept=1)
def test_a_fleet_of_two_types_is_proven(seed, monkeypatch):
    monkeypatch.setattr(gpu_fillings, "MAX_FILLINGS", 0)
    planned_best(with_another_type(replace(request_of(seed), objective=Objective("leximin"))))


@repeated("seed", range(1, 9), kept=0)
def test_prices_change_no_answer(seed, monkeypatch):
    """Without prices, with those of the plan without pairs, and with those of fillings."""
    request = fleet_instance(5, 2, seed=seed, family=Family(types=FIVE_TYPES, pairs=2))
    best = plan(request, reasons=False).objective
    assert best.proven_levels and best.value
    for step, verdict in ((-1e-6, "found"), (1e-6, "none"), (0.02, "none")):
        question = FeasibilityProblem((best.value * (1 + step),))
        for with_fillings in (False, True):
            _, counts = counts_of(request, filled=with_fillings)
            assert ask(counts, question, 60.0)[0] == verdict
        monkeypatch.setattr(QuestionProgram, "_pay", lambda *given: None)
        monkeypatch.setattr(QuestionProgram, "_sell", lambda program: None)
        assert ask(counts_of(request)[1], question, 60.0)[0] == verdict
        monkeypatch.undo()


def test_a_plan_is_the_same_after_it_was_counted_and_dealt_out():
    request = fleet_instance(8, 6, seed=2, family=Family(pairs=2))
    free, counts = counts_of(request)
    assert GpuCounts.of(counts.base, counts.sets, None) is not None
    sets_plan = plan_colocated(build_problem(request), time.perf_counter() + 2.0, free=free)
    assert sets_plan is not None
    counted = counts.plan_of(free, build_planned_gpus(request, sets_plan.assignment))
    assert counted is not None
    again = counts.plan_of(free, build_planned_gpus(request, counts.assign(free, counted)))
    assert again is not None and by_gpu(again) == by_gpu(counted)
    program = QuestionProgram(counts, FeasibilityProblem((0.01,)), short=True)
    values = program.values_of(counted)
    for gpu in range(len(counts.gpus)):
        program.hold(gpu, values)
    # It keeps the rows of layouts, of equal GPUs and of sets, and lacks nothing.
    solution = program.rows.solve(10.0)
    assert solution.status == "optimal" and solution.bound == pytest.approx(0.0, abs=1e-6)
    assert program.read(solution.values) == GpuPlan(
        counted.columns, {key: count for key, count in counted.instances.items() if count}
    )


def test_the_approach_opens_no_more_than_it_says():
    request = fleet_instance(8, 6, seed=2, family=Family(pairs=2))
    free, counts = counts_of(request)
    sets_plan = plan_colocated(build_problem(request), time.perf_counter() + 2.0, free=free)
    assert sets_plan is not None
    before = counts.plan_of(free, build_planned_gpus(request, sets_plan.assignment))
    assert before is not None
    level = min(counts.model_levels(before))
    lacking, after = approach(counts, FeasibilityProblem((1.2 * level,)), before, {1, 4}, 10.0)
    assert 0 < lacking < len(request.models)
    closed = {0, 2, 3, 5}
    assert [after.columns[gpu] for gpu in closed] == [before.columns[gpu] for gpu in closed]
    assert {key: n for key, n in after.instances.items() if key[0] in closed} == {
        key: n for key, n in before.instances.items() if key[0] in closed
    }
    lacked = sum(max(0.0, 1 - item / (1.2 * level)) for item in counts.model_levels(before))
    assert lacking <= lacked + 1e-6


def test_idle_slices_go_to_the_worst_served_that_may_have_them():
    """The pair is on the first GPU alone, so its slices on the second stay with the third model."""
    rates = {"1g.6gb": 1.0}
    models = [simple(name, rates, demand_rps=need) for name, need in (("a", 4.0), ("b", 4.0), ("c", 0.5))]
    _, counts = counts_of(on_a30(*models, count=2, colocations=(Colocation(("a", "b")),)))
    (pool,) = (number for number, item in enumerate(counts.base.capacity.pools) if item[1] == "1g.6gb")
    column = int(counts.base.capacity.slices[pool].argmax())
    plan_before = GpuPlan(
        (column, column), {(0, 0, 0, 0, pool): 1, (0, 1, 0, 0, pool): 1, (1, 2, 0, 0, pool): 1}
    )
    filled_plan = counts.fill_idle(plan_before)
    assert filled_plan.instances == {(0, 0, 0, 0, pool): 2, (0, 1, 0, 0, pool): 2, (1, 2, 0, 0, pool): 4}


@pytest.mark.parametrize("profile", ["4g.24gb", "1g.6gb"])
def test_a_type_on_which_nobody_runs_changes_nothing(profile, monkeypatch):
    """Nor do models that run nowhere: the best plan then serves nobody."""
    monkeypatch.setattr(gpu_fillings, "MAX_FILLINGS", 0)
    models = [simple(name, {profile: 5.0}, memory_gib=8.0, demand_rps=5.0) for name in "ab"]
    models.append(simple("c", {"2g.12gb": 5.0}, demand_rps=5.0))
    request = on_a30(*models, count=3, colocations=(Colocation(("a", "b")),))
    another = FleetEntry("L4-24GB", count=2)
    alone = planned_best(request)
    for gpus in ((another, *request.gpus), (*request.gpus, another)):
        outcome = plan(replace(request, gpus=gpus))
        assert outcome.status == "optimal"
        assert levels_of(request, outcome) == pytest.approx(levels_of(request, alone), rel=1e-6)
        free, counts = counts_of(replace(request, gpus=gpus))
        counted = GpuPlan(tuple(counts.columns[group][0] for group in counts.gpus), {})
        planned = build_planned_gpus(free.request, counts.assign(free, counted))
        assert counts.plan_of(free, planned) == counted


def test_minima_that_no_plan_keeps_are_infeasible():
    models = [simple(name, {"4g.24gb": 5.0}, demand_rps=5.0, min_throughput_rps=4.0) for name in "ab"]
    _, counts = counts_of(on_a30(*models, count=1, colocations=(Colocation(("a", "b")),)))
    raised = raise_by_questions(
        counts, tier_groups(tuple(models)), 2, None, float("inf"), time.perf_counter() + 10.0
    )
    assert raised.infeasible and raised.gpu_plan is None


@repeated("seed", [1, 2, 3, 4, 5], kept=0)
def test_mixed_types_with_limits_and_pairs_are_proven_at_the_first_level(seed):
    """The program that maximises the level, and fillings alone, leave a tenth open."""
    family = Family(types=FIVE_TYPES, limits=True, pairs=3)
    request = fleet_instance(8, 4, seed=seed, family=family, seconds=60.0)
    outcome = plan(request, reasons=False)
    assert not list(violations(request, outcome))
    assert outcome.objective.proven_levels


def test_too_many_fillings_and_counts_are_left_to_the_other_searches(monkeypatch):
    monkeypatch.setattr(gpu_fillings, "MAX_FILLINGS", 3)
    monkeypatch.setattr(filled, "raise_by_questions", lambda *given: pytest.fail("asked"))
    monkeypatch.setattr("torchsplit_core.planning.exclusive.gpu_counts.MAX_COUNTS", 3)
    request = request_of(1)
    outcome = plan(request)
    assert not list(violations(request, outcome))
    assert outcome.statistics.details.get("method") != "patterns, on filled GPUs"


def test_an_unfinished_search_says_what_is_open():
    """Ten levels at once, and no time: a plan with the bound of the first level that is open."""
    request = replace(
        fleet_instance(8, 8, seed=1, family=Family(types=FIVE_TYPES, pairs=3)), solver=SolverOptions(1.0)
    )
    outcome = plan(request, reasons=False)
    assert not list(violations(request, outcome))
    assert outcome.status in ("feasible", "optimal")
    assert outcome.objective.value is not None and outcome.objective.bound is not None
    assert outcome.objective.bound >= outcome.objective.value * (1 - 1e-9)
