"""The literal reference of the benchmarks: as good as the planner, complete, and not for what it cannot say."""

import random
from dataclasses import replace

import pytest

# The benchmarks are scripts of the repository, no installed package.
from benchmarks.literal_planner import build_literal, solve_literal
from benchmarks.planner_instances import instance
from tests.support.planning.requests import A30, LAYOUTS, points, simple, whole_model
from torchsplit_core.hardware import gpu_type, maximal_multisets
from torchsplit_core.planning import plan
from torchsplit_core.values import Colocation, FleetEntry, Objective, PlanRequest


def tiny(seed: int) -> PlanRequest:
    """Two or three models with limits of memory and latency on one or two A30, all or some layouts."""
    rng = random.Random(f"literal{seed}")
    models = tuple(
        whole_model(
            f"m{number}", points(rng, rng.choice([3.0, 10.0, 40.0]), 2), weight=rng.choice([1.0, 2.0]),
            demand_rps=rng.choice([1.0, 25.0]), max_latency_ms=rng.choice([None, 25.0]),
        )
        for number in range(rng.choice([2, 3]))
    )  # fmt: skip
    fleet = (FleetEntry(A30, count=rng.choice([1, 2]), layouts=rng.choice([None, LAYOUTS[:2], LAYOUTS[2:]])),)
    return PlanRequest(fleet, models, objective=Objective("max_min"))


REQUESTS = [
    *(tiny(seed) for seed in range(9)),
    instance(3, 1, kind="max_min", limits=True),
    replace(instance(2, 1, kind="max_min"), gpus=(FleetEntry("A100-80GB"), FleetEntry(A30))),
]


@pytest.mark.parametrize("number", range(len(REQUESTS)))
def test_as_good_as_the_planner(number):
    request = REQUESTS[number]
    literal, outcome = solve_literal(request, 60.0), plan(request)
    assert (literal.status, outcome.status) == ("optimal", "optimal")
    assert literal.value == pytest.approx(outcome.objective.value, rel=1e-6)
    assert literal.bound == pytest.approx(outcome.objective.value, rel=1e-6)


def test_most_of_the_requests_have_something_to_share_out():
    values = [solve_literal(request, 60.0).value or 0.0 for request in REQUESTS]
    assert sum(value > 0 for value in values) >= 7


def test_every_gpu_chooses_among_every_maximal_layout():
    request = instance(3, 2, kind="max_min")
    model = build_literal(request)
    layouts = maximal_multisets(gpu_type("A100-80GB"))
    assert len(layouts) == 28
    assert len(model.y) == 2 * len(layouts) and len(model.one_layout) == 2
    # Five profiles have points; on each of two GPUs each is a count for each of three models.
    assert len(model.x) == len(model.placement) == 3 * 2 * 5 and len(model.a) == 3 * 2


def test_what_the_text_cannot_say_is_refused():
    request = tiny(0)
    pair = (Colocation(("m0", "m1")),)
    demanding = simple("a", {"4g.24gb": 10.0}, min_throughput_rps=5.0)
    for other in (
        replace(request, colocations=pair), replace(request, sharing="fractional"),
        replace(request, objective=Objective("leximin")), replace(request, models=(demanding,)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="literal formulation"):
            build_literal(other)
