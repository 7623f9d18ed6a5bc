"""Plans whose responses keep their limits: against every plan there is, an independent simulator, and bad input."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations_with_replacement

import pytest

from tests.support.deployment.helpers import planned_gpu
from tests.support.planning.requests import on_a30, whole_model
from tests.support.seeds import repeated
from tests.support.simulation.reference import responses
from torchsplit_core import workflow
from torchsplit_core.files.contract import read_text, write_text
from torchsplit_core.latency_slo.relaxation import without_limits
from torchsplit_core.latency_slo.slo_check import SloChecker
from torchsplit_core.latency_slo.slo_planner import verify_with_slo
from torchsplit_core.planning.outcome.figures import unproven_outcome
from torchsplit_core.values import (
    Colocation,
    FleetEntry,
    GammaArrivals,
    InputFault,
    InternalFault,
    Objective,
    ObjectiveValue,
    PlanModel,
    PlannedGpu,
    PlanRequest,
    PlanStatistics,
    Point,
    PoissonArrivals,
    ResponsePercentiles,
    SolverOptions,
    Tenant,
    TraceArrivals,
    Variant,
)

A30 = "A30-24GB"
SIZES = {"1g.6gb": 1, "2g.12gb": 2, "4g.24gb": 4}
LAYOUTS = {"1g.6gb": (0, 1, 2, 3), "2g.12gb": (0, 2), "4g.24gb": (0,)}


def model(name: str, rate: float, limit: float, *, base: float = 10.0, step: float = 2.0) -> PlanModel:
    """A batch of b takes (base + step · b) / size of the slice."""
    points = tuple(
        Point(A30, profile, batch, 1000 * batch / time, time, memory_gib=1.0)
        for profile, size in SIZES.items()
        for batch in (1, 2, 4)
        for time in ((base + step * batch) / size,)
    )
    return whole_model(name, points, demand_rps=rate, max_response_ms=limit)


def request(
    *models: PlanModel, gpus: int = 4, kind: str = "min_gpus", sharing: str = "exclusive"
) -> PlanRequest:
    """On A30 GPUs that are cut into equal slices."""
    layouts = tuple((profile,) * len(starts) for profile, starts in LAYOUTS.items())
    return on_a30(
        *models,
        count=gpus,
        layouts=layouts,
        objective=Objective(kind),
        sharing=sharing,
        solver=SolverOptions(20.0),
    )


planned = functools.cache(workflow.plan)
"""Of a request that several tests ask, each something else."""


def every_plan(asked: PlanRequest, gpus: int) -> Iterator[tuple[PlannedGpu, ...]]:
    """So many GPUs of equal slices, each slice with any model at batch 4."""
    names = [model.name for model in asked.models]
    fillings = [
        (profile, filling)
        for profile, starts in LAYOUTS.items()
        for filling in combinations_with_replacement(names, len(starts))
    ]
    tenants = {
        (spec.name, point.profile): Tenant(
            spec.name, "whole", "whole", 1.0, 4, 1, point.throughput_rps, point.memory_gib, "measured"
        )
        for spec in asked.models
        for point in spec.variants[0].stages[0].points
        if point.batch_size == 4
    }
    for chosen in combinations_with_replacement(fillings, gpus):
        yield tuple(
            planned_gpu(
                f"gpu{number}",
                A30,
                [
                    (profile, start, tenants[name, profile])
                    for start, name in zip(LAYOUTS[profile], filling, strict=True)
                ],
            )
            for number, (profile, filling) in enumerate(chosen)
        )


def holds(asked: PlanRequest, gpus: tuple[PlannedGpu, ...]) -> bool:
    names = {tenant.model for gpu in gpus for item in gpu.slices for tenant in item.tenants}
    if len(names) < len(asked.models):
        return False
    # The ids of a fleet do not matter to a simulation, nor does the number of its GPUs.
    named = replace(asked, gpus=tuple(FleetEntry(A30, gpu.id) for gpu in gpus))
    outcome = unproven_outcome(without_limits(named), gpus, PlanStatistics(0.0, 0.0, 0.0, "none"))
    return not SloChecker(named).check(outcome).failing


@pytest.mark.slow
@repeated(
    "models",
    [
        (model("a", 150.0, 60.0), model("b", 60.0, 40.0)),
        (model("a", 300.0, 80.0), model("b", 20.0, 8.0)),
        (model("a", 500.0, 30.0),),
        (model("a", 560.0, 200.0), model("b", 190.0, 25.0, base=2.0)),
    ],
)
def test_as_few_gpus_as_any_plan_that_holds(models):
    asked = request(*models)
    outcome = planned(asked)
    assert outcome.status in ("optimal", "feasible")
    assert outcome.objective.value is not None and outcome.objective.bound is not None
    fewest = next(
        count for count in range(1, 5) if any(holds(asked, plan) for plan in every_plan(asked, count))
    )
    assert outcome.objective.bound <= fewest
    assert outcome.objective.value == fewest
    assert (outcome.status == "optimal") == (outcome.objective.bound == outcome.objective.value)
    verify_with_slo(asked, outcome)


@pytest.mark.slow
@repeated(
    ("kind", "sharing"),
    [
        ("leximin", "exclusive"),
        ("min_gpus", "fractional"),
        ("weighted_sum", "exclusive"),
        ("max_min", "fractional"),
    ],
)
def test_every_objective_and_sharing(kind, sharing):
    asked = request(model("a", 150.0, 60.0), model("b", 90.0, 22.0), gpus=2, kind=kind, sharing=sharing)
    asked = replace(asked, solver=SolverOptions(10.0))
    outcome = workflow.plan(asked)
    assert outcome.status in ("optimal", "feasible")
    verify_with_slo(asked, outcome)
    for spec, got in zip(asked.models, outcome.models, strict=True):
        assert got.response_ms is not None and got.response_ms.p95 <= (spec.max_response_ms or 0)
        assert got.max_wait_ms == 0 and got.response_bound_by in ("rate", "fill", "service")


@pytest.mark.slow
def test_most_requests_are_those_of_the_best_plan_that_holds_and_sharing_loses_nothing():
    models = model("a", 283.0, 12.1, base=5.0), model("b", 235.2, 21.5, base=5.0)
    asked = replace(request(*models, gpus=1, kind="weighted_sum"), solver=SolverOptions(20.0))
    best = 0.0
    for gpus in every_plan(asked, 1):
        named = replace(asked, gpus=(FleetEntry(A30, gpus[0].id),))
        outcome = unproven_outcome(without_limits(named), gpus, PlanStatistics(0.0, 0.0, 0.0, "none"))
        total = sum(one.throughput_rps for one in outcome.models)
        if total > best and holds(asked, gpus):
            best = total
    assert best > 0
    found = workflow.plan(asked).objective.value
    assert found is not None and found >= best * (1 - 1e-6)
    shared = workflow.plan(replace(asked, sharing="fractional")).objective.value
    assert shared is not None and shared >= found * (1 - 1e-6)


@pytest.mark.slow
@pytest.mark.repeated
def test_an_independent_simulator_agrees():
    asked = request(model("a", 150.0, 60.0), model("b", 60.0, 40.0))
    outcome = planned(asked)
    made = workflow.simulation_request(outcome, asked)
    rng = random.Random(7)
    for spec in made.models:
        at, times = 0.0, []
        for _ in range(1200):
            at += rng.expovariate(spec.arrivals.rate_rps)  # type: ignore[union-attr]
            times.append(round(at, 4))
        data = {
            "models": [{"name": spec.name, "stages": list(spec.stages), "arrivals": {"times_s": times}}],
            "servers": [
                {
                    "model": server.model, "stage": server.stage, "max_batch": server.max_batch,
                    "count": server.count, "batch_ms": {size: round(ms, 6) for size, ms in server.batch_ms.items()},
                }
                for server in made.servers
                if server.model == spec.name
            ],
        }  # fmt: skip
        found = sorted(responses(data)[spec.name][120:])
        limit = next(one.max_response_ms for one in asked.models if one.name == spec.name)
        assert found[math.ceil(0.95 * len(found)) - 1] <= 1.1 * (limit or 0)


def test_what_is_told_is_what_simulate_tells():
    asked = request(model("a", 150.0, 60.0), model("b", 60.0, 40.0))
    outcome = planned(asked)
    loads = workflow.simulate(workflow.simulation_request(outcome, asked)).models
    for load, got in zip(loads, outcome.models, strict=True):
        assert got.response_ms is not None
        assert (load.response_ms.p50, load.response_ms.p95, load.response_ms.p99) == (
            got.response_ms.p50, got.response_ms.p95, got.response_ms.p99,
        )  # fmt: skip
        half = load.response_ci95_ms.p95
        assert load.response_ms.p95 is not None and half is not None and load.slo_attainment is not None
        limit = next(one.max_response_ms for one in asked.models if one.name == load.name)
        assert load.response_ms.p95 + half <= (limit or 0)
    again = read_text(write_text(outcome))[1]
    assert again.models == outcome.models and again.status == outcome.status


def test_a_plan_of_nothing_holds_nothing():
    asked = request(model("a", 150.0, 60.0))
    empty = tuple(PlannedGpu(f"gpu{number}", A30, False) for number in range(4))
    outcome = unproven_outcome(without_limits(asked), empty, PlanStatistics(0.0, 0.0, 0.0, "none"))
    assert SloChecker(asked).check(outcome).failing == ("a",)
    assert SloChecker(asked).sustained(outcome) == {"a": 0.0}


def test_a_limit_below_one_service_time_is_infeasible_with_the_reason():
    outcome = workflow.plan(request(model("a", 10.0, 2.9), model("b", 10.0, 50.0)))
    assert outcome.status == "infeasible" and not outcome.gpus
    (conflict,) = outcome.conflicts
    assert conflict.demands[0].demand == "max_response_ms" and conflict.demands[0].model == "a"
    assert "3 ms" in conflict.message
    # As many digits as tell the two apart.
    (conflict,) = workflow.plan(request(model("a", 10.0, 3.00002, base=10.0003))).conflicts
    assert "max_response_ms 3.00002 is below the 3.0001 ms" in conflict.message


def test_a_minimum_below_what_arrives_is_no_minimum_to_lower():
    asked = replace(model("a", 5000.0, 100.0), min_throughput_rps=1.0)
    outcome = workflow.plan(request(asked, gpus=1))
    assert outcome.status == "infeasible" and not outcome.least_relaxation
    assert [demand.demand for demand in outcome.conflicts[0].demands] == ["max_response_ms"]


def test_more_than_can_be_served_is_infeasible():
    outcome = workflow.plan(request(model("a", 5000.0, 100.0), gpus=1))
    assert outcome.status == "infeasible"
    assert [demand.demand for demand in outcome.conflicts[0].demands] == ["max_response_ms"]


def test_a_slice_on_which_a_model_serves_nothing_changes_no_plan():
    """A profile may hold a point of 0 requests/s, where the model does not fit."""
    asked = request(model("a", 150.0, 60.0), gpus=2)
    (stage,) = asked.models[0].variants[0].stages
    points = tuple(point for point in stage.points if point.profile != "1g.6gb")
    idle = Point(A30, "1g.6gb", 1, 0.0, 0.0, memory_gib=1.0)

    def objective(*points: Point) -> ObjectiveValue:
        spec = replace(asked.models[0], variants=(Variant("whole", (replace(stage, points=points),)),))
        return workflow.plan(replace(asked, models=(spec,))).objective

    assert objective(idle, *points) == objective(*points)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"response_percentile": 100.0}, "response_percentile"),
        ({"response_percentile": 0.0}, "response_percentile"),
        ({"max_response_ms": 0.0}, "max_response_ms"),
        ({"max_response_ms": math.inf}, "max_response_ms"),
        ({"arrivals": PoissonArrivals(0.0)}, "arrivals"),
        ({"arrivals": PoissonArrivals(-1.0)}, "arrivals"),
        ({"arrivals": PoissonArrivals(math.inf)}, "arrivals"),
        ({"arrivals": GammaArrivals(5.0, 0.0)}, "arrivals"),
        ({"arrivals": TraceArrivals(())}, "arrivals"),
    ],
)
def test_what_makes_no_sense_is_refused(change, where):
    one = model("a", 10.0, 50.0)
    with pytest.raises(InputFault, match=where):
        workflow.plan(request(replace(one, **change)))  # type: ignore[arg-type]


@pytest.mark.slow
def test_bursts_need_more_than_poisson():
    calm = model("a", 400.0, 40.0)
    wild = replace(calm, arrivals=GammaArrivals(400.0, 6.0))
    few, more = workflow.plan(request(calm)), workflow.plan(request(wild))
    assert few.objective.value is not None
    assert more.status == "timeout" or (more.objective.value or 0) > few.objective.value


@pytest.mark.slow
def test_stages_and_transfers_count():
    whole = model("a", 50.0, 40.0)
    stage = whole.variants[0].stages[0]
    cut = Variant("cut", (replace(stage, name="x"), replace(stage, name="y")), (1e6,))
    asked = replace(request(replace(whole, variants=(cut,))), link_gb_per_s=1.0)
    outcome = workflow.plan(asked)
    assert outcome.status in ("optimal", "feasible")
    verify_with_slo(asked, outcome)
    # A request alone takes twice 3 ms and 1 ms across the cut.
    assert outcome.models[0].response_ms is not None and outcome.models[0].response_ms.p50 >= 7.0
    short = replace(asked, models=(replace(asked.models[0], max_response_ms=6.9),))
    assert workflow.plan(short).status == "infeasible"


@pytest.mark.slow
def test_a_plan_that_does_not_hold_is_refused():
    asked = request(model("a", 150.0, 60.0))
    outcome = workflow.plan(asked)
    tight = replace(
        asked, models=(replace(asked.models[0], max_response_ms=outcome.models[0].response_ms.p50),)
    )  # type: ignore[union-attr]
    from torchsplit_core.planning.request.hash import request_hash

    claimed = replace(outcome, request_sha256=request_hash(tight))
    with pytest.raises(InternalFault, match=r"claims .* above its limit"):
        verify_with_slo(tight, claimed)
    flattered = replace(outcome.models[0], response_ms=ResponsePercentiles(1.0, 1.0, 1.0))
    with pytest.raises(InternalFault, match="does not hold its max_response_ms"):
        verify_with_slo(tight, replace(claimed, models=(flattered,)))
    told = replace(outcome.models[0], response_ms=None)
    with pytest.raises(InternalFault):
        verify_with_slo(asked, replace(outcome, models=(told,)))


@repeated("kind", ["min_gpus", "leximin"])
def test_routed_pairs_keep_response_limits_and_say_what_they_send(kind):
    asked = request(model("a", 30.0, 60.0), model("b", 30.0, 60.0), gpus=2, kind=kind)
    asked = replace(asked, colocations=(Colocation(("a", "b"), "routed", 100.0),))
    outcome = workflow.plan(asked)
    verify_with_slo(asked, outcome)
    assert outcome.gpus and outcome.objective.routed is not None
