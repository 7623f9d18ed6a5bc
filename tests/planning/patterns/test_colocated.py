"""Co-located sets by patterns: against every plan, and on a fleet that the program is too large for."""

import random
import time
from dataclasses import replace

import pytest

from benchmarks.fleet_instances import Family, fleet_instance
from tests.support.planning.oracle import best_plan
from tests.support.planning.requests import A30, model, on_a30, simple
from tests.support.seeds import in_blocks, repeated
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.exclusive import plan as exclusive
from torchsplit_core.planning.outcome.build import build_plan_outcome
from torchsplit_core.planning.patterns.colocated import ColocatedPlan, hard_sets, plan_colocated
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.request.objective import reached_levels
from torchsplit_core.values import Colocation, Objective, PlanModel, PlanOutcome, PlanRequest, PlanStatistics

pytestmark = pytest.mark.slow

SIZES = {"1g.6gb": 1, "2g.12gb": 2, "4g.24gb": 4}


def whole_models(rng: random.Random, count: int) -> list[PlanModel]:
    """Models that run whole on some slices of an A30, some with a minimum or counted up to their demand."""
    return [
        simple(
            f"m{number}",
            {
                profile: round(rng.uniform(5, 15) * size ** rng.uniform(0.6, 1.1), 2)
                for profile, size in SIZES.items()
                if size > 1 or rng.random() < 0.8
            },
            demand_rps=round(10 ** rng.uniform(0.8, 1.6), 1),
            min_throughput_rps=rng.choice([None, None, 3.0]),
            weight=rng.choice([1.0, 2.0]),
            cap_at_demand=rng.random() < 0.3,
        )
        for number in range(count)
    ]


def request_of(seed: int) -> tuple[PlanRequest, int]:
    """Three or four models on two A30 with one or two hard co-locations, and how many sets these make."""
    rng = random.Random(f"sets{seed}")
    models = whole_models(rng, rng.choice([3, 3, 4]))
    pairs = [Colocation(("m0", "m1"), "hard")]
    if rng.random() < 0.5:
        pairs.append(Colocation((models[-2].name, models[-1].name), "hard"))
    kind = rng.choice(["leximin", "max_min"])
    request = on_a30(*models, count=2, colocations=tuple(pairs), objective=Objective(kind))
    return request, 2 if len(pairs) == 2 and len(models) == 4 else 1


def planned(request: PlanRequest, seconds: float = 20.0) -> ColocatedPlan | None:
    """The plan of a request by co-located sets alone."""
    return plan_colocated(build_problem(request), time.perf_counter() + seconds)


def outcome_of(colocated: ColocatedPlan) -> PlanOutcome:
    """The plan as the planner hands it out."""
    return build_plan_outcome(
        colocated.problem,
        colocated.assignment,
        proven=colocated.proven,
        tie_break_proven=False,
        bounds=colocated.bounds,
        statistics=PlanStatistics(0.0, 0.0, 0.0, "none"),
    )


@in_blocks("seed", [*range(10, 40), *range(10)], kept=1)
def test_first_level_against_every_plan(seed):
    request, sets = request_of(seed)
    expected = best_plan(request)
    colocated = planned(request)
    if expected is None:
        assert colocated is None
        return
    assert colocated is not None
    outcome = outcome_of(colocated)
    assert not list(violations(request, outcome))
    best, level = expected[0][0], reached_levels(outcome.objective)[0]
    assert colocated.bounds[0] >= best * (1 - 1e-6)
    if sets == 1:
        # All GPUs that a set may take are searched, if no other set wants one of them.
        assert level == pytest.approx(best)
    else:
        assert level <= best * (1 + 1e-6)


def test_two_sets_on_a_gpu_are_bounded_though_not_searched():
    """On one GPU there is no plan with a GPU for each set, but one with both."""
    models = tuple(simple(f"m{number}", {"1g.6gb": 10.0}, demand_rps=10.0) for number in range(4))
    pairs = (Colocation(("m0", "m1"), "hard"), Colocation(("m2", "m3"), "hard"))
    request = on_a30(*models, colocations=pairs)
    colocated = planned(request)
    assert colocated is not None and colocated.bounds[0] >= 1.0 and colocated.proven == 0
    outcome = plan(request)
    assert outcome.status == "optimal" and outcome.objective.value == pytest.approx(1.0)


def test_sets_are_joined_by_their_co_locations():
    models = tuple(simple(f"m{number}", {"1g.6gb": 10.0}, demand_rps=10.0) for number in range(5))
    pairs = (
        Colocation(("m3", "m1"), "hard"),
        Colocation(("m1", "m0"), "hard"),
        Colocation(("m4", "m2"), "soft", 1.0),
    )
    problem = build_problem(on_a30(*models, count=2, colocations=pairs))
    assert hard_sets(problem.colocation_index, 5) == ((0, 1, 3),)
    colocated = planned(problem.request)
    assert colocated is not None
    on_gpu = [
        {tenant.model for item in gpu.slices for tenant in item.tenants} for gpu in outcome_of(colocated).gpus
    ]
    assert any({"m0", "m1", "m3"} <= models for models in on_gpu)
    assert all(len({"m0", "m1", "m3"} & models) in (0, 3) for models in on_gpu)


def test_what_does_not_apply_is_left_to_the_program():
    models = [simple(f"m{number}", {"1g.6gb": 10.0}, demand_rps=10.0) for number in range(3)]
    hard = Colocation(("m0", "m1"), "hard")
    request = on_a30(*models, count=2, colocations=(hard,))
    assert planned(request) is not None
    tiered = replace(request, models=(replace(models[0], tier=1), *models[1:]))
    cut = next(
        item
        for seed in range(50)
        if len((item := model(random.Random(seed), "m0", 1, cuts=True)).variants[0].stages) == 2
    )
    stage = f"m0/{cut.variants[0].stages[0].name}"
    others = [
        replace(request, objective=Objective("min_gpus")),
        replace(request, objective=Objective("weighted_sum")),
        replace(request, objective=Objective("leximin", survives=1)),
        replace(request, objective=Objective("leximin", separation_weight=0.5)),
        tiered,
        replace(request, colocations=(replace(hard, mode="soft"),)),
        replace(request, colocations=(hard, Colocation(("m1", "m2"), "routed", 1.0))),
        replace(request, models=(cut, *models[1:])),
        replace(request, models=(cut, *models[1:]), colocations=(Colocation((stage, "m1"), "hard"),)),
    ]
    others[2] = replace(
        others[2], models=tuple(replace(item, min_throughput_rps=1.0) for item in request.models)
    )
    assert [planned(other, 2.0) for other in others] == [None] * len(others)


@repeated("seed", range(2), kept=0)  # nothing proves it, so it searches until its time is over
def test_large_fleet_ends_near_its_bound(seed):
    """With eight pairs there are 163 sets of members that a GPU may have, each with every layout."""
    request = fleet_instance(24, 64, seed=seed, family=Family(pairs=8, kind="max_min"), seconds=60)
    problem = build_problem(request)
    assert sum(len(group.layouts) for group in problem.groups) > exclusive.MAX_LAYOUTS
    outcome = plan(request)
    assert outcome.status in ("optimal", "feasible") and not list(violations(request, outcome))
    assert outcome.objective.gap is not None and outcome.objective.gap < 0.03
    assert outcome.statistics.details["method"] == "patterns, with co-located sets"


def test_all_of_the_demand_is_proven():
    """A fleet that gives every model what it asks needs no search: the level is the ceiling."""
    models = tuple(
        simple(f"m{number}", {"1g.6gb": 10.0}, demand_rps=5.0, cap_at_demand=True) for number in range(4)
    )
    request = on_a30(
        *models, count=3, colocations=(Colocation(("m0", "m1"), "hard"),), objective=Objective("max_min")
    )
    colocated = planned(request)
    assert colocated is not None and colocated.bounds == pytest.approx((1.0,)) and colocated.proven == 1
    assert {gpu.type for gpu in outcome_of(colocated).gpus} == {A30}
