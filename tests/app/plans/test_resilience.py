"""The table of what the loss of a GPU would cost, as rows."""

from app.plans.resilience import loss_rows
from tests.support.planning.requests import A30, simple
from torchsplit_core.planning import plan
from torchsplit_core.values import FleetEntry, PlanRequest


def test_the_worst_gpu_stands_first_and_what_costs_nothing_is_counted():
    fleet = (FleetEntry(A30, layouts=(("1g.6gb",),)), FleetEntry(A30, layouts=(("4g.24gb",),)))
    bert = simple("bert", {"1g.6gb": 10.0, "4g.24gb": 40.0}, min_throughput_rps=15.0, demand_rps=12.0)
    request = PlanRequest(fleet, (bert,))
    rows, spared = loss_rows(request, plan(request))
    assert spared == 1
    assert rows == [
        {"GPU": "gpu1", "model": "bert", "has req/s": 50.0, "left req/s": 10.0,
         "below its minimum by": 5.0, "below its demand by": 2.0}
    ]  # fmt: skip
