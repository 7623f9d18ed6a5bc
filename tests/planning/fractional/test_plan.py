"""Fractional plans: against every set of tenants, the published example, and their own rules."""

from dataclasses import replace

import pytest

from tests.support.planning.requests import A30, on_a30, published, random_request, simple
from tests.support.planning.shared_oracle import best_shared
from tests.support.planning.shared_requests import small
from tests.support.seeds import repeated
from torchsplit_core.evaluation.mixes import case_request
from torchsplit_core.planning import plan, violations
from torchsplit_core.values import (
    Colocation,
    FleetEntry,
    Objective,
    PlanModel,
    Point,
    SolverOptions,
    Stage,
    Variant,
)
from torchsplit_core.values.evaluation.outcome import CaseKey

pytestmark = pytest.mark.slow


@repeated(
    ("kind", "seeds"),
    [("leximin", (*range(7), 77)), ("leximin", range(7, 24)), ("max_min", (*range(24), 77))],
)
def test_equal_to_every_set_of_tenants(kind, seeds):
    planned = 0
    for seed in seeds:
        request = small(seed, kind)
        expected = best_shared(request)
        outcome = plan(request)
        assert not list(violations(request, outcome)), seed
        if expected is None:
            assert outcome.status == "infeasible", seed
            continue
        planned += 1
        assert outcome.status == "optimal", seed
        found = outcome.objective.sorted_normalised
        wanted = expected if kind == "leximin" else expected[:1]
        assert found[: len(wanted)] == pytest.approx(wanted, rel=2e-6, abs=1e-9), seed
    assert planned >= len(seeds) // 2


def test_published_example_shared_is_fairer_than_exclusive():
    outcome = plan(published(2, sharing="fractional"))
    assert outcome.status == "optimal"
    # All four rise together: one more request/s of each costs 1/7.8 + 1/142 + 1/90 + 1/12166 of a GPU.
    level = 2 / (1 / 7.8 + 1 / 142 + 1 / 90 + 1 / 12166)
    assert outcome.objective.sorted_normalised == pytest.approx((level,) * 4, rel=0.02)
    assert outcome.objective.sorted_normalised[0] > 7.8


def test_memory_of_co_tenants_fits_together():
    heavy = [simple(f"m{i}", {"4g.24gb": 10.0}, memory_gib=14.0) for i in range(2)]
    request = on_a30(*heavy, objective=Objective("max_min"), sharing="fractional")
    assert plan(request).objective.value == 0.0
    light = [replace_memory(item, 11.0) for item in heavy]
    assert plan(replace(request, models=tuple(light))).objective.value == pytest.approx(5.0)


def replace_memory(item, gib: float):  # type: ignore[no-untyped-def]
    rates = {point.profile: point.throughput_rps for point in item.variants[0].stages[0].points}
    return simple(item.name, rates, memory_gib=gib)


def test_latency_sets_the_least_share():
    # 10 ms within 20 ms needs half a slice, so three models cannot share one.
    models = tuple(simple(f"m{i}", {"4g.24gb": 10.0}, max_latency_ms=20.0) for i in range(3))
    request = on_a30(*models, objective=Objective("max_min"), sharing="fractional")
    assert plan(request).objective.value == 0.0
    outcome = plan(replace(request, models=models[:2]))
    assert outcome.objective.value == pytest.approx(5.0)
    assert [item.latency_ms for item in outcome.models] == pytest.approx([20.0, 20.0])


def test_most_tenants_and_hard_colocation():
    models = tuple(simple(f"m{i}", {"4g.24gb": 10.0}) for i in range(2))
    request = on_a30(
        *models, count=2, colocations=(Colocation(("m0", "m1")),), objective=Objective("max_min"),
        sharing="fractional", solver=SolverOptions(20.0),
    )  # fmt: skip
    outcome = plan(request)
    assert outcome.status == "optimal" and outcome.objective.value == pytest.approx(10.0, rel=1e-3)
    alone = plan(replace(request, max_tenants_per_slice=1, gpus=(FleetEntry(A30),)))
    assert alone.objective.value == 0.0


def test_fewest_gpus_with_shares():
    models = tuple(simple(f"m{i}", {"4g.24gb": 10.0}, min_throughput_rps=5.0) for i in range(3))
    request = on_a30(*models, count=3, objective=Objective("min_gpus"), sharing="fractional")
    outcome = plan(request)
    assert outcome.status == "optimal" and outcome.objective.value == 2.0
    assert plan(replace(request, sharing="exclusive")).objective.value == 3.0


@repeated("kind", ["weighted_sum", "min_gpus", "leximin"], kept=2)
def test_shares_are_never_worse_than_whole_slices(kind):
    """Every field of the contract at once; each outcome has passed the check before it left."""
    sign = -1.0 if kind == "min_gpus" else 1.0
    for seed in range(6):
        request = replace(random_request(seed, kind, "fractional"), solver=SolverOptions(60.0))
        whole, shared = plan(replace(request, sharing="exclusive")), plan(request)
        if whole.status != "optimal":
            continue
        assert shared.status in ("optimal", "feasible"), (kind, seed)
        reached, least = sign * (shared.objective.value or 0.0), sign * (whole.objective.value or 0.0)
        assert reached >= least - 1e-6 * abs(least), (kind, seed)


def test_no_share_meets_a_minimum_behind_a_link_that_is_too_slow():
    """Two stages of one slice pass requests over a link of 10 requests/s."""
    stages = tuple(
        Stage(name, (Point(A30, "2g.12gb", 1, 400.0, 10.0, memory_gib=1.0),)) for name in ("s0", "s1")
    )
    variant = Variant("cut", stages, (0.0,), cut_bytes_per_request=(1e8,))
    model = PlanModel("a", (variant,), min_throughput_rps=60.0)
    request = on_a30(model, objective=Objective("weighted_sum"), sharing="fractional", link_gb_per_s=1.0)
    assert plan(request).status == "infeasible"
    assert plan(replace(request, link_gb_per_s=10.0)).status == "optimal"


def test_the_fewest_gpus_of_a_published_mix_are_proven():
    """A dive from the bound upwards comes before what takes seconds."""
    request = case_request(CaseKey("S3", "any", "fractional", "off", "fewest_gpus", "planner"), 60.0)
    outcome = plan(request, reasons=False)
    assert (outcome.status, outcome.objective.value) == ("optimal", 4.0)
    assert "counted" not in outcome.statistics.details
