"""Engines on slices, GPUs and groups of GPUs beside other models: the best plan of all, and only possible ones."""

import random
from dataclasses import replace

import pytest

from tests.support.planning.group_oracle import best_worth, best_worth_near
from tests.support.planning.oracle import levels_of
from tests.support.seeds import in_blocks
from torchsplit_core.latency_slo.derating import with_request_points
from torchsplit_core.planning import plan
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.verification.outcome import verify, violations
from torchsplit_core.values import (
    Colocation,
    EnginePoint,
    FleetEntry,
    HostState,
    InternalFault,
    LlmModel,
    LlmPoint,
    Objective,
    PlanModel,
    PlannedEngine,
    PlanRequest,
    Point,
    Stage,
    StateGpu,
    StateInstance,
    Variant,
)

A30, H100 = "A30-24GB", "H100-SXM5-80GB"
LAYOUTS = (("1g.6gb",) * 4, ("2g.12gb", "2g.12gb"), ("4g.24gb",))


def engine_point(kind, profile, rate, gpus=1):
    engine = PlannedEngine(gpus, None, None, 16, 64, 2048, None, True, None)
    return EnginePoint(kind, profile, 64, rate, 10.0, engine=engine)


def whole(points):
    return (Variant("whole", (Stage("whole", tuple(points)),)),)


def llm(name, points, **changes):
    measured = tuple(
        LlmPoint(point.gpu_type, point.profile, point.throughput_rps, point.tensor_parallel)
        for point in points
    )
    return PlanModel(name, whole(points), llm=LlmModel(None, points=measured), **changes)


def drawn(seed):
    """One or two LLMs and a batch model on two to four GPUs of one or two nodes, some of which MIG may cut."""
    rng = random.Random(f"groups {seed}")
    fleet = []
    for _ in range(rng.choice([1, 2, 2])):
        mig = rng.choice(["either", "either", False, True])
        layouts = None if mig is False or rng.random() < 0.6 else LAYOUTS[: rng.randint(1, 3)]
        fleet.append(
            FleetEntry(A30, count=rng.choice([1, 2]), layouts=layouts, node=rng.choice([None, "n0"]), mig=mig)
        )
    if rng.random() < 0.3:
        fleet.append(FleetEntry("L4-24GB", count=2, cost=0.5))
    if rng.random() < 0.2:
        fleet = [
            FleetEntry(A30, count=3, node=node, mig="either", layouts=LAYOUTS[1:]) for node in ("n0", "n1")
        ][: rng.choice([1, 2])]
        fleet = [
            replace(entry, count=rng.choice([1, 2, 3] if len(fleet) == 1 else [1, 2])) for entry in fleet
        ]

    def engines():
        points = [
            engine_point(A30, name, rng.uniform(1, 3))
            for name in ("2g.12gb", "4g.24gb")
            if rng.random() < 0.5
        ]
        points += [engine_point(A30, "", rng.uniform(3, 6))] if rng.random() < 0.7 else []
        points += [engine_point(A30, "", rng.uniform(7, 14), 2)] if rng.random() < 0.9 else []
        points += [engine_point(A30, "", rng.uniform(14, 40), 4)] if rng.random() < 0.5 else []
        points += [
            engine_point("L4-24GB", "", rng.uniform(2, 9), gpus) for gpus in (1, 2) if rng.random() < 0.5
        ]
        return points or [engine_point(A30, "", 5.0)]

    def least():
        return rng.choice([None, None, rng.uniform(1, 6)])

    models = [
        llm(f"chat{i}", engines(), demand_rps=rng.uniform(2, 10), min_throughput_rps=least())
        for i in range(rng.choice([1, 1, 2]))
    ]
    points = [
        Point(A30, name, 8, rng.uniform(50, 60) * share, 5.0)
        for name, share in (("1g.6gb", 1), ("2g.12gb", 2), ("4g.24gb", 4), ("", 5))
        if rng.random() < 0.8
    ] or [Point(A30, "", 8, 200.0, 5.0)]
    models.append(
        PlanModel(
            "bert", whole(points), demand_rps=rng.uniform(50, 300), weight=rng.choice([1.0, 2.0]),
            min_throughput_rps=rng.choice([None, 60.0]), cap_at_demand=rng.random() < 0.3,
        )
    )  # fmt: skip
    kind = rng.choice(["leximin", "leximin", "max_min", "weighted_sum", "min_gpus"])
    survives = int(rng.random() < 0.25)
    if (kind == "min_gpus" or survives) and not any(model.min_throughput_rps for model in models):
        models[0] = replace(models[0], min_throughput_rps=3.0)
    pairs = (Colocation(("chat0", "bert"), "hard"),) if rng.random() < 0.15 else ()
    return PlanRequest(tuple(fleet), tuple(models), pairs, Objective(kind, survives=survives))


@in_blocks("seed", range(300), kept=4)
def test_plans_with_groups_equal_every_plan_looked_at(seed):
    request = drawn(seed)
    best = best_worth(request)
    outcome = plan(request, reasons=False)
    assert outcome.status == ("infeasible" if best is None else "optimal")
    if best is not None:
        assert levels_of(request, outcome) == pytest.approx(best, rel=1e-6, abs=1e-9)


def one_by_one(request):
    """The request with an entry for every GPU."""
    entries = [entry for entry in request.gpus for _ in range(entry.count)]
    return replace(
        request, gpus=tuple(replace(entry, id=f"g{i}", count=1) for i, entry in enumerate(entries))
    )


def standing(outcome):
    """What a plan leaves on its GPUs."""
    return HostState(
        tuple(
            StateGpu(
                gpu.id, gpu.type,
                instances=tuple(StateInstance(item.profile, item.start, None, item.tenants) for item in gpu.slices),
            )
            for gpu in outcome.gpus
        )
    )  # fmt: skip


@in_blocks("seed", range(150), kept=2)
def test_plans_that_touch_few_gpus_equal_every_such_plan(seed):
    request, rng = one_by_one(drawn(seed)), random.Random(seed)
    now = plan(request, reasons=False)
    if not now.gpus:
        return
    models = tuple(
        replace(model, demand_rps=model.demand_rps * rng.choice([0.5, 1.0, 2.0])) for model in request.models
    )
    objective = replace(request.objective, max_touched_gpus=rng.randint(0, 2))
    moved = replace(request, models=models, objective=objective, current=standing(now))
    outcome = plan(moved, reasons=False)
    best = best_worth_near(moved, now, objective.max_touched_gpus)
    assert outcome.status == ("infeasible" if best is None else "optimal")
    if best is not None:
        assert levels_of(moved, outcome) == pytest.approx(best, rel=1e-6, abs=1e-9)


def test_a_plan_whose_groups_are_not_possible_fails_its_check():
    chat = llm("chat", [engine_point(A30, "", 9.0, 2)], demand_rps=5.0)
    nodes = tuple(FleetEntry(A30, f"g{i}", node=f"n{i // 2}", mig="either") for i in range(4))
    request = PlanRequest(nodes, (chat,))
    outcome = plan(request)
    assert [gpu.group for gpu in outcome.gpus] == ["group0", "group0", "group1", "group1"]
    assert all(gpu.mig is False for gpu in outcome.gpus)
    assert outcome.models[0].throughput_rps == 18.0

    def said(number, **changes):
        gpus = list(outcome.gpus)
        gpus[number] = replace(gpus[number], **changes)
        return " ".join(fault.problem for fault in violations(request, replace(outcome, gpus=tuple(gpus))))

    (item,) = outcome.gpus[1].slices
    (tenant,) = item.tenants
    assert tenant.throughput_rps == 4.5
    in_other = replace(tenant, engine=replace(tenant.engine, group="group1"))
    moved = said(1, group="group1", slices=(replace(item, tenants=(in_other,)),))
    assert "group group0 has 1 GPUs, and its engine takes 2" in moved
    assert "is of group None" in said(1, group=None)
    assert "says mig: True" in said(1, mig=True)
    faster = replace(tenant, engine=replace(tenant.engine, max_num_seqs=128))
    assert "has different tenants" in said(1, slices=(replace(item, tenants=(faster,)),))
    both = (replace(gpu, slices=(replace(item, tenants=(faster,)),)) for gpu in outcome.gpus[:2])
    claimed = replace(outcome, gpus=(*both, *outcome.gpus[2:]))
    assert "claims an engine" in " ".join(fault.problem for fault in violations(request, claimed))
    across = (replace(nodes[0], node="n1"), nodes[1], replace(nodes[2], node="n0"), nodes[3])
    mixed = replace(request, gpus=across)
    with pytest.raises(InternalFault, match="is on GPUs of several nodes"):
        verify(mixed, replace(outcome, request_sha256=request_hash(mixed)))


def test_groups_fit_on_nodes_with_a_rest():
    """Two nodes of three GPUs have room for a group of two each, and the single engines for the rest."""
    points = [engine_point(A30, "", 5.0), engine_point(A30, "", 30.0, 2), engine_point(A30, "", 100.0, 4)]
    request = PlanRequest(
        tuple(FleetEntry(A30, count=3, node=node, mig=False) for node in ("n0", "n1")), (llm("chat", points),)
    )
    outcome = plan(request)
    assert outcome.status == "optimal"
    assert outcome.models[0].throughput_rps == 70.0


def test_tenants_with_the_requests_own_points_are_those_of_the_plan():
    """Also of an engine on two GPUs, of which each has half."""
    fleet = (FleetEntry(A30, count=2, node="n0", mig=False),)
    request = PlanRequest(fleet, (llm("chat", [engine_point(A30, "", 10.0, 2)], demand_rps=5.0),))
    gpus = plan(request).gpus
    assert [item.throughput_rps for gpu in gpus for part in gpu.slices for item in part.tenants] == [5.0, 5.0]
    assert with_request_points(request, gpus, {}) == gpus
