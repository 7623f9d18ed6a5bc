"""One change of a request at a time: a demand dropped or eased, a GPU more or fewer, a layout forced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.request.fleet import FleetGpu, list_gpus
from torchsplit_core.planning.request.objective import goal_of
from torchsplit_core.planning.request.ties import flows_of, members_of, separation_bytes
from torchsplit_core.planning.request.validate import MAX_GPUS
from torchsplit_core.values import (
    CPU,
    ChangeEffect,
    Colocation,
    FleetEntry,
    PlanModel,
    PlanRequest,
    point_type,
)

EASED = 0.1
"""The share by which a minimum is lowered or a latency limit raised."""

LINK_EASED = 2.0
"""By what the link and the network are made faster."""

Apply = Callable[[PlanRequest], PlanRequest]


@dataclass(frozen=True)
class Change:
    """What is changed in words (`spec`), and how. A change of the fleet changes `gpus` alone."""

    spec: ChangeEffect
    apply: Apply


def drops(request: PlanRequest) -> tuple[Change, ...]:
    """Every demand and limit that the request puts on a model, each to be dropped alone."""
    found: list[Change] = []
    for model in request.models:
        if model.min_throughput_rps:
            found.append(_of_model(model, "min_throughput_rps", model.min_throughput_rps, None))
        if model.max_latency_ms is not None:
            found.append(_of_model(model, "max_latency_ms", model.max_latency_ms, None))
        if model.cap_at_demand:
            spec = ChangeEffect("cap_at_demand", "not_examined", old=model.demand_rps, model=model.name)
            found.append(Change(spec, _on(model.name, lambda item: replace(item, cap_at_demand=False))))
        if memory_counts(request, model):
            spec = ChangeEffect("memory", "not_examined", model=model.name)
            found.append(Change(spec, _on(model.name, _without_memory)))
    for item in dict.fromkeys(request.colocations):
        if item.mode == "hard" or request.objective.separation_weight > 0:
            spec = ChangeEffect("colocation", "not_examined", models=item.models)

            def apart(asked: PlanRequest, gone: object = item) -> PlanRequest:
                left = tuple(other for other in asked.colocations if other != gone)
                objective = asked.objective
                if not any(other.mode != "hard" for other in left):
                    # No separation is left to pay for.
                    objective = replace(objective, separation_weight=0.0)
                return replace(asked, colocations=left, objective=objective)

            found.append(Change(spec, apart))
    if request.sharing == "fractional" and request.max_tenants_per_slice is not None:
        spec = ChangeEffect("max_tenants_per_slice", "not_examined", old=float(request.max_tenants_per_slice))
        found.append(Change(spec, lambda asked: replace(asked, max_tenants_per_slice=None)))
    # Behind the co-locations, which they reword.
    for model in request.models:
        if link_counts(request, model):
            spec = ChangeEffect("link", "not_examined", old=_slowest(request), model=model.name)
            found.append(Change(spec, _without_transfers(model.name)))
    return tuple(found)


def eased(request: PlanRequest) -> tuple[Change, ...]:
    """Each minimum lowered and each latency limit raised by a tenth, and the link twice as fast, one at a time."""
    found = []
    for model in request.models:
        least, limit = model.min_throughput_rps, model.max_latency_ms
        if least:
            found.append(_of_model(model, "min_throughput_rps", least, least * (1 - EASED)))
        if limit is not None:
            found.append(_of_model(model, "max_latency_ms", limit, limit * (1 + EASED)))
    if any(link_counts(request, model) for model in request.models):
        slowest = _slowest(request)
        spec = ChangeEffect("link", "not_examined", slowest, LINK_EASED * slowest)
        found.append(Change(spec, _faster_link))
    return tuple(found)


def buckets(request: PlanRequest) -> tuple[tuple[FleetGpu, tuple[int, ...]], ...]:
    """GPUs that are the same to the request, with their indices in the fleet, in the order of appearance."""
    by_cost = goal_of(request).by_cost
    found: dict[tuple[object, ...], tuple[FleetGpu, list[int]]] = {}
    for index, gpu in enumerate(list_gpus(request.gpus)):
        key = (gpu.type, gpu.layouts, gpu.cost if by_cost else None, gpu.node)
        found.setdefault(key, (gpu, []))[1].append(index)
    return tuple((gpu, tuple(indices)) for gpu, indices in found.values())


def one_more(request: PlanRequest) -> tuple[Change, ...]:
    """One more GPU like those of each bucket. None where the fleet is as large as a plan takes."""
    known = buckets(request)
    if sum(len(indices) for _, indices in known) >= MAX_GPUS:
        return ()
    found = []
    for gpu, indices in known:
        entry = FleetEntry(gpu.type, layouts=gpu.layouts, cost=gpu.price, node=gpu.node)
        count = float(len(indices))
        spec = ChangeEffect("gpu", "not_examined", count, count + 1, gpu_type=gpu.type, gpu_id=gpu.id)

        def added(asked: PlanRequest, entry: FleetEntry = entry) -> PlanRequest:
            return replace(asked, gpus=(*asked.gpus, entry))

        found.append(Change(spec, added))
    return tuple(found)


def one_fewer(request: PlanRequest) -> tuple[tuple[Change, tuple[int, ...]], ...]:
    """One GPU fewer of each bucket, with the indices of the bucket; not the last GPU of a fleet."""
    known = buckets(request)
    if sum(len(indices) for _, indices in known) <= 1:
        return ()
    found = []
    for gpu, indices in known:
        count = float(len(indices))
        spec = ChangeEffect("gpu", "not_examined", count, count - 1, gpu_type=gpu.type, gpu_id=gpu.id)
        found.append((Change(spec, _fleet_without(indices[-1])), indices))
    return tuple(found)


def forced(request: PlanRequest, gpu: FleetGpu, index: int, layout: Sequence[str]) -> Change:
    """The GPU of this index offered this layout alone."""
    spec = ChangeEffect("layout", "not_examined", gpu_type=gpu.type, gpu_id=gpu.id, layout=tuple(layout))
    entry = gpu.entry((tuple(layout),))

    def only(asked: PlanRequest) -> PlanRequest:
        fewer = _fleet_without(index)(asked)
        return replace(fewer, gpus=(*fewer.gpus, entry))

    return Change(spec, only)


def only_gpus(request: PlanRequest, indices: Sequence[int]) -> PlanRequest:
    """The request with these GPUs of its fleet alone, without their ids."""
    fleet = list_gpus(request.gpus)
    kept: dict[FleetEntry, int] = {}
    for index in indices:
        gpu = fleet[index]
        entry = gpu.entry()
        kept[entry] = kept.get(entry, 0) + 1
    return replace(request, gpus=tuple(replace(entry, count=count) for entry, count in kept.items()))


def memory_counts(request: PlanRequest, model: PlanModel) -> bool:
    """Whether the memory of the model's points can make any difference to a plan.

    Alone on a slice that is large enough it makes none; co-tenants' memory adds up.
    """
    types = {point_type(entry.type) for entry in request.gpus}
    for _, variant in model.allowed_variants:
        for stage in variant.stages:
            for point in stage.points:
                if point.gpu_type not in types or not point.memory_gib:
                    continue
                size = (
                    None
                    if point.gpu_type == CPU
                    else gpu_type(point.gpu_type).profile(point.profile).memory_gib
                )
                if request.sharing == "fractional" or (size is not None and point.memory_gib > size):
                    return request.objective.memory_violation_penalty != 0
    return False


def link_counts(request: PlanRequest, model: PlanModel) -> bool:
    """Whether some way to run the model sends bytes over a link of a known speed."""
    if request.link_gb_per_s is None and request.network_gb_per_s is None:
        return False
    return any(any((*v.cut_bytes, *v.cut_bytes_per_request)) for _, v in model.allowed_variants)


def _slowest(request: PlanRequest) -> float:
    """GB/s of the slower one of link and network; one of them is given."""
    return min(speed for speed in (request.link_gb_per_s, request.network_gb_per_s) if speed is not None)


def _faster_link(asked: PlanRequest) -> PlanRequest:
    link, network = asked.link_gb_per_s, asked.network_gb_per_s
    return replace(
        asked,
        link_gb_per_s=None if link is None else LINK_EASED * link,
        network_gb_per_s=None if network is None else LINK_EASED * network,
    )


def _without_transfers(name: str) -> Apply:
    """Cuts of the model that carry nothing; what separations of its stages weigh stays as it was."""

    def apply(asked: PlanRequest) -> PlanRequest:
        pairs = tuple(weighed for item in asked.colocations for weighed in _weighed(asked, item))
        return _on(name, _without_bytes)(replace(asked, colocations=pairs))

    return apply


def _weighed(asked: PlanRequest, item: Colocation) -> tuple[Colocation, ...]:
    """The co-location with its bytes said where it leaves them to cuts; a routed one step by step, each has its own."""
    if item.mode == "routed":
        flows = flows_of(replace(asked, colocations=(item,)))
        steps = zip(pairwise(item.models), flows, strict=True)
        return tuple(Colocation(names, "routed", flow.bytes_per_request) for names, flow in steps)
    members = members_of(asked.models, item, "colocations")
    return (replace(item, bytes_per_request=separation_bytes(asked.models, item, members)),)


def _without_bytes(model: PlanModel) -> PlanModel:
    return replace(
        model,
        variants=tuple(
            replace(variant, cut_bytes=(0.0,) * len(variant.cut_bytes), cut_bytes_per_request=())
            for variant in model.variants
        ),
    )


def _fleet_without(index: int) -> Apply:
    def fewer(asked: PlanRequest) -> PlanRequest:
        count = len(list_gpus(asked.gpus))
        return only_gpus(asked, [other for other in range(count) if other != index])

    return fewer


def _of_model(model: PlanModel, what: str, old: float, new: float | None) -> Change:
    spec = ChangeEffect(what, "not_examined", old, new, model=model.name)  # type: ignore[arg-type]
    if what == "min_throughput_rps":
        return Change(spec, _on(model.name, lambda item: replace(item, min_throughput_rps=new)))
    return Change(spec, _on(model.name, lambda item: replace(item, max_latency_ms=new)))


def _on(name: str, edit: Callable[[PlanModel], PlanModel]) -> Apply:
    def apply(asked: PlanRequest) -> PlanRequest:
        models = tuple(edit(model) if model.name == name else model for model in asked.models)
        return replace(asked, models=models)

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
