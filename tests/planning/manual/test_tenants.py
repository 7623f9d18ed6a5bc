"""What may be set to run on a slice by hand."""

import pytest

from tests.support.app.values import plan, request
from tests.support.planning.requests import whole_model
from torchsplit_core.planning.manual.tenants import tenants_for, with_shares
from torchsplit_core.planning.problem.held_gpus import held_gpus
from torchsplit_core.values import HostState, PlanRequest, Point, StateGpu, StateInstance, Tenant


def test_the_plan_comes_first_then_the_points_by_throughput_each_once():
    points = tuple(
        Point("A100-80GB", "4g.40gb", batch, rps, 40.0)
        for batch, rps in ((4, 350.0), (8, 400.0), (16, 420.0))
    )
    asked = PlanRequest(request().gpus, (whole_model("bert", points, demand_rps=1.0),))
    ways = tenants_for(plan(), asked, "A100-80GB", "4g.40gb")["bert"]
    assert [(way.batch_size, way.throughput_rps) for way in ways] == [(8, 400.0), (16, 420.0), (4, 350.0)]
    assert tenants_for(plan(), asked, "A100-80GB", "1g.10gb") == {}


def test_without_the_request_the_plan_is_what_is_known():
    assert set(tenants_for(plan(), None, "A100-80GB", "3g.40gb")) == {"ocr"}


def test_every_way_can_stay_as_it_is_in_a_plan_of_the_request():
    asked = request()
    for profile, start in (("3g.40gb", 4), ("4g.40gb", 0)):
        for ways in tenants_for(plan(), asked, "A100-80GB", profile).values():
            for way in ways:
                state = HostState(
                    (
                        StateGpu(
                            "gpu0", "A100-80GB", None, True, (StateInstance(profile, start, None, (way,)),)
                        ),
                    )
                )
                held = held_gpus(PlanRequest(asked.gpus, asked.models, current=state))["gpu0"]
                assert held.occupants is not None and sum(held.occupants.values()) == 1


def test_shares_scale_the_throughput():
    tenant = Tenant("bert", "whole", "whole", 0.5, 8, 1, 100.0, None)
    (half, quarter) = with_shares((tenant, tenant), (0.5, 0.25))
    assert half == tenant and (quarter.share, quarter.throughput_rps) == (0.25, pytest.approx(50.0))
