"""What a plan stops of what runs now, in numbers and words."""

from dataclasses import replace

from tests.support.app.values import plan, request
from torchsplit_core.planning.comparison.stopped_tenants import stopped_tenants
from torchsplit_core.transition import state_of_plan
from torchsplit_core.values import HostState, PlannedGpu


def test_nothing_stops_where_the_plan_runs():
    asked = replace(request(), current=state_of_plan(plan()))
    stopped = stopped_tenants(asked, plan().gpus)
    assert stopped is not None and stopped.by_model == (("bert", 0, 1), ("ocr", 0, 1))
    assert stopped.words == "0 of 1 GPUs change. Nothing stops: all 2 tenants run on."
    assert stopped_tenants(request(), plan().gpus) is None


def test_another_start_or_tenant_stops_what_ran():
    asked = replace(request(), current=state_of_plan(plan()))
    first, second = plan().gpus[0].slices
    moved = PlannedGpu("gpu0", "A100-80GB", True, (replace(first, tenants=()), second))
    stopped = stopped_tenants(asked, (moved,))
    assert stopped is not None and stopped.by_model == (("bert", 1, 1), ("ocr", 0, 1))
    assert stopped.words == "1 of 1 GPUs changes. Stops: bert (all 1). 1 of 2 tenants run on."
    empty = stopped_tenants(replace(asked, current=HostState(())), (moved,))
    assert empty is not None and empty.words == "1 of 1 GPUs changes. Nothing of the scenario runs now."
