"""The simulation request that a plan makes: servers in their order, batch times, shares, transfers."""

from dataclasses import replace

import pytest

from torchsplit_core import workflow
from torchsplit_core.values import (
    WHOLE_GPU,
    FleetEntry,
    InputFault,
    ObjectiveValue,
    PlanModel,
    PlannedGpu,
    PlannedModel,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    Point,
    PoissonArrivals,
    Stage,
    Tenant,
    TraceArrivals,
    Variant,
)

A100 = "A100-80GB"


def point(profile: str, batch: int, rate: float, processes: int = 1) -> Point:
    return Point(A100, profile, batch, rate, 10.0, processes)


WHOLE = Stage("whole", (
    *(point("1g.10gb", batch, rate) for batch, rate in ((1, 100.0), (4, 200.0), (8, 500.0), (16, 600.0))),
    *(point("2g.20gb", batch, rate, 2) for batch, rate in ((1, 300.0), (8, 900.0))),
    point("2g.20gb", 2, 1.0),
))  # fmt: skip
PARTS = tuple(Stage(name, (point("1g.10gb", 4, 400.0), point("1g.10gb", 2, 250.0))) for name in ("a", "b"))
REQUEST = PlanRequest(
    (FleetEntry(A100, "g0", node="x"), FleetEntry(A100, "g1", node="y")),
    (
        PlanModel("bert", (Variant("whole", (WHOLE,)),), demand_rps=50.0, max_latency_ms=99.0),
        PlanModel("ocr", (Variant("cut", PARTS, (1e6,), cut_bytes_per_request=(1e5,)),), demand_rps=20.0),
        PlanModel("idle", (Variant("whole", (Stage("whole"),)),)),
    ),
    link_gb_per_s=10.0,
    network_gb_per_s=2.0,
)


def tenant(
    model: str, variant: str, stage: str, batch: int, processes: int = 1, share: float = 1.0
) -> Tenant:
    return Tenant(model, variant, stage, share, batch, processes, 1.0, None)


def plan_of(*gpus: tuple[PlannedSlice, ...], status: str = "optimal") -> PlanOutcome:
    planned = tuple(PlannedGpu(f"g{n}", A100, bool(slices), slices) for n, slices in enumerate(gpus))
    models = tuple(PlannedModel(model.name, None, 1.0, 1.0, None) for model in REQUEST.models)
    value = ObjectiveValue("leximin", 1.0)
    return PlanOutcome("00", status, value, planned, models, PlanStatistics(0.0, 0.0, 0.0, "none"))  # type: ignore[arg-type]


PLAN = plan_of(
    (
        PlannedSlice("1g.10gb", 0, (tenant("bert", "whole", "whole", 8),)),
        PlannedSlice("1g.10gb", 1),
        PlannedSlice("2g.20gb", 2, (tenant("bert", "whole", "whole", 8, 2),)),
        PlannedSlice("1g.10gb", 4, (tenant("ocr", "cut", "a", 4, share=0.5), tenant("ocr", "cut", "b", 2, share=0.25))),
    ),
    (PlannedSlice("1g.10gb", 0, (tenant("bert", "whole", "whole", 8),)),),
)  # fmt: skip


def test_servers_stand_by_what_a_request_of_a_full_batch_needs():
    made = workflow.simulation_request(PLAN, REQUEST)
    # 17.8 / 8 ms on each of the two processes of the 2g, 20 / 8 on the 1g slices, 20 / 4 and 32 / 2 on the shared one.
    assert [server.id for server in made.servers] == [
        "g0/2g.20gb@2", "g0/1g.10gb@0", "g1/1g.10gb@0", "g0/1g.10gb@4/ocr.a", "g0/1g.10gb@4/ocr.b",
    ]  # fmt: skip
    assert [server.count for server in made.servers] == [2, 1, 1, 1, 1]
    assert made.queue == "shared" and {server.max_wait_ms for server in made.servers} == {0.0}
    assert workflow.without_instance(PLAN, REQUEST) == ("idle",)


def test_batch_times_come_from_the_points_of_the_slice_and_never_fall():
    two, first, _, a, b = workflow.simulation_request(PLAN, REQUEST).servers
    # 8 at 500/s would take 16 ms, less than 4 at 200/s: they take 20.
    assert first.max_batch == 8 and dict(first.batch_ms) == {1: 10.0, 4: 20.0, 8: 20.0}
    assert dict(two.batch_ms) == pytest.approx({1: 2000 / 300, 8: 16000 / 900})
    assert dict(a.batch_ms) == {2: 16.0, 4: 20.0} and dict(b.batch_ms) == {2: 32.0}


def test_models_carry_their_demand_limit_cuts_and_transfers():
    bert, ocr = workflow.simulation_request(PLAN, REQUEST).models
    assert (bert.arrivals, bert.slo_ms, bert.transfer_ms) == (PoissonArrivals(50.0), 99.0, ())
    # A batch of 4, the larger of the two stages, over the link within the node.
    assert ocr.stages == ("a", "b") and ocr.transfer_ms == pytest.approx((1.4e6 / 10e9 * 1e3,))
    assert (ocr.cut_bytes, ocr.cut_bytes_per_request) == ((1e6,), (1e5,))
    away = plan_of(
        (PlannedSlice("1g.10gb", 0, (tenant("ocr", "cut", "a", 4),)),),
        (PlannedSlice("1g.10gb", 0, (tenant("ocr", "cut", "b", 4),)),),
    )
    (ocr,) = workflow.simulation_request(away, REQUEST).models
    assert ocr.transfer_ms == pytest.approx((1.4e6 / 2e9 * 1e3,))
    free = replace(REQUEST, link_gb_per_s=None, network_gb_per_s=None)
    assert workflow.simulation_request(PLAN, free).models[1].transfer_ms == ()


def test_a_whole_gpu_is_named_so():
    stage = Stage("whole", (Point(A100, WHOLE_GPU, 1, 100.0, 10.0),))
    request = PlanRequest((FleetEntry(A100, mig=False),), (PlanModel("m", (Variant("whole", (stage,)),)),))
    made = workflow.simulation_request(workflow.plan(request), request)
    assert [server.id for server in made.servers] == ["gpu0/whole@0"]
    assert workflow.simulate(replace(made, requests_per_model=100)).models[0].capacity_rps == 100.0


@pytest.mark.parametrize(("plan", "match"), [
    (plan_of((), status="infeasible"), "has no slices to simulate"),
    (plan_of((PlannedSlice("1g.10gb", 0, (tenant("other", "whole", "whole", 1),)),)), "runs other / whole"),
    (plan_of((PlannedSlice("1g.10gb", 0, (tenant("bert", "cut", "whole", 1),)),)), "runs bert / cut"),
    (plan_of((PlannedSlice("1g.10gb", 0, (tenant("bert", "whole", "whole", 2),)),)),
     "has no throughput for that"),
    (plan_of((PlannedSlice("1g.10gb", 0, (tenant("ocr", "cut", "a", 4),)),)), "no instance of b"),
])  # fmt: skip
def test_a_plan_of_another_request_is_one_message(plan, match):
    with pytest.raises(InputFault, match=match):
        workflow.simulation_request(plan, REQUEST)


def test_load_multiplies_rates_and_divides_times():
    made = workflow.simulation_request(PLAN, REQUEST)
    first, _ = workflow.under_load(made, 1.5).models
    assert first.arrivals == PoissonArrivals(75.0)
    traced = replace(made, models=(replace(made.models[0], arrivals=TraceArrivals((0.0, 3.0))),))
    assert workflow.under_load(traced, 2.0).models[0].arrivals == TraceArrivals((0.0, 1.5))
    with pytest.raises(InputFault, match="--load"):
        workflow.under_load(made, 0.0)
