"""The independent check refuses every plan that was tampered with."""

from dataclasses import replace

import pytest

from tests.support.planning.edits import with_model
from tests.support.planning.requests import A30, on_a30, published, simple
from tests.support.planning.variants import cut_wins
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.verification.outcome import verify
from torchsplit_core.values import (
    Colocation,
    FleetEntry,
    InternalFault,
    Objective,
    PlanModel,
    PlannedGpu,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    Point,
    Stage,
    Tenant,
    Variant,
)


def changed(outcome: PlanOutcome, number: int, **fields: object) -> PlanOutcome:
    """The outcome with fields of one of its GPUs replaced."""
    gpus = list(outcome.gpus)
    gpus[number] = replace(gpus[number], **fields)  # type: ignore[arg-type]
    return replace(outcome, gpus=tuple(gpus))


def first_tenant(outcome: PlanOutcome, **fields: object) -> PlanOutcome:
    """The outcome with fields of the first tenant replaced."""
    for number, gpu in enumerate(outcome.gpus):
        for place, item in enumerate(gpu.slices):
            if item.tenants:
                tenant = replace(item.tenants[0], **fields)  # type: ignore[arg-type]
                slices = list(gpu.slices)
                slices[place] = replace(item, tenants=(tenant, *item.tenants[1:]))
                return changed(outcome, number, slices=tuple(slices))
    raise AssertionError("no tenant")


def refused(request: PlanRequest, outcome: PlanOutcome, word: str) -> None:
    faults = list(violations(request, outcome))
    assert any(word in str(fault) for fault in faults), faults
    with pytest.raises(InternalFault):
        verify(request, outcome)


def test_layout_tampering():
    request = published()
    outcome = plan(request)
    slices = outcome.gpus[0].slices
    refused(request, changed(outcome, 0, slices=(*slices, PlannedSlice("4g.24gb", 0))), "overlaps")
    refused(request, changed(outcome, 0, slices=(PlannedSlice("2g.12gb", 1), *slices)), "cannot start")
    refused(
        request,
        changed(outcome, 0, slices=(PlannedSlice("7g.80gb", 0),)),
        "unknown profile '7g.80gb' of A30-24GB",
    )
    refused(request, changed(outcome, 0, used=False), "used is False")
    refused(request, changed(outcome, 0, id="other"), "not those of the request")
    offered = replace(request, gpus=(FleetEntry(A30, count=2, layouts=(("4g.24gb",),)),))
    forged = replace(outcome, request_sha256=plan(offered).request_sha256)
    refused(offered, forged, "is not offered to this GPU")


def test_a_sound_plan_passes_and_tampered_tenants_do_not():
    request = published()
    outcome = plan(request)
    refused(request, first_tenant(outcome, throughput_rps=1e6), "its share of its point")
    refused(request, first_tenant(outcome, share=0.5), "has a share of 0.5")
    refused(request, first_tenant(outcome, batch_size=7), "a point that the request does not have")
    refused(request, first_tenant(outcome, memory_gib=1.0), "its point needs")
    verify(request, plan(request))


def test_shares_memory_and_tenants():
    models = tuple(simple(f"m{i}", {"4g.24gb": 10.0}, memory_gib=10.0) for i in range(2))
    request = on_a30(*models, sharing="fractional")
    outcome = plan(request)
    item = outcome.gpus[0].slices[0]
    assert len(item.tenants) == 2
    more = tuple(replace(t, share=0.75, throughput_rps=7.5) for t in item.tenants)
    refused(request, changed(outcome, 0, slices=(replace(item, tenants=more),)), "add up to 1.5, above 1")
    exclusive = replace(request, sharing="exclusive")
    forged = replace(outcome, request_sha256=plan(exclusive).request_sha256)
    refused(exclusive, forged, "whole slices are not shared")
    one = replace(request, max_tenants_per_slice=1)
    refused(one, replace(outcome, request_sha256=plan(one).request_sha256), "2 tenants")
    heavy = replace(
        request, models=tuple(simple(f"m{i}", {"4g.24gb": 10.0}, memory_gib=14.0) for i in range(2))
    )
    tenants = tuple(replace(tenant, memory_gib=14.0) for tenant in item.tenants)
    forged = changed(outcome, 0, slices=(replace(item, tenants=tenants),))
    refused(
        heavy,
        replace(forged, request_sha256=plan(heavy).request_sha256),
        "its tenants need 28 GiB, and it has 23.4 GiB",
    )


@pytest.mark.parametrize("penalty", [None, 0.01])
def test_unknown_memory_shares_no_slice_whether_or_not_memory_is_a_limit(penalty):
    known = tuple(simple(f"m{i}", {"4g.24gb": 10.0}, memory_gib=10.0) for i in range(2))
    objective = Objective(memory_violation_penalty=penalty)
    outcome = plan(on_a30(*known, sharing="fractional", objective=objective))
    item = outcome.gpus[0].slices[0]
    assert len(item.tenants) == 2
    unknown = tuple(simple(f"m{i}", {"4g.24gb": 10.0}, memory_gib=None) for i in range(2))
    request = on_a30(*unknown, sharing="fractional", objective=objective)
    tenants = tuple(replace(tenant, memory_gib=None) for tenant in item.tenants)
    forged = changed(outcome, 0, slices=(replace(item, tenants=tenants),))
    forged = replace(forged, request_sha256=plan(request).request_sha256)
    refused(request, forged, "shares a slice, and its memory is unknown")


def test_model_and_objective_tampering():
    request = published()
    outcome = plan(request)
    models = list(outcome.models)
    models[0] = replace(models[0], throughput_rps=models[0].throughput_rps * 2)
    refused(request, replace(outcome, models=tuple(models)), "throughput")
    models[0] = replace(outcome.models[0], latency_ms=1.0)
    refused(request, replace(outcome, models=tuple(models)), "latency")
    models[0] = replace(outcome.models[0], variant="cut")
    refused(request, replace(outcome, models=tuple(models)), "variant")
    objective = outcome.objective
    refused(request, replace(outcome, objective=replace(objective, value=9.0)), "objective")
    refused(request, replace(outcome, objective=replace(objective, bound=5.0)), "beyond its bound")
    refused(request, replace(outcome, objective=replace(objective, gap=0.5)), "gap")
    refused(request, replace(outcome, objective=replace(objective, proven_levels=2)), "optimal")
    refused(request, replace(outcome, request_sha256="0"), "another request")
    refused(request, replace(outcome, status="timeout"), "is timeout, and has GPUs, models or a value")


def test_demands_and_colocation():
    request = published()
    outcome = plan(request)

    def forged(asked):
        return replace(outcome, request_sha256=plan(asked).request_sha256)

    higher = with_model(request, 0, min_throughput_rps=72.0)
    refused(higher, forged(higher), "below its minimum 72")
    quicker = with_model(request, 0, max_latency_ms=5.0)
    refused(quicker, forged(quicker), "above the limit 5 ms")
    apart = [m.name for m in request.models if not _together(outcome, "audio recognition", m.name)]
    together = replace(request, colocations=(Colocation(("audio recognition", apart[0])),))
    refused(together, forged(together), "are to be on the same GPUs")


def _together(outcome: PlanOutcome, first: str, second: str) -> bool:
    def places(name):
        return {gpu.id for gpu in outcome.gpus for s in gpu.slices for t in s.tenants if t.model == name}

    return places(first) == places(second)


def test_two_variants_or_a_missing_stage():
    request, outcome = _cut()
    gpu = outcome.gpus[0]
    lone = tuple(
        replace(item, tenants=tuple(t for t in item.tenants if t.stage != "second")) for item in gpu.slices
    )
    refused(request, changed(outcome, 0, slices=lone), "no instance")
    mixed = tuple(
        replace(item, tenants=tuple(_whole(t) for t in item.tenants)) if number == 0 else item
        for number, item in enumerate(gpu.slices)
    )
    refused(request, changed(outcome, 0, slices=mixed), "variants")


def test_a_cut_model_has_the_rate_of_its_slowest_stage_and_the_bytes_of_all_cuts():
    """4,000 bytes a batch and 7 a request cross the cut, in batches of 4; the first stage is twice as fast."""
    stages = tuple(
        Stage(name, (Point(A30, "2g.12gb", 4, rate, 20.0),))
        for name, rate in (("first", 60.0), ("second", 30.0))
    )
    request = replace(
        cut_wins(),
        models=(PlanModel("bert", (Variant("cut", stages, (4000.0,), cut_bytes_per_request=(7.0,)),)),),
    )
    outcome = plan(request)
    (model,) = outcome.models
    assert not list(violations(request, outcome))
    assert (model.throughput_rps, model.bytes_across_cuts_per_s) == pytest.approx((30.0, 30.0 * 1007.0))
    fast = replace(model, throughput_rps=60.0, normalised=60.0)
    refused(request, replace(outcome, models=(fast,)), "claims the throughput 60.0, and it is 30.0")
    more = replace(model, bytes_across_cuts_per_s=30.0 * 1008.0)
    refused(request, replace(outcome, models=(more,)), "claims the bytes across cuts 30240.0")


def _whole(tenant: Tenant) -> Tenant:
    return replace(tenant, variant="whole", stage="whole", throughput_rps=10.0)


def _cut() -> tuple[PlanRequest, PlanOutcome]:
    request = cut_wins()
    outcome = plan(request)
    assert isinstance(outcome.gpus[0], PlannedGpu)
    return request, outcome
