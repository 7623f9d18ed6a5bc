"""What plans cost: of prices that are given, of those that are not, and what the check says to wrong figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.planning.requests import A30, on_a30, published, simple, with_another_type
from torchsplit_core.files import read_file, write_file
from torchsplit_core.latency_slo.cost_and_tier_text import describe_cost
from torchsplit_core.planning import plan, request_hash, validate, violations
from torchsplit_core.planning.manual.evaluate import evaluate, from_plan
from torchsplit_core.planning.outcome.fleet_mapping import with_canonical_ids, with_request_ids
from torchsplit_core.planning.request.equivalence import equivalence_hash
from torchsplit_core.values import FleetEntry, InputFault, Objective, PlanOutcome, PlanRequest

RATES = {"1g.6gb": 10.0, "2g.12gb": 18.0, "4g.24gb": 30.0}


def priced(*costs: float | None, **demands: object) -> PlanRequest:
    """A model on as many A30s, each with its price."""
    fleet = tuple(FleetEntry(A30, f"g{number}", cost=cost) for number, cost in enumerate(costs))
    return PlanRequest(fleet, (simple("m", RATES, **demands),))


def costs(outcome: PlanOutcome) -> tuple[float | None, float | None]:
    return outcome.cost_per_hour, outcome.cost_per_million_requests


def test_what_counts_is_served_up_to_the_demand():
    found = plan(priced(2.5, 1.5, demand_rps=50.0))
    assert found.models[0].throughput_rps == 80.0
    assert costs(found) == (4.0, pytest.approx(4.0 / (50.0 * 3600) * 1e6))
    more = plan(priced(2.5, 1.5, demand_rps=100.0))
    assert costs(more) == (4.0, pytest.approx(4.0 / (80.0 * 3600) * 1e6))
    assert describe_cost(priced(2.5, 1.5), found) == "cost 4 an hour, 22.22 per million requests served"


def test_only_gpus_in_use_are_paid_for():
    request = priced(9.0, 2.0, 4.0, demand_rps=10.0, min_throughput_rps=40.0)
    found = plan(replace(request, objective=Objective("min_gpus")))
    assert found.objective.value == 2.0 and found.cost_per_hour == 2.0


def test_a_price_of_nothing_is_one_and_none_is_not():
    assert costs(plan(priced(0.0))) == (0.0, 0.0)
    unknown = plan(priced(None))
    assert costs(unknown) == (None, None)
    assert describe_cost(priced(None), unknown) == ""


def test_the_type_without_a_price_is_named():
    request = with_another_type(published(1))
    first, other = request.gpus
    request = replace(request, gpus=(replace(first, cost=3.0), other))
    found = plan(request)
    assert all(gpu.used for gpu in found.gpus)
    assert costs(found) == (None, None) and describe_cost(request, found) == "cost n/a: no price of L4-24GB"
    both = replace(request, gpus=(replace(first, cost=3.0), replace(other, cost=0.5)))
    assert plan(both).cost_per_hour == 3.5


def test_nothing_served_has_no_cost_of_a_request():
    idle = simple("m", {})
    found = plan(on_a30(idle, simple("n", {}), cost=2.0))
    assert costs(found) == (0.0, None)
    assert describe_cost(priced(2.0), found) == "cost 0 an hour"


def test_no_plan_costs_nothing():
    found = plan(priced(2.0, min_throughput_rps=1e6))
    assert found.status == "infeasible" and costs(found) == (None, None)


def test_no_price_is_the_same_question_as_a_price_of_one():
    without, one, two = priced(None, None), priced(1.0, 1.0), priced(2.0, 2.0)
    assert request_hash(without) == request_hash(one) != request_hash(two)
    assert equivalence_hash(without) == equivalence_hash(one) != equivalence_hash(two)
    cheapest = Objective("min_gpus")
    asked = [
        replace(request, objective=cheapest, models=(replace(request.models[0], min_throughput_rps=60.0),))
        for request in (without, one)
    ]
    assert [plan(request).objective.value for request in asked] == [2.0, 2.0]
    # A known answer is told with the prices of who asks.
    known = with_canonical_ids(without, plan(without))
    carried = with_request_ids(one, known)
    assert carried is not None and carried.cost_per_hour == 2.0
    back = with_request_ids(without, with_canonical_ids(one, carried))
    assert back is not None and costs(back) == (None, None)


def test_plans_by_hand_cost_too():
    request = priced(2.5)
    made = evaluate(request, from_plan(plan(request)), None).outcome
    assert made is not None and costs(made) == costs(plan(request)) != (None, None)


def test_the_check_reckons_the_costs_anew():
    request = priced(2.5, None)
    sound = plan(replace(request, gpus=request.gpus[:1]))
    alone = replace(request, gpus=request.gpus[:1])
    assert not list(violations(alone, sound))
    # Files of before tell none.
    older = replace(sound, cost_per_hour=None, cost_per_million_requests=None)
    assert not list(violations(alone, older))
    for wrong in (
        replace(sound, cost_per_hour=2.6),
        replace(sound, cost_per_million_requests=1.0),
        replace(sound, cost_per_million_requests=None),
        replace(sound, cost_per_hour=None),
    ):
        assert list(violations(alone, wrong)), wrong
    both = plan(request)
    assert all(gpu.used for gpu in both.gpus)
    claimed = replace(both, cost_per_hour=2.5, cost_per_million_requests=1.0)
    assert [str(fault) for fault in violations(request, claimed)]


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf"), 1e300, 1e-12, True, "2"])
def test_a_price_that_is_none_is_refused(cost):
    request = priced(1.0)
    with pytest.raises(InputFault, match=r"gpus\[0\].cost"):
        validate(replace(request, gpus=(replace(request.gpus[0], cost=cost),)))  # type: ignore[arg-type]


def test_files_say_what_is_given(tmp_path):
    path = tmp_path / "request.json"
    for request in (priced(None), priced(1.0), priced(2.5)):
        write_file(request, path)
        assert ('"cost"' in path.read_text()) == (request.gpus[0].cost is not None)
        assert read_file(path)[1] == request
    for request in (priced(None), priced(2.5)):
        found = plan(request)
        write_file(found, path)
        assert ('"cost_per_hour"' in path.read_text()) == (request.gpus[0].cost is not None)
        assert read_file(path)[1] == found
