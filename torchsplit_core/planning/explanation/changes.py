"""Single changes of a request: a demand dropped or relaxed, a GPU more or fewer, a layout forced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.request.colocation_index import flows_of, members_of, separation_bytes
from torchsplit_core.planning.request.fleet import FleetGpu, list_gpus
from torchsplit_core.planning.request.objective import goal_of
from torchsplit_core.planning.request.validate import MAX_GPUS
from torchsplit_core.values import (
    CPU,
    ChangeEffect,
    Colocation,
    EngineReason,
    FleetEntry,
    PlanModel,
    PlanRequest,
    point_type,
)

RELAXED_SHARE = 0.1
"""The share by which a minimum is lowered or a latency limit raised."""

LINK_FACTOR = 2.0
"""The factor by which link and network are made faster."""

Apply = Callable[[PlanRequest], PlanRequest]


@dataclass(frozen=True)
class Change:
    """A change in words (`spec`), and how to apply it. A change of the fleet changes `gpus` alone."""

    spec: ChangeEffect
    apply: Apply


@dataclass(frozen=True)
class EngineQuestions:
    """What an explanation asks of a request's LLMs, whose answers need engines simulated (`engine_plans`).

    `eased`: a limit larger by RELAXED_SHARE. `places`: each kind of place with the change that puts all engines of its
    model there, None where no plan tells more than the reason does.
    """

    eased: tuple[Change, ...] = ()
    places: tuple[tuple[EngineReason, Change | None], ...] = ()


def without_demand(request: PlanRequest) -> tuple[Change, ...]:
    """Every demand and limit that the request sets, each to be dropped alone."""
    changes: list[Change] = []
    for model in request.models:
        if model.min_throughput_rps:
            changes.append(_model_change(model, "min_throughput_rps", model.min_throughput_rps, None))
        if model.max_latency_ms is not None:
            changes.append(_model_change(model, "max_latency_ms", model.max_latency_ms, None))
        if model.cap_at_demand:
            spec = ChangeEffect("cap_at_demand", "not_examined", old=model.demand_rps, model=model.name)
            changes.append(
                Change(spec, edit_model(model.name, lambda item: replace(item, cap_at_demand=False)))
            )
        if memory_matters(request, model):
            spec = ChangeEffect("memory", "not_examined", model=model.name)
            changes.append(Change(spec, edit_model(model.name, _without_memory)))
    for item in dict.fromkeys(request.colocations):
        if item.mode == "hard" or request.objective.separation_weight > 0:
            spec = ChangeEffect("colocation", "not_examined", models=item.models)

            def without_colocation(changed: PlanRequest, dropped: object = item) -> PlanRequest:
                remaining = tuple(other for other in changed.colocations if other != dropped)
                objective = changed.objective
                if not any(other.mode != "hard" for other in remaining):
                    # No separation is left to pay for.
                    objective = replace(objective, separation_weight=0.0)
                return replace(changed, colocations=remaining, objective=objective)

            changes.append(Change(spec, without_colocation))
    if request.sharing == "fractional" and request.max_tenants_per_slice is not None:
        spec = ChangeEffect("max_tenants_per_slice", "not_examined", old=float(request.max_tenants_per_slice))
        changes.append(Change(spec, lambda edited: replace(edited, max_tenants_per_slice=None)))
    # After the co-locations, which they rewrite.
    for model in request.models:
        if link_matters(request, model):
            spec = ChangeEffect("link", "not_examined", old=_slowest_link(request), model=model.name)
            changes.append(Change(spec, _without_transfers(model.name)))
    return tuple(changes)


def apply_all(changes: Sequence[Change], request: PlanRequest) -> PlanRequest:
    """The request with all of these changes, in the order in which they were made."""
    for change in changes:
        request = change.apply(request)
    return request


def relaxed_demand(request: PlanRequest) -> tuple[Change, ...]:
    """Each minimum lowered and each latency limit raised by a tenth, and the link twice as fast, each alone."""
    changes = []
    for model in request.models:
        least, limit = model.min_throughput_rps, model.max_latency_ms
        if least:
            changes.append(_model_change(model, "min_throughput_rps", least, least * (1 - RELAXED_SHARE)))
        if limit is not None:
            changes.append(_model_change(model, "max_latency_ms", limit, limit * (1 + RELAXED_SHARE)))
    if any(link_matters(request, model) for model in request.models):
        slowest = _slowest_link(request)
        spec = ChangeEffect("link", "not_examined", slowest, LINK_FACTOR * slowest)
        changes.append(Change(spec, _faster_link))
    return tuple(changes)


def gpu_classes(request: PlanRequest) -> tuple[tuple[FleetGpu, tuple[int, ...]], ...]:
    """GPUs alike to the request, with their indices in the fleet, in order of appearance."""
    by_cost = goal_of(request).by_cost
    by_key: dict[tuple[object, ...], tuple[FleetGpu, list[int]]] = {}
    for index, gpu in enumerate(list_gpus(request.gpus)):
        key = (gpu.type, gpu.layouts, gpu.either, gpu.cost if by_cost else None, gpu.node)
        by_key.setdefault(key, (gpu, []))[1].append(index)
    return tuple((gpu, tuple(indices)) for gpu, indices in by_key.values())


def add_gpu(request: PlanRequest) -> tuple[Change, ...]:
    """One more GPU of each class. Empty if the fleet has the most GPUs that a plan takes."""
    classes = gpu_classes(request)
    if sum(len(indices) for _, indices in classes) >= MAX_GPUS:
        return ()
    changes = []
    for gpu, indices in classes:
        entry = gpu.entry()
        count = float(len(indices))
        spec = ChangeEffect("gpu", "not_examined", count, count + 1, gpu_type=gpu.type, gpu_id=gpu.id)

        def add_entry(changed: PlanRequest, entry: FleetEntry = entry) -> PlanRequest:
            return replace(changed, gpus=(*changed.gpus, entry))

        changes.append(Change(spec, add_entry))
    return tuple(changes)


def remove_gpu(request: PlanRequest) -> tuple[tuple[Change, tuple[int, ...]], ...]:
    """One GPU fewer of each class, with the indices of the class; never the last GPU of a fleet."""
    classes = gpu_classes(request)
    if sum(len(indices) for _, indices in classes) <= 1:
        return ()
    changes = []
    for gpu, indices in classes:
        count = float(len(indices))
        spec = ChangeEffect("gpu", "not_examined", count, count - 1, gpu_type=gpu.type, gpu_id=gpu.id)
        changes.append((Change(spec, _remove_gpu_at(indices[-1])), indices))
    return tuple(changes)


def force_layout(request: PlanRequest, gpu: FleetGpu, index: int, layout: Sequence[str]) -> Change:
    """The GPU of this index with this layout as its only one, without MIG if that is empty."""
    spec = ChangeEffect("layout", "not_examined", gpu_type=gpu.type, gpu_id=gpu.id, layout=tuple(layout))
    entry = gpu.entry((tuple(layout),)) if layout else replace(gpu.entry(), layouts=None, mig=False)

    def offer_layout(changed: PlanRequest) -> PlanRequest:
        fewer = _remove_gpu_at(index)(changed)
        return replace(fewer, gpus=(*fewer.gpus, entry))

    return Change(spec, offer_layout)


def only_gpus(request: PlanRequest, indices: Sequence[int]) -> PlanRequest:
    """The request with these GPUs of its fleet only, without their ids."""
    fleet = list_gpus(request.gpus)
    counts: dict[FleetEntry, int] = {}
    for index in indices:
        gpu = fleet[index]
        entry = gpu.entry()
        counts[entry] = counts.get(entry, 0) + 1
    return replace(request, gpus=tuple(replace(entry, count=count) for entry, count in counts.items()))


def memory_matters(request: PlanRequest, model: PlanModel) -> bool:
    """Whether the memory of the model's points can affect a plan.

    Alone on a slice that is large enough it cannot; with co-tenants memory adds up.
    """
    types = {point_type(entry.type) for entry in request.gpus}
    for point in model.allowed_points:
        if point.gpu_type not in types or not point.memory_gib:
            continue
        size = None if point.gpu_type == CPU else gpu_type(point.gpu_type).profile(point.profile).memory_gib
        if request.sharing == "fractional" or (size is not None and point.memory_gib > size):
            return request.objective.memory_violation_penalty != 0
    return False


def link_matters(request: PlanRequest, model: PlanModel) -> bool:
    """Whether some variant of the model sends bytes over a link of known speed."""
    if request.link_gb_per_s is None and request.network_gb_per_s is None:
        return False
    return any(any((*v.cut_bytes, *v.cut_bytes_per_request)) for _, v in model.allowed_variants)


def _slowest_link(request: PlanRequest) -> float:
    """GB/s of the slower of link and network; one of them is given."""
    return min(speed for speed in (request.link_gb_per_s, request.network_gb_per_s) if speed is not None)


def _faster_link(changed: PlanRequest) -> PlanRequest:
    link, network = changed.link_gb_per_s, changed.network_gb_per_s
    return replace(
        changed,
        link_gb_per_s=None if link is None else LINK_FACTOR * link,
        network_gb_per_s=None if network is None else LINK_FACTOR * network,
    )


def _without_transfers(name: str) -> Apply:
    """Cuts of the model carry nothing; the bytes of separated stages stay."""

    def apply(changed: PlanRequest) -> PlanRequest:
        pairs = tuple(
            colocation for item in changed.colocations for colocation in _with_explicit_bytes(changed, item)
        )
        return edit_model(name, _without_bytes)(replace(changed, colocations=pairs))

    return apply


def _with_explicit_bytes(request: PlanRequest, item: Colocation) -> tuple[Colocation, ...]:
    """The co-location with the bytes that its cuts imply; a routed one step by step, as each step has its own."""
    if item.mode == "routed":
        flows = flows_of(replace(request, colocations=(item,)))
        steps = zip(pairwise(item.models), flows, strict=True)
        return tuple(Colocation(names, "routed", flow.bytes_per_request) for names, flow in steps)
    members = members_of(request.models, item, "colocations")
    return (replace(item, bytes_per_request=separation_bytes(request.models, item, members)),)


def _without_bytes(model: PlanModel) -> PlanModel:
    return replace(
        model,
        variants=tuple(
            replace(variant, cut_bytes=(0.0,) * len(variant.cut_bytes), cut_bytes_per_request=())
            for variant in model.variants
        ),
    )


def _remove_gpu_at(index: int) -> Apply:
    def fewer(changed: PlanRequest) -> PlanRequest:
        count = len(list_gpus(changed.gpus))
        return only_gpus(changed, [other for other in range(count) if other != index])

    return fewer


def _model_change(model: PlanModel, demand: str, old: float, new: float | None) -> Change:
    spec = ChangeEffect(demand, "not_examined", old, new, model=model.name)  # type: ignore[arg-type]
    if demand == "min_throughput_rps":
        return Change(spec, edit_model(model.name, lambda item: replace(item, min_throughput_rps=new)))
    return Change(spec, edit_model(model.name, lambda item: replace(item, max_latency_ms=new)))


def edit_model(name: str, edit: Callable[[PlanModel], PlanModel]) -> Apply:
    def apply(changed: PlanRequest) -> PlanRequest:
        models = tuple(edit(model) if model.name == name else model for model in changed.models)
        return replace(changed, models=models)

    return apply


def _without_memory(model: PlanModel) -> PlanModel:
    return replace(
        model,
        variants=tuple(
            replace(
                variant,
                stages=tuple(
                    replace(stage, points=tuple(replace(point, memory_gib=0.0) for point in stage.points))
                    for stage in variant.stages
                ),
            )
            for variant in model.variants
        ),
    )
