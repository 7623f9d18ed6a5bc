"""Plans that touch few GPUs, against every plan that touches no more."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.support.planning.oracle import GpuState, Look, _better, fleet_states, levels_of
from tests.support.planning.requests import A30, on_a30, random_request, whole_model
from tests.support.seeds import in_blocks
from torchsplit_core.hardware import gpu_type, layout_multisets, place_layout
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.limited_change import _as_now, _figures_key
from torchsplit_core.planning.problem.held_gpus import HeldGpu
from torchsplit_core.planning.sweep.points import SweepRequest, sweep_points, sweep_requests
from torchsplit_core.values import (
    FleetEntry,
    ForeignTenant,
    HostState,
    InputFault,
    Objective,
    PlanRequest,
    Point,
    StateGpu,
    StateInstance,
    Tenant,
)


def gpu_by_gpu(request: PlanRequest) -> PlanRequest:
    """The request with an entry and an id for every GPU."""
    entries = [replace(entry, count=1) for entry in request.gpus for _ in range(entry.count)]
    return replace(request, gpus=tuple(replace(e, id=f"gpu{n}") for n, e in enumerate(entries)))


def state_gpu(draw: random.Random, request: PlanRequest, entry: FleetEntry, held: GpuState) -> StateGpu:
    """A GPU that holds these instances, in one of the layouts that have slices for them."""
    slices = [instance for instance, count in held for _ in range(count)]
    names = sorted(point.profile for *_, point in slices)
    offered = entry.layouts or layout_multisets(gpu_type(entry.type))
    layout = draw.choice([x for x in offered if all(x.count(n) >= names.count(n) for n in names)])
    placed = place_layout(gpu_type(entry.type), layout)
    assert placed is not None
    instances = []
    for item in placed.placed:
        fitting = next((x for x in slices if x[3].profile == item.profile), None)
        tenants: tuple[Tenant, ...] = ()
        if fitting is not None:
            slices.remove(fitting)
            m, v, s, point = fitting
            model = request.models[m]
            variant = model.variants[v]
            tenants = (
                Tenant(
                    model.name, variant.name, variant.stages[s].name, 1.0, point.batch_size, point.processes,
                    point.throughput_rps, point.memory_gib,
                ),
            )  # fmt: skip
        instances.append(StateInstance(item.profile, item.start, None, tenants))
    assert entry.id is not None
    return StateGpu(entry.id, entry.type, instances=tuple(instances))


@in_blocks("seed", range(100), kept=4)
def test_as_good_as_every_plan_that_touches_no_more(seed):
    draw = random.Random(seed)
    kind = draw.choice(["leximin", "max_min", "weighted_sum", "min_gpus"])
    request = gpu_by_gpu(random_request(seed, kind))
    every = list(fleet_states(request))
    now = draw.choice(every)
    state = HostState(tuple(state_gpu(draw, request, e, h) for e, h in zip(request.gpus, now, strict=True)))
    limit = draw.choice([0, 1, 1, 2])
    asked = replace(request, current=state, objective=replace(request.objective, max_touched_gpus=limit))
    look, best = Look(request), None
    for states in every:
        touched = sum(mine != other for mine, other in zip(states, now, strict=True))
        worth = look.worth(states) if touched <= limit else None
        if worth is not None and (best is None or _better(worth, best)):
            best = worth
    outcome = plan(asked)
    assert not list(violations(asked, outcome))
    if best is None:
        assert outcome.status == "infeasible"
        return
    assert outcome.status == "optimal"
    assert outcome.touched_gpus <= limit
    assert levels_of(asked, outcome) == pytest.approx(best[0], rel=1e-6, abs=1e-9)


def two_gpus(limit: int | None, *instances: StateInstance, **options) -> PlanRequest:
    """Two A30 of which the first has these instances; a model that is best on 4g and one that takes 1g."""
    points = (Point(A30, "4g.24gb", 1, 40.0, 5.0), Point(A30, "1g.6gb", 1, 5.0, 5.0))
    request = on_a30(whole_model("a", points), whole_model("b", points), **options)
    state = HostState((StateGpu("gpu0", A30, instances=instances), StateGpu("gpu1", A30)))
    entries = tuple(FleetEntry(A30, id=f"gpu{n}") for n in range(2))
    return replace(
        request, gpus=entries, current=state, objective=Objective("leximin", max_touched_gpus=limit)
    )


def tenant(model: str, share: float = 1.0) -> Tenant:
    return Tenant(model, "whole", "whole", share, 1, 1, 5.0 * share, None)


def test_what_stays_keeps_its_starts():
    request = two_gpus(1, StateInstance("1g.6gb", 2, None, (tenant("a"),)))
    outcome = plan(request)
    assert [(i.profile, i.start, i.tenants[0].model) for i in outcome.gpus[0].slices] == [("1g.6gb", 2, "a")]
    assert [i.profile for i in outcome.gpus[1].slices] == ["1g.6gb"] * 4
    assert outcome.touched_gpus == 1
    assert outcome.objective.sorted_normalised == (10.0, 15.0)
    assert plan(two_gpus(2, StateInstance("1g.6gb", 2, None, (tenant("a"),)))).objective.value == 40.0


def test_a_gpu_of_somebody_else_stays_as_it_is():
    foreign = StateInstance("1g.6gb", 0, None, (ForeignTenant("a notebook"),))
    outcome = plan(two_gpus(2, foreign))
    assert [(i.profile, i.start, i.tenants) for i in outcome.gpus[0].slices] == [("1g.6gb", 0, ())]
    assert not outcome.gpus[0].used
    assert outcome.touched_gpus == 1


def test_a_tenant_that_the_request_does_not_know_cannot_stay():
    outcome = plan(two_gpus(1, StateInstance("4g.24gb", 0, None, (tenant("stranger"),))))
    assert outcome.touched_gpus == 1
    assert [gpu.used for gpu in outcome.gpus] == [True, False]
    assert plan(two_gpus(0, StateInstance("4g.24gb", 0, None, (tenant("stranger"),)))).status == "infeasible"


def test_where_no_gpu_at_all_can_stay_the_limit_counts_all_the_same():
    request = two_gpus(0, StateInstance("4g.24gb", 0, None, (tenant("stranger"),)))
    state = HostState(request.current.gpus[:1])
    alone = replace(request, gpus=request.gpus[:1], current=state)
    assert plan(alone).status == "infeasible"
    one_change = replace(alone, objective=Objective("leximin", max_touched_gpus=1))
    assert plan(one_change).touched_gpus == 1


def test_infeasible_with_few_changes_alone_says_so():
    request = two_gpus(0, StateInstance("1g.6gb", 0, None, (tenant("a"),)))
    request = replace(request, models=tuple(replace(m, min_throughput_rps=5.0) for m in request.models))
    outcome = plan(request)
    assert outcome.status == "infeasible"
    assert outcome.conflicts == ()
    assert "at most 0 GPUs" in outcome.warnings[-1]
    assert "One that changes 2 does" in outcome.warnings[-1]


def test_shared_slices_stay_with_their_shares():
    points = (Point(A30, "4g.24gb", 1, 40.0, 5.0, memory_gib=1.0),)
    request = on_a30(whole_model("a", points), whole_model("b", points), sharing="fractional")
    shared = StateInstance("4g.24gb", 0, None, (tenant("a", 0.25), tenant("b", 0.5)))
    state = HostState((StateGpu("gpu0", A30, instances=(shared,)),))
    entries = tuple(FleetEntry(A30, id=f"gpu{n}") for n in range(2))
    request = replace(
        request, gpus=entries, current=state, objective=Objective("leximin", max_touched_gpus=1)
    )
    outcome = plan(request)
    # Either the second GPU is shared so that both end with 45 of 80, or the first one is planned anew alone.
    assert outcome.objective.sorted_normalised == pytest.approx((35.0, 35.0))
    assert outcome.touched_gpus == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"current": None}, "no current state"),
        ({"current": HostState((StateGpu("gpu7", A30),))}, "'gpu7', which is not in the fleet"),
        ({"current": HostState((StateGpu("gpu0", "A100-80GB"),))}, "fleet has it as"),
        ({"objective": Objective("leximin", max_touched_gpus=-1)}, "max_touched_gpus"),
    ],
)
def test_a_state_of_another_fleet_is_refused(change, words):
    with pytest.raises(InputFault, match=words):
        plan(replace(two_gpus(1), **change))


def test_how_many_gpus_may_change_is_swept_with_bounds_that_grow():
    request = two_gpus(None, StateInstance("1g.6gb", 2, None, (tenant("a"),)))
    sweep = SweepRequest("touched_gpus", "", (0.0, 1.0, 2.0))
    outcomes = {value: plan(asked) for value, asked in sweep_requests(request, sweep)}
    points = sweep_points(request, sweep, outcomes)
    assert [point.objective for point in points] == [0.0, 10.0, 40.0]
    assert [point.bound for point in points] == [0.0, 10.0, 40.0]


def test_a_share_that_the_solver_rounds_stays_as_it_is():
    points = (Point(A30, "2g.12gb", 1, 30.0, 5.0, memory_gib=1.0),)
    (gpu,) = plan(on_a30(whole_model("a", points), sharing="fractional")).gpus
    item = gpu.slices[0]
    (tenant,) = item.tenants
    running = replace(tenant, share=0.99999999925, throughput_rps=0.0)
    held = HeldGpu((replace(item, tenants=(running,)),), None)
    figures = {_figures_key(gpu, item.profile, tenant): [replace(tenant, share=0.5), tenant]}
    assert _as_now(gpu, held, figures).slices[0].tenants == (replace(tenant, share=0.99999999925),)
