"""Slices filled for what is wished: never more than every set of tenants can give, and what it gives is found."""

import math
import time
from dataclasses import replace

import pytest

from tests.support.planning.requests import on_a30, simple
from tests.support.planning.shared_oracle import best_shared
from tests.support.planning.shared_requests import small
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.fractional.diving import is_divable, plan_by_diving
from torchsplit_core.planning.fractional.pattern_selection import PatternSelectionProgram
from torchsplit_core.planning.fractional.plan import plan_fractional
from torchsplit_core.planning.fractional.restricted_master import PlacedPattern
from torchsplit_core.planning.fractional.targets import targets
from torchsplit_core.planning.outcome.assignment import Assignment
from torchsplit_core.planning.outcome.build import build_plan_outcome, build_planned_models
from torchsplit_core.planning.problem.build import Problem, build_problem
from torchsplit_core.planning.request.objective import unit_rps
from torchsplit_core.planning.timing import Stopwatch
from torchsplit_core.profiling.library import mix_request
from torchsplit_core.values import Objective, PlanRequest, SolverOptions, ignore_progress


def _filled(problem: Problem, wanted: dict[int, float], most_cost: float) -> Assignment | None:
    return plan_by_diving(problem, wanted, most_cost, time.perf_counter() + 20, {})


def _least(problem: Problem, found: Assignment) -> float:
    return min(model.normalised for model in build_planned_models(problem, found))


def _checked(problem: Problem, found: Assignment) -> list[str]:
    outcome = build_plan_outcome(
        problem, found, proven=0, tie_break_proven=False, bounds=[], statistics=Stopwatch().statistics({})
    )
    return [str(fault) for fault in violations(problem.request, outcome)]


@pytest.mark.slow
def test_what_every_set_of_tenants_can_give_is_found_and_never_more():
    tried = found = 0
    for seed in range(24):
        request = small(seed, "max_min")
        problem = build_problem(request)
        best = best_shared(request)
        if best is None or not best[0] or not is_divable(problem):
            continue
        units = {number: unit_rps(spec) * best[0] for number, spec in enumerate(request.models)}
        if any(units[n] < (spec.min_throughput_rps or 0.0) for n, spec in enumerate(request.models)):
            continue
        tried += 1
        nearly = _filled(problem, {number: rate * 0.999 for number, rate in units.items()}, 1.0)
        if nearly is not None:
            found += 1
            assert not _checked(problem, nearly), seed
            assert _least(problem, nearly) >= best[0] * 0.999 * (1 - 1e-6), seed
        more = _filled(problem, {number: rate * 1.001 for number, rate in units.items()}, 1.0)
        # More of a model that counts up to its demand may be had; of what counts nothing more.
        assert more is None or _least(problem, more) <= best[0] * (1 + 1e-6), seed
    assert tried >= 7 and found >= tried - 1


def test_a_published_mix_fits_on_fewer_gpus_than_whole_slices_need():
    request = replace(mix_request("S1", 4, "min_gpus"), sharing="fractional")
    problem = build_problem(request)
    minima = {number: spec.min_throughput_rps or 0.0 for number, spec in enumerate(request.models)}
    found = _filled(problem, minima, 1.0)
    assert found is not None and not _checked(problem, found)
    assert len({slice_.gpu_id for slice_ in found.slices if slice_.tenants}) == 1


def _three() -> PlanRequest:
    """Three models that need 0.4 of a GPU each: two GPUs with shares, three with whole slices."""
    models = tuple(
        replace(simple(f"m{i}", {"4g.24gb": 10.0}, memory_gib=4.0), min_throughput_rps=4.0) for i in range(3)
    )
    return on_a30(
        *models, count=3, layouts=(("4g.24gb",),), objective=Objective("min_gpus"), sharing="fractional",
        solver=SolverOptions(20.0),
    )  # fmt: skip


def test_the_program_finds_what_fills_hold_together():
    problem = build_problem(_three())
    pool = (0, "4g.24gb")
    fills = dict.fromkeys([PlacedPattern(pool, ((0, 0.4), (1, 0.6))), PlacedPattern(pool, ((2, 1.0),))])
    wanted = dict.fromkeys(range(3), 4.0)
    answer = PatternSelectionProgram(problem, wanted, fills, 2.0).solve(5.0)
    assert answer is not None
    layouts, placed = answer
    assert sum(layouts.values()) == 2 and sum(placed.values()) == 2
    assert PatternSelectionProgram(problem, wanted, fills, 1.0).solve(5.0) is None


def test_wishes_go_from_the_bound_to_the_plan_that_is_known():
    request = _three()
    problem = build_problem(request)
    minima = dict.fromkeys(range(3), 4.0)
    assert [(one, round(cost, 4)) for one, cost in targets(problem, [2.0], None)] == [(minima, 2.0)]
    known = plan(replace(request, sharing="exclusive"))
    assert known.objective.value == 3
    costs = [round(cost, 4) for _, cost in targets(problem, [1.0], replace(known, request_sha256=""))]
    assert costs == [1.0, 2.0]
    assert not list(targets(problem, [3.0], known)) and not list(targets(problem, [], known))
    shared = plan_fractional(problem, Stopwatch(), time.perf_counter() + 20, ignore_progress)
    assert shared.outcome is not None and shared.outcome.objective.value == 2


def test_levels_that_are_wished_are_above_the_plan_and_keep_minima():
    request = replace(_three(), objective=Objective("max_min"))
    levels = [next(iter(wanted.values())) for wanted, _ in targets(build_problem(request), [8.0], None)]
    assert levels == sorted(levels, reverse=True) and levels[0] < 8.0
    assert all(level >= 4.0 for level in levels)


def test_a_target_beyond_the_solvers_scale_is_no_plan():
    rates = {"1g.6gb": 10.0, "4g.24gb": 30.0}
    models = [simple(name, rates, memory_gib=1.0) for name in ("a", "b")]
    problem = build_problem(on_a30(*models, sharing="fractional"))
    # The second target is out of reach, so patterns are selected for the first one, too.
    assert _filled(problem, {0: 1e-15, 1: 1e4}, math.inf) is None
