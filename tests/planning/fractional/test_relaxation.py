"""Pooled shares: their bounds against every set of tenants, met where nothing ties a slice together."""

import random
import time
from dataclasses import replace
from functools import cache

import pytest

from tests.support.planning.edits import with_points
from tests.support.planning.requests import A30, LAYOUTS, model, on_a30, simple, whole_model
from tests.support.planning.shared_oracle import _leximin, best_shared
from tests.support.planning.shared_requests import small
from tests.support.seeds import repeated
from torchsplit_core.planning import violations
from torchsplit_core.planning.fractional.initial_plan import initial_plan
from torchsplit_core.planning.fractional.relaxation import (
    AggregatedShares,
    aggregate_shares,
    relaxation_meets_minima,
)
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.timing import Stopwatch
from torchsplit_core.values import FleetEntry, PlanModel, PlanOutcome, PlanRequest, Point, ignore_progress

pytestmark = pytest.mark.slow

CLOSE = 2e-6


def free(seed: int) -> PlanRequest:
    """Two or three models on one A30, without latency limits, memory, a most of tenants, or a choice of variants."""
    rng = random.Random(f"free{seed}")
    models = tuple(_unlimited(model(rng, f"m{number}", 1, cuts=number == 0)) for number in range(2))
    if seed % 2:
        models = (*models, replace(_unlimited(model(rng, "m2", 1, cuts=False)), min_throughput_rps=None))
    layouts = rng.choice([LAYOUTS[1:2], LAYOUTS[2:3], (("4g.24gb",), ("1g.6gb", "2g.12gb"))])
    return on_a30(*models, layouts=layouts, sharing="fractional")


def _unlimited(spec: PlanModel) -> PlanModel:
    light = with_points(spec, lambda point: replace(point, memory_gib=0.0))
    return replace(light, variants=light.variants[-1:], max_latency_ms=None)


REQUESTS = [*(small(seed, "leximin") for seed in range(40)), *map(free, range(40))]
FREE = range(40, 80)


@cache
def best(number: int) -> tuple[float, ...] | None:
    """The best sorted vector of a request, looked for once."""
    return best_free(REQUESTS[number]) if number in FREE else best_shared(REQUESTS[number])


def best_free(request: PlanRequest) -> tuple[float, ...] | None:
    """Where nothing ties a slice, every point of a model that runs may be a tenant of every slice."""
    found = []
    for layout in request.gpus[0].layouts or ():
        able = [
            m
            for m, spec in enumerate(request.models)
            if all(
                any(point.profile in layout for point in stage.points) for stage in spec.variants[0].stages
            )
        ]
        slots = tuple(
            tuple(
                (m, 0, s, point)
                for m in able
                for s, stage in enumerate(request.models[m].variants[0].stages)
                for point in stage.points
                if point.profile == name
            )
            for name in layout
        )
        vector = _leximin(request, slots, [0] * len(slots))
        if vector is not None:
            found.append(vector)
    # Values closer than 1e-7 are equal.
    return max(found, key=lambda vector: [round(value, 7) for value in vector], default=None)


def all_run(request: PlanRequest) -> bool:
    """Whether every model has a variant that can run on this fleet."""
    return len({case.model for case in build_problem(request).cases}) == len(request.models)


def pooled(request: PlanRequest) -> AggregatedShares | None:
    return aggregate_shares(build_problem(request), time.perf_counter() + 30.0)


def quick(request: PlanRequest) -> PlanOutcome | None:
    """The quick plan of a request, None where there is none."""
    watch = Stopwatch()
    with watch.searching():
        shares = pooled(request)
    if shares is None:
        return None

    def exclusive():
        return build_problem(replace(request, sharing="exclusive"))

    return initial_plan(build_problem(request), exclusive, shares, watch, watch.begun + 30.0, ignore_progress)


@repeated("block", range(8), kept=2)
def test_bounds_are_never_below_the_best_plan(block):
    bounded = 0
    for number in range(block * 10, block * 10 + 10):
        request, shares = REQUESTS[number], pooled(REQUESTS[number])
        values = best(number)
        if shares is None:
            # Minima out of reach, a model that cannot run, or a cap that whole layouts do not reach.
            capped = any(spec.cap_at_demand for spec in request.models)
            assert values is None or not all_run(request) or capped, number
            continue
        if values is None or not caps_reached(request, shares, values):
            continue
        bounded += 1
        for level in range(shares.level, len(values)):
            bound = shares.bound
            if level > shares.level:
                bound = shares.bound_after(level, values[shares.level])
            assert values[level] <= bound * (1 + CLOSE), (number, level)
    assert bounded >= 1


def caps_reached(request: PlanRequest, shares: AggregatedShares, values: tuple[float, ...]) -> bool:
    """Whether the best plan has the first levels at the caps that divisible layouts reach: the bounds start there."""
    caps = sorted(1 / spec.weight for spec in request.models if spec.cap_at_demand)
    reached = list(zip(values, caps[: shares.level], strict=False))
    assert all(value <= cap * (1 + CLOSE) for value, cap in reached)
    return all(value >= cap * (1 - CLOSE) for value, cap in reached)


@pytest.mark.parametrize("number", FREE)
def test_the_bound_is_met_where_nothing_ties_slices(number):
    values, shares = best(number), pooled(REQUESTS[number])
    # With one layout divisible GPUs are whole ones, so nothing that is possible is missed.
    several = len(REQUESTS[number].gpus[0].layouts or ()) > 1
    if values is None or shares is None:
        assert shares is None and (values is None or several or not all_run(REQUESTS[number]))
        return
    if not caps_reached(REQUESTS[number], shares, values):
        assert several
        return
    if shares.level < len(values):
        assert shares.bound == pytest.approx(values[shares.level], rel=CLOSE)
    outcome = quick(REQUESTS[number])
    assert outcome is not None and not list(violations(REQUESTS[number], outcome))
    assert outcome.objective.sorted_normalised[: shares.level + 1] == pytest.approx(
        values[: shares.level + 1], rel=CLOSE
    )
    assert outcome.objective.proven_levels > shares.level or shares.level == len(values)


@repeated("block", range(8), kept=2)
def test_what_the_quick_plan_proves_is_true(block):
    planned = 0
    for number in range(block * 10, block * 10 + 10):
        outcome, values = quick(REQUESTS[number]), best(number)
        if outcome is None:
            continue
        planned += 1
        assert values is not None and not list(violations(REQUESTS[number], outcome)), number
        known, found = outcome.objective.proven_levels, outcome.objective.sorted_normalised
        assert found[:known] == pytest.approx(values[:known], rel=CLOSE, abs=1e-9), number
        assert (outcome.status == "optimal") == (known == len(values))
        if known < len(values):
            bound = outcome.objective.bound
            assert bound is not None and bound >= values[known] * (1 - CLOSE), number
    assert planned >= 2


def test_no_minimum_that_some_plan_meets_is_called_out_of_reach():
    refused = 0
    for number, request in enumerate(REQUESTS):
        possible = relaxation_meets_minima(build_problem(request))
        assert possible or best(number) is None, number
        refused += not possible
        if number in FREE and len(request.gpus[0].layouts or ()) == 1:
            assert possible == (best(number) is not None), number
    assert refused >= 3


def test_a_cap_settles_its_level_and_the_others_rise_on():
    """By hand: three models share two halves of 10 requests/s each; one counts no more than 2."""
    specs = [
        replace(spec, demand_rps=demand, weight=1 / demand, cap_at_demand=demand < 100)
        for spec, demand in zip(small_models(), (2.0, 100.0, 100.0), strict=True)
    ]
    shares = pooled(on_a30(*specs, layouts=LAYOUTS[1:2], sharing="fractional"))
    assert shares is not None
    assert shares.level == 1 and shares.bound == pytest.approx(9.0)
    assert shares.bound_after(2, 9.0) == pytest.approx(9.0)
    assert shares.bound_after(2, 5.0) == pytest.approx(13.0)
    assert dict(shares.layouts) == {(0, 0): 1}
    assert sorted(shares.amounts.values()) == pytest.approx([0.2, 0.9, 0.9])


def test_a_loss_in_packing_is_not_called_proven():
    """By hand: two tenants a slice string eleven models on six slices into five parts, one of them a pair."""
    request = PlanRequest(
        (FleetEntry(A30, count=3, layouts=LAYOUTS[1:2]),), small_models(11), sharing="fractional",
        max_tenants_per_slice=2,
    )  # fmt: skip
    outcome = quick(request)
    assert outcome is not None and not list(violations(request, outcome))
    # A pair has 5.0 each at most, the pool 60 / 11.
    assert outcome.objective.value == pytest.approx(5.0)
    assert outcome.objective.proven_levels == 0
    assert outcome.objective.bound == pytest.approx(60 / 11)


def test_of_several_points_of_a_slice_the_fastest_bounds():
    """By hand: the faster point leaves no memory for a neighbour, the bound must not mind."""
    two = (
        Point(A30, "2g.12gb", 1, 10.0, 10.0, memory_gib=2.0),
        Point(A30, "2g.12gb", 8, 16.0, 10.0, memory_gib=10.0),
    )
    models = tuple(whole_model(f"m{number}", two) for number in range(3))
    request = on_a30(*models, layouts=LAYOUTS[1:2], sharing="fractional")
    shares, values = pooled(request), best_shared(request)
    assert shares is not None and values is not None
    assert values[0] < shares.bound == pytest.approx(32 / 3)


def small_models(count: int = 3) -> tuple[PlanModel, ...]:
    """Models of 10 requests/s on half an A30."""
    return tuple(simple(f"m{number}", {"2g.12gb": 10.0}) for number in range(count))
