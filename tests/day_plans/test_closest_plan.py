"""The program for few changes: its plans are sound, as good as the given one, and touch no more GPUs than any."""

import random
from dataclasses import replace

import pytest

from tests.day_plans.test_day_planner import RATES
from tests.support.planning.oracle import levels_of
from tests.support.planning.requests import A30, on_a30, simple
from tests.support.seeds import in_blocks, repeated
from torchsplit_core.day_plans.closest_plan import closest_gpus
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.outcome.figures import unproven_outcome
from torchsplit_core.planning.problem.held_gpus import touched_gpus
from torchsplit_core.transition import state_of_plan
from torchsplit_core.values import FleetEntry, Objective, PlanRequest


def drawn(seed: int, kind: str) -> tuple[PlanRequest, PlanRequest]:
    """A request, and the same one with other demands."""
    rng = random.Random(f"{kind}{seed}")
    names = "abc"[: rng.choice([2, 3])]

    def request() -> PlanRequest:
        models = [
            replace(
                simple(
                    name,
                    {profile: rate * rng.choice([0.5, 1.0, 1.3]) for profile, rate in RATES.items()},
                ),
                demand_rps=(demand := rng.choice([5.0, 15.0, 30.0, 45.0])),
                min_throughput_rps=demand if kind == "min_gpus" else None,
            )
            for name in names
        ]
        return on_a30(*models, count=4, objective=Objective(kind))

    first = request()
    changed = tuple(
        replace(model, demand_rps=(demand := rng.choice([5.0, 15.0, 30.0, 45.0])),
                min_throughput_rps=demand if kind == "min_gpus" else None)
        for model in first.models
    )  # fmt: skip
    return first, replace(first, models=changed)


@pytest.mark.slow
@repeated("kind", ["min_gpus", "weighted_sum", "leximin", "max_min"], kept=2)
@in_blocks("seed", range(20), kept=1)
def test_it_is_as_good_and_of_the_cheapest_no_plan_touches_fewer_gpus(kind, seed):
    first, later = drawn(seed, kind)
    before = plan(first)
    if not before.gpus:
        return
    asked = replace(later, current=state_of_plan(before))
    best = plan(asked)
    if not best.gpus:
        return
    gpus = closest_gpus(asked, best, 10.0)
    assert gpus is not None
    closest = replace(unproven_outcome(asked, gpus, best.statistics), touched_gpus=touched_gpus(asked, gpus))
    assert not list(violations(asked, closest))
    assert levels_of(asked, closest) == pytest.approx(levels_of(asked, best))
    assert closest.touched_gpus <= best.touched_gpus
    assert sum(gpu.used for gpu in gpus) <= sum(gpu.used for gpu in best.gpus)
    if kind == "min_gpus" and closest.touched_gpus:
        limit = closest.touched_gpus - 1
        nearer = plan(replace(asked, objective=replace(asked.objective, max_touched_gpus=limit)))
        assert not nearer.gpus or nearer.objective.value > best.objective.value


def test_what_it_does_not_describe_it_leaves_alone():
    models = (simple("a", RATES), simple("b", RATES))
    before = plan(on_a30(*models))
    for changed in (
        on_a30(*models, sharing="fractional"),
        on_a30(*models, objective=Objective("leximin", 0.5)),
        replace(on_a30(*models), gpus=(FleetEntry(A30, mig="either"),)),
        on_a30(replace(models[0], max_response_ms=100.0), models[1]),
    ):
        asked = replace(changed, current=state_of_plan(before))
        assert closest_gpus(asked, before, 1.0) is None
