"""A plan of a request with a current state stays near it, and is as good as without."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from tests.support.planning.requests import A30, on_a30, random_request, whole_model
from tests.support.seeds import in_blocks
from torchsplit_core.hardware.host_state.validity import tenant_key
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.outcome.near_current import near_current
from torchsplit_core.planning.problem.held_gpus import touched_gpus
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.transition import plan_transition, state_of_plan
from torchsplit_core.values import (
    FleetEntry,
    ForeignTenant,
    HostState,
    Objective,
    PlannedGpu,
    PlanOutcome,
    PlanRequest,
    Point,
    StateGpu,
    StateInstance,
    Tenant,
)


def named(request: PlanRequest) -> PlanRequest:
    """The request with an entry and an id for every GPU."""
    entries = [replace(entry, count=1) for entry in request.gpus for _ in range(entry.count)]
    return replace(request, gpus=tuple(replace(e, id=f"gpu{n}") for n, e in enumerate(entries)))


def two_models(profile: str) -> PlanRequest:
    """A model that runs on this profile, and one that takes 1g."""
    fast, slow = Point(A30, profile, 1, 40.0, 5.0), Point(A30, "1g.6gb", 1, 5.0, 5.0)
    return on_a30(whole_model("a", (fast,)), whole_model("b", (slow,)))


def shuffled(outcome: PlanOutcome, request: PlanRequest, seed: int) -> HostState:
    """The plan as it would run on GPUs of other names, among those that can take each other's place."""
    draw = random.Random(seed)
    contents = {gpu.id: gpu for gpu in outcome.gpus}
    groups: dict[object, list[str]] = {}
    for gpu in list_gpus(request.gpus):
        groups.setdefault((gpu.type, gpu.layouts, gpu.price, gpu.node), []).append(gpu.id)
    moved: dict[str, PlannedGpu] = {}
    for ids in groups.values():
        for name, other in zip(ids, draw.sample(ids, len(ids)), strict=True):
            moved[name] = replace(contents[other], id=name)
    return state_of_plan(replace(outcome, gpus=tuple(moved[gpu.id] for gpu in outcome.gpus)))


def running_still(state: HostState, outcome: PlanOutcome) -> int:
    """The tenants that the plan has where they run, by the names and starts of its GPUs."""
    now, planned = (
        Counter(
            (gpu.id, item.profile, item.start, tenant_key(tenant))
            for gpu, items in gpus
            for item in items
            for tenant in item.tenants or ()
        )
        for gpus in (
            [(gpu, gpu.instances) for gpu in state.gpus], [(gpu, gpu.slices) for gpu in outcome.gpus],
        )
    )  # fmt: skip
    return (now & planned).total()


@in_blocks("seed", range(120), kept=1)
def test_from_its_own_plan_under_other_names_nothing_changes_and_nothing_is_worse(seed):
    kind = random.Random(seed).choice(["leximin", "max_min", "weighted_sum", "min_gpus"])
    request = named(random_request(seed, kind))
    free = plan(request)
    if not free.gpus:
        return
    asked = replace(request, current=shuffled(free, request, seed))
    outcome = plan(asked)
    assert not list(violations(asked, outcome))
    assert (outcome.status, outcome.objective) == (free.status, free.objective)
    assert outcome.models == free.models and outcome.touched_gpus == 0
    assert outcome.gpus != free.gpus or touched_gpus(asked, free.gpus) == 0


@in_blocks("seed", range(120), kept=1)
def test_from_another_plan_no_pairing_of_equal_gpus_changes_less(seed):
    """With one kind of GPU a transition may pair all with all: it finds nothing that keeps more."""
    draw = random.Random(seed)
    request = replace(named(random_request(seed, "leximin")), colocations=())
    request = replace(request, gpus=tuple(FleetEntry(A30, id=f"gpu{n}") for n in range(3)))
    other = replace(
        request, models=tuple(replace(m, demand_rps=draw.choice([1, 5, 30])) for m in request.models)
    )
    running = plan(other)
    if not running.gpus:
        return
    state = state_of_plan(running)
    asked = replace(request, current=state)
    outcome = plan(asked)
    if not outcome.gpus:
        return
    way = plan_transition(outcome, state)
    assert outcome.touched_gpus == touched_gpus(asked, outcome.gpus) == way.touched_gpus
    assert running_still(state, outcome) == way.untouched_tenants


def test_slices_move_to_the_starts_where_their_tenants_run():
    request = replace(
        on_a30(
            whole_model("a", (Point(A30, "2g.12gb", 1, 40.0, 5.0),)),
            whole_model("b", (Point(A30, "1g.6gb", 1, 5.0, 5.0),)),
        ),
        gpus=(FleetEntry(A30, id="gpu0"),),
    )
    runs = StateInstance("2g.12gb", 2, None, (Tenant("a", "whole", "whole", 1.0, 1, 1, 40.0, None),))
    outcome = plan(replace(request, current=HostState((StateGpu("gpu0", A30, instances=(runs,)),))))
    assert ("2g.12gb", 2, "a") in [(i.profile, i.start, i.tenants[0].model) for i in outcome.gpus[0].slices]
    assert outcome.touched_gpus == 1


def test_where_somebody_else_runs_too_the_count_is_not_known():
    request = on_a30(whole_model("a", (Point(A30, "1g.6gb", 1, 5.0, 5.0),)))
    with_point = replace(request, gpus=(FleetEntry(A30, id="gpu0"), FleetEntry(A30, id="gpu1")))
    outcome = plan(with_point)
    foreign = StateInstance("4g.24gb", 0, None, (ForeignTenant("a notebook"),))
    asked = replace(with_point, current=HostState((StateGpu("gpu0", A30, instances=(foreign,)),)))
    assert near_current(asked, outcome).touched_gpus is None
    assert near_current(with_point, outcome) is outcome


def test_many_equal_gpus_are_paired_by_what_they_hold():
    request = replace(
        on_a30(
            whole_model("a", (Point(A30, "4g.24gb", 1, 40.0, 5.0),)),
            whole_model("b", (Point(A30, "1g.6gb", 1, 5.0, 5.0),)),
        ),
        gpus=tuple(FleetEntry(A30, id=f"gpu{n}") for n in range(40)),
    )
    free = plan(request)
    asked = replace(request, current=shuffled(free, request, 7))
    assert touched_gpus(asked, free.gpus) > 0
    assert near_current(asked, free).touched_gpus == 0


def test_a_gpu_whose_tenant_the_request_does_not_know_counts_as_touched():
    """The plan has the instance of now without its tenant, which therefore stops."""
    request = named(
        on_a30(whole_model("a", (Point(A30, "2g.12gb", 1, 9.0, 5.0),)), layouts=(("2g.12gb",) * 2,))
    )
    request = replace(
        request, models=tuple(replace(m, min_throughput_rps=9.0) for m in request.models),
        objective=Objective("min_gpus"),
    )  # fmt: skip
    first = plan(request)
    (gpu,) = first.gpus
    (idle,) = (item for item in gpu.slices if not item.tenants)
    stranger = replace(next(t for item in gpu.slices for t in item.tenants), model="stranger")
    slices = tuple(replace(item, tenants=(stranger,)) if item == idle else item for item in gpu.slices)
    state = state_of_plan(replace(first, gpus=(replace(gpu, slices=slices),)))
    later = plan(replace(request, current=state))
    assert later.gpus == first.gpus and later.touched_gpus == 1
