"""Routed co-locations: the fewest bytes/s of every plan of the best objective, told with their bound."""

from dataclasses import replace

import pytest

from tests.support.planning.oracle import best_plan, levels_of
from tests.support.planning.requests import A30, LAYOUTS, simple
from tests.support.planning.routed_oracle import best_routed_shares
from tests.support.planning.routed_requests import routed, routed_shares
from tests.support.seeds import in_blocks
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.outcome.figures import cross_gpu_bytes, separation_traffic
from torchsplit_core.planning.traffic import minimization, pairwise_exchange
from torchsplit_core.values import (
    Colocation,
    FleetEntry,
    Objective,
    PlanRequest,
    Point,
    RoutedBytes,
    SolverOptions,
    Stage,
    Variant,
)

KINDS = ("leximin", "leximin", "max_min", "weighted_sum", "min_gpus")
FLOW = Colocation(("a", "b"), "routed", 1e6)


def two(**options: object) -> PlanRequest:
    """a and b take a small slice each on two GPUs: apart by default, and side by side as well."""
    models = (
        simple("a", {"2g.12gb": 10.0}, demand_rps=10.0),
        simple("b", {"2g.12gb": 10.0}, demand_rps=10.0),
    )
    fleet = (FleetEntry(A30, count=2, layouts=(LAYOUTS[1],)),)
    return PlanRequest(fleet, models, (FLOW,), solver=SolverOptions(20.0), **options)  # type: ignore[arg-type]


@pytest.mark.slow
@in_blocks("seed", range(300), 2)
def test_whole_slices_equal_every_plan_looked_at(seed):
    request = routed(seed, KINDS[seed % len(KINDS)])
    expected, outcome = best_plan(request), plan(request, reasons=False)
    assert not list(violations(request, outcome))
    if expected is None:
        assert outcome.status == "infeasible"
        return
    assert outcome.status == "optimal" and outcome.objective.routed is not None
    assert levels_of(request, outcome) == pytest.approx(expected[0], rel=1e-6, abs=1e-6)
    if request.objective.separation_weight == 0:
        assert separation_traffic(request, outcome.gpus) == pytest.approx(expected[1], rel=1e-6, abs=1e-3)
        assert outcome.objective.routed.gap == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
@in_blocks("seed", range(200), 2)
def test_shares_equal_every_plan_looked_at(seed):
    request = routed_shares(seed, ("leximin", "max_min")[seed % 2])
    (levels, sent), outcome = best_routed_shares(request), plan(request)
    assert not list(violations(request, outcome))
    told = outcome.objective.routed
    assert told is not None and outcome.status == "optimal"
    assert levels_of(request, outcome) == pytest.approx(levels, rel=1e-5)
    most = request.colocations[0].bytes_per_request * sum(model.demand_rps for model in request.models)
    assert told.bytes_per_s == pytest.approx(sent, abs=1e-5 * most)
    assert told.bound == pytest.approx(told.bytes_per_s, abs=1e-5 * most)


@pytest.mark.slow
@in_blocks("seed", range(300, 420), 1)
def test_never_more_than_without_pairs_at_an_equal_objective(seed):
    request = routed(seed, KINDS[seed % len(KINDS)])
    request = replace(request, objective=replace(request.objective, separation_weight=0.0))
    free = replace(request, colocations=tuple(one for one in request.colocations if one.mode == "hard"))
    with_pairs, without = plan(request, reasons=False), plan(free, reasons=False)
    assert (with_pairs.status == "infeasible") == (without.status == "infeasible")
    if without.gpus:
        mine, other = levels_of(request, with_pairs), levels_of(free, without)
        assert mine == pytest.approx(other, rel=1e-6, abs=1e-9)
        assert separation_traffic(request, with_pairs.gpus) <= separation_traffic(request, without.gpus) * (
            1 + 1e-9
        )


def test_stands_side_by_side_and_says_so():
    outcome = plan(two())
    assert outcome.status == "optimal"
    assert outcome.objective.routed == RoutedBytes(0.0, 0.0, 0.0)
    for gpu in outcome.gpus:
        assert sorted(t.model for item in gpu.slices for t in item.tenants) == ["a", "b"]


def test_what_must_leave_is_proven_where_the_objective_pays_for_memory():
    """As without the price, which nothing here costs: levels are then held in units of what none can pass."""
    slow = simple("b", {"2g.12gb": 3.0}, demand_rps=8.0)
    free = replace(two(), models=(two().models[0], slow))
    request = replace(free, objective=Objective("leximin", memory_violation_penalty=0.01))
    outcome = plan(request)
    assert outcome.status == "optimal" and not list(violations(request, outcome))
    assert outcome.objective.routed is not None and outcome.objective.routed.bytes_per_s > 0
    assert outcome.objective.routed.gap == pytest.approx(0.0, abs=1e-6)
    assert outcome.objective.routed == plan(free).objective.routed


def test_what_leaves_is_what_the_lesser_side_lacks():
    request = two()
    slow = simple("b", {"2g.12gb": 3.0}, demand_rps=8.0)
    request = replace(
        request, models=(request.models[0], slow), gpus=(FleetEntry(A30, layouts=(LAYOUTS[1],)),)
    )
    outcome = plan(request)
    # The lesser demand is 8, and 3 of them can stay on the one GPU.
    assert outcome.objective.routed == RoutedBytes(5e6, 5e6, 0.0)


def test_a_model_in_stages_serves_what_its_slowest_stage_does_on_the_gpu():
    def stage(name, rate):
        return Stage(name, (Point(A30, "2g.12gb", 1, rate, 10.0, memory_gib=0.0),))

    cut = replace(
        simple("a", {}, demand_rps=10.0),
        variants=(
            Variant("cut", (stage("one", 10.0), stage("two", 10.0)), (0.0,), cut_bytes_per_request=(5.0,)),
        ),
    )
    request = two()
    request = replace(request, models=(cut, request.models[1]))
    # Three instances of two slices a GPU: b stands beside one of the stages, and a whole a stands nowhere with it.
    apart = plan(request).objective.routed
    assert apart is not None and apart.bytes_per_s == pytest.approx(1e7)
    named = plan(replace(request, colocations=(replace(FLOW, models=("a/two", "b")),)))
    assert named.objective.routed == RoutedBytes(0.0, 0.0, 0.0)
    two_stages = plan(replace(request, colocations=(Colocation(("a/one", "a/two"), "routed"),)))
    # What a request adds across the cut counts where no bytes are said.
    assert two_stages.objective.routed == RoutedBytes(0.0, 0.0, 0.0)
    assert (
        cross_gpu_bytes(replace(request, colocations=(Colocation(("a/one", "a/two"), "routed"),)), ()) == 50.0
    )


def test_a_weight_trades_bytes_against_the_objective():
    # Whole GPUs serve more; side by side, on half of one each, nothing leaves.
    models = tuple(simple(name, {"2g.12gb": 10.0, "4g.24gb": 12.0}, demand_rps=10.0) for name in ("a", "b"))
    request = replace(
        two(), models=models, gpus=(FleetEntry(A30, layouts=(LAYOUTS[1],)), FleetEntry("T4-16GB"))
    )
    request = replace(request, gpus=(FleetEntry(A30, count=2, layouts=(LAYOUTS[3], LAYOUTS[1])),))
    free = plan(request)
    paying = plan(replace(request, objective=Objective("leximin", None, 1e-3)))
    assert free.objective.routed is not None and paying.objective.routed is not None
    assert free.objective.value == pytest.approx(2.0)
    assert paying.objective.value == pytest.approx(2.0)
    assert paying.objective.routed == RoutedBytes(0.0)


def test_exchanges_lower_what_leaves_where_the_program_is_too_large(monkeypatch):
    request, found = two(), {}
    apart = plan(replace(request, colocations=()))
    monkeypatch.setattr(minimization, "MAX_CHOICES", 0)
    outcome = plan(request)
    found["bytes"] = outcome.objective.routed
    assert found["bytes"] == RoutedBytes(0.0, 0.0, 0.0) and outcome.status == "optimal"
    assert cross_gpu_bytes(request, apart.gpus) > 0
    monkeypatch.setattr(minimization, pairwise_exchange.exchange_tenants.__name__, lambda _, gpus, __: gpus)
    left = plan(request)
    assert left.status == "feasible"
    assert left.objective.routed == RoutedBytes(cross_gpu_bytes(request, apart.gpus), 0.0, 1.0)


@pytest.mark.parametrize(("told", "words"), [
    (RoutedBytes(1e6, 0.0, 1.0), "claims to send"),
    (RoutedBytes(0.0, 1e6, 0.0), "no plan sends fewer"),
    (RoutedBytes(0.0, 0.0, 0.5), "claims the gap"),
    (RoutedBytes(0.0), "is called optimal"),
    (None, "routed co-locations send"),
])  # fmt: skip
def test_false_claims_fail_the_check(told, words):
    request = two()
    outcome = plan(request)
    lying = replace(outcome, objective=replace(outcome.objective, routed=told))
    assert any(words in str(fault) for fault in violations(request, lying))


@pytest.mark.slow
@in_blocks("seed", range(20), 1)
def test_with_tiers_whole_slices_equal_every_plan_looked_at(seed):
    request = routed(seed, "leximin")
    tiers = tuple(replace(model, tier=(seed + number) % 2) for number, model in enumerate(request.models))
    request = replace(request, models=tiers, objective=replace(request.objective, separation_weight=0.0))
    expected, outcome = best_plan(request), plan(request, reasons=False)
    assert not list(violations(request, outcome))
    if expected is None:
        assert outcome.status == "infeasible"
        return
    assert outcome.status == "optimal"
    assert levels_of(request, outcome) == pytest.approx(expected[0], rel=1e-6, abs=1e-6)
    assert separation_traffic(request, outcome.gpus) == pytest.approx(expected[1], rel=1e-6, abs=1e-3)
