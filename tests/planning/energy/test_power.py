"""The power of plans: between limit × utilisation and the limits of the cards in use, by hand."""

from dataclasses import replace

import pytest

from tests.support.planning.requests import on_a30, simple, whole_model
from torchsplit_core.latency_slo.cost_and_tier_text import describe_power
from torchsplit_core.planning import plan
from torchsplit_core.planning.energy.power import (
    PowerRange,
    power_limit_w,
    power_of,
    types_without_limit,
    utilisations,
)
from torchsplit_core.values import FleetEntry, PlannedGpu, PlannedSlice, PlanOutcome, Point, Tenant

A30_W = 165.0


def planned(*gpus: PlannedGpu, **throughputs: float) -> PlanOutcome:
    """A plan of these GPUs, whose models have these throughputs."""
    made = plan(on_a30(simple("a", {"1g.6gb": 10.0})))
    models = tuple(
        replace(made.models[0], name=name, throughput_rps=rate) for name, rate in throughputs.items()
    )
    return replace(made, gpus=gpus, models=models)


def tenant(
    model: str, rate: float, share: float = 1.0, variant: str = "whole", stage: str = "whole"
) -> Tenant:
    return Tenant(model, variant, stage, share, 1, 1, rate, 1.0)


def test_a_card_draws_in_proportion_to_its_busy_compute_slices_up_to_its_limit():
    slices = (
        PlannedSlice("2g.12gb", 0, (tenant("a", 20.0),)),
        PlannedSlice("1g.6gb", 2, (tenant("b", 10.0),)),
    )
    gpu = PlannedGpu("g", "A30-24GB", True, slices)
    outcome = planned(gpu, PlannedGpu("idle", "A30-24GB", False), a=20.0, b=10.0)
    # Half of two slices of four, and all of one.
    assert utilisations(outcome, {"a": 10.0, "b": 30.0}) == {"g": pytest.approx(0.5), "idle": 0.0}
    assert power_of(outcome, {"a": 10.0, "b": 30.0}) == PowerRange(pytest.approx(A30_W / 2), A30_W)
    assert power_of(outcome, {}) == PowerRange(0.0, A30_W)
    assert power_limit_w("A30-24GB") == A30_W


def test_shares_and_stages_and_variants_are_busy_as_far_as_the_demand_reaches():
    shared = PlannedSlice("4g.24gb", 0, (tenant("a", 6.0, 0.25), tenant("b", 10.0, 0.75)))
    outcome = planned(PlannedGpu("g", "A30-24GB", True, (shared,)), a=6.0, b=10.0)
    assert utilisations(outcome, {"a": 3.0, "b": 10.0})["g"] == pytest.approx(0.25 * 0.5 + 0.75)
    cut = (
        PlannedSlice("1g.6gb", 0, (tenant("a", 10.0, variant="cut", stage="front"),)),
        PlannedSlice("1g.6gb", 1, (tenant("a", 20.0, variant="cut", stage="back"),)),
        PlannedSlice("2g.12gb", 2, (tenant("a", 30.0),)),
    )
    outcome = planned(PlannedGpu("g", "A30-24GB", True, cut), a=40.0)
    # A quarter of the requests go through the cut: half of the front's, a quarter of the back's, half of the whole's.
    assert utilisations(outcome, {"a": 20.0})["g"] == pytest.approx((0.5 + 0.25 + 2 * 0.5) / 4)


def test_a_type_without_a_known_limit_has_no_power_and_is_named():
    request = replace(
        on_a30(whole_model("a", (Point("CPU", "2c", 1, 10.0, 5.0, memory_gib=0.1),))),
        gpus=(FleetEntry("CPU-4c"),),
    )
    outcome = plan(request)
    assert types_without_limit(outcome) == ("CPU-4c",) and power_of(outcome, {"a": 1.0}) is None
    assert describe_power(request, outcome) == "power n/a: no limit of CPU-4c is known"


def test_the_power_of_a_plan_is_said_as_an_estimate_with_its_rule():
    request = on_a30(simple("a", {"4g.24gb": 10.0}, demand_rps=5.0))
    text = describe_power(request, plan(request))
    said = "power at most 165 W, 3.96 kWh a day; 82.5 W, 1.98 kWh a day at the demands if idle cards drew nothing"
    assert text.startswith(f"{said} (estimated: ")
    assert "what an idle card draws is not sourced" in text
    short = describe_power(request, plan(request), rule=False)
    assert short == f"{said} (estimated)"
    nothing = replace(plan(request), gpus=())
    assert describe_power(request, nothing) == "" and power_of(nothing, {}) is None
