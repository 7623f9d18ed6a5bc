"""Infeasible requests: each named conflict is one, is minimal, and the relaxation mends the request."""

from dataclasses import replace

import pytest

from benchmarks.fleet_instances import fleet_instance
from tests.support.planning.oracle import best_plan, least_change
from tests.support.planning.requests import on_a30, random_request, simple
from tests.support.seeds import repeated
from torchsplit_core.planning import plan
from torchsplit_core.planning.infeasibility.conflicts import with_demands
from torchsplit_core.planning.infeasibility.notes import SMALLER, WHOLE_OR_MINIMA
from torchsplit_core.planning.request.edit import with_relaxation
from torchsplit_core.values import Colocation, Demand, PlanOutcome, PlanRequest, SolverOptions

pytestmark = pytest.mark.slow


@repeated("block", range(3))
def test_conflicts_are_minimal_and_the_relaxation_mends(block):
    seen = 0
    for seed in range(block * 20, block * 20 + 20):
        request = random_request(seed, "max_min")
        outcome = plan(request)
        if outcome.status != "infeasible":
            assert outcome.conflicts == () and outcome.least_relaxation is None
            continue
        seen += 1
        assert outcome.conflicts, seed
        for conflict in outcome.conflicts:
            assert best_plan(with_demands(request, conflict.demands)) is None, (seed, conflict)
            for demand in conflict.demands:
                rest = [other for other in conflict.demands if other != demand]
                assert best_plan(with_demands(request, rest)) is not None, (seed, conflict, demand)
        changes = outcome.least_relaxation
        assert changes is not None, seed
        assert best_plan(with_relaxation(request, changes)) is not None, (seed, changes)
        total = sum(abs(change.new - change.old) / change.old for change in changes)
        assert total == pytest.approx(least_change(request), rel=1e-5, abs=1e-6), (seed, changes)
    assert seen >= 2


def test_one_model_wants_more_than_the_fleet():
    request = on_a30(simple("a", {"4g.24gb": 10.0}, min_throughput_rps=12.5))
    outcome = plan(request)
    assert outcome.status == "infeasible" and outcome.gpus == () and outcome.models == ()
    assert [conflict.demands for conflict in outcome.conflicts] == [(Demand("min_throughput_rps", "a"),)]
    assert "a at least 12.5 requests/s" in outcome.conflicts[0].message
    (change,) = outcome.least_relaxation or ()
    assert (change.model, change.demand, change.old, change.new) == ("a", "min_throughput_rps", 12.5, 10.0)


def test_a_latency_limit_is_eased_where_that_is_less():
    model = simple("a", {"4g.24gb": 10.0}, latency_ms=22.0, min_throughput_rps=10.0, max_latency_ms=20.0)
    outcome = plan(on_a30(model))
    assert {demand.demand for demand in outcome.conflicts[0].demands} == {
        "min_throughput_rps",
        "max_latency_ms",
    }
    (change,) = outcome.least_relaxation or ()
    assert change.demand == "max_latency_ms" and change.new == pytest.approx(22.0)


def test_colocation_is_named():
    models = (
        simple("a", {"4g.24gb": 10.0}, min_throughput_rps=5.0),
        simple("b", {"4g.24gb": 10.0}, min_throughput_rps=5.0),
    )
    request = on_a30(*models, count=2, colocations=(Colocation(("a", "b")),))
    outcome = plan(request)
    assert any(
        demand.demand == "colocation" and demand.models == ("a", "b")
        for demand in outcome.conflicts[0].demands
    )


@pytest.mark.parametrize("sharing", ["exclusive", "fractional"])
def test_sharing_is_explained_too(sharing):
    models = tuple(
        simple(f"m{i}", {"4g.24gb": 10.0}, min_throughput_rps=6.0, max_latency_ms=100.0) for i in range(2)
    )
    request = on_a30(*models, sharing=sharing)  # type: ignore[arg-type]
    outcome = plan(request)
    assert outcome.status == "infeasible"
    assert len(outcome.conflicts[0].demands) == 2
    assert outcome.least_relaxation is not None
    total = sum((change.old - change.new) / change.old for change in outcome.least_relaxation)
    assert total == pytest.approx(1.0 if sharing == "exclusive" else 1 / 3, rel=1e-4)
    assert plan(with_relaxation(request, outcome.least_relaxation)).status in ("optimal", "feasible")


def _shared_a30(limit_ms: float | None, latency_ms: float = 5.0) -> PlanOutcome:
    """Two models that want 6 of 10 requests/s each on one A30, so 1/3 of one minimum is too much."""
    models = tuple(
        simple(
            f"m{i}", {"4g.24gb": 10.0}, latency_ms=latency_ms, min_throughput_rps=6.0, max_latency_ms=limit_ms
        )
        for i in range(2)
    )
    return plan(on_a30(*models, sharing="fractional"))


@pytest.mark.parametrize("limit_ms", [None, 100.0])
def test_a_relaxation_with_shares_is_proven_where_no_limit_costs_anything(limit_ms):
    outcome = _shared_a30(limit_ms)
    total = sum((change.old - change.new) / change.old for change in outcome.least_relaxation or ())
    assert total == pytest.approx(1 / 3, rel=1e-4)
    assert SMALLER not in outcome.warnings and WHOLE_OR_MINIMA not in outcome.warnings


def test_a_relaxation_with_shares_is_not_claimed_least_where_a_limit_binds():
    # At 8 ms of a 5 ms service time a share is at least 5/8, so one of the two models cannot run at all; limits of
    # 10 ms with minima of 5 requests/s would be less.
    outcome = _shared_a30(8.0)
    total = sum((change.old - change.new) / change.old for change in outcome.least_relaxation or ())
    assert total > 1 / 3 + 0.1
    assert WHOLE_OR_MINIMA in outcome.warnings


def test_shares_of_many_gpus_are_explained_by_whole_slices_and_pooled_shares():
    """The program of shares has every GPU apart: of many it is not written."""
    request = replace(fleet_instance(4, 128, seed=1), sharing="fractional", solver=SolverOptions(5))

    def with_minimum(rps: float) -> PlanRequest:
        return replace(
            request, models=(replace(request.models[0], min_throughput_rps=rps), *request.models[1:])
        )

    outcome = plan(with_minimum(1e6))
    assert outcome.status == "infeasible" and outcome.least_relaxation is not None
    (change,) = outcome.least_relaxation
    assert (change.model, change.old) == (request.models[0].name, 1e6)
    assert SMALLER not in outcome.warnings
    # The least one: all the fleet is the model's, on slices of its own.
    assert plan(with_minimum(change.new), reasons=False).status in ("optimal", "feasible")
    assert plan(with_minimum(change.new * 1.0001), reasons=False).status == "infeasible"
