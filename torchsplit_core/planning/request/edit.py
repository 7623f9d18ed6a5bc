"""A request changed: models added, allowed, cut, measured anew, a demand relaxed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchsplit_core.planning.request.build import build_request, model_name, model_names
from torchsplit_core.planning.request.fleet import left_whole
from torchsplit_core.planning.request.front import with_costs
from torchsplit_core.planning.request.validate import MAX_GPUS, check_owed, validate
from torchsplit_core.values import (
    WHOLE_GPU,
    FleetEntry,
    PartitionOutcome,
    PlanModel,
    PlanRequest,
    Profile,
    Relaxation,
    Stage,
    Variant,
    point_type,
)

DEFAULT_DEMAND_RPS = 100.0


def profiles_by_model(profiles: Sequence[Profile]) -> dict[str, Profile]:
    """Each profile under the model name that a request of all of them uses."""
    return dict(zip(model_names(profiles), profiles, strict=True))


def is_of(model: PlanModel, profile: Profile) -> bool:
    """Whether a request's model is the profile's: by its source, and by name where the request says none.

    Models of one short name may be others: the measured library's bert is not the sample of that name.
    """
    return model.source == profile.source if model.source else model.name == model_name(profile)


def profiles_of(request: PlanRequest, profiles: Sequence[Profile]) -> dict[str, Profile]:
    """By the names of a request's models the profile that each is of, the first where several are."""
    found = ((model, next((one for one in profiles if is_of(model, one)), None)) for model in request.models)
    return {model.name: profile for model, profile in found if profile is not None}


def several_ways(request: PlanRequest) -> tuple[PlanModel, ...]:
    """The models with more than one variant: those that have a choice of what to allow."""
    return tuple(model for model in request.models if len(model.variants) > 1)


def with_allowed(request: PlanRequest, allowed: Mapping[str, Sequence[str]]) -> PlanRequest:
    """The request with these variants of each model named allowed, and no others of it; all of them stay."""
    return replace(
        request,
        models=tuple(
            replace(
                model,
                variants=tuple(replace(v, allowed=v.name in allowed[model.name]) for v in model.variants),
            )
            if model.name in allowed
            else model
            for model in request.models
        ),
    )


def with_added(request: PlanRequest, names: Sequence[str], profiles: Mapping[str, Profile]) -> PlanRequest:
    """More models of the workspace's profiles, each asking for a demand until the user says otherwise."""
    if not names:
        return request
    added = build_request(
        [profiles[name] for name in names],
        request.gpus,
        demands=dict.fromkeys(names, DEFAULT_DEMAND_RPS),
        names=names,
    )
    return replace(request, models=(*request.models, *added.models), front=request.front or added.front)


def new_request(names: Sequence[str], profiles: Mapping[str, Profile], kind: str, count: int) -> PlanRequest:
    """A request for these models on `count` GPUs of one type. Raises InputFault where no model is named."""
    fleet = (FleetEntry(type=kind, count=count),)
    return build_request(
        [profiles[name] for name in names],
        fleet,
        demands=dict.fromkeys(names, DEFAULT_DEMAND_RPS),
        names=names,
    )


def with_points(
    request: PlanRequest, profiles: Mapping[str, Profile], partitions: Sequence[PartitionOutcome]
) -> PlanRequest:
    """Points for GPU types (or whole GPUs) that are new in the fleet, from the models' profiles (`profiles_of`)."""
    models, added = [], False
    for model in request.models:
        has = {
            (p.gpu_type, p.profile == WHOLE_GPU)
            for variant in model.variants
            for stage in variant.stages
            for p in stage.points
        }
        alike = dict.fromkeys(
            FleetEntry(type=entry.type, mig=not left_whole(entry)) for entry in request.gpus
        )
        fleet = sorted(
            (one for one in alike if (point_type(one.type), not one.mig) not in has),
            key=lambda one: (one.type, one.mig),
        )
        profile = profiles.get(model.name)
        if fleet and profile is not None:
            cuts = [outcome for outcome in partitions if belongs(outcome, profile)]
            model = _merged(model, build_request([profile], fleet, candidates=cuts).models[0])
            added = True
        models.append(model)
    request = replace(request, models=tuple(models))
    return with_costs(request, profiles) if added else request


def with_stages(request: PlanRequest, change: Callable[[PlanModel, Variant, Stage], Stage]) -> PlanRequest:
    """Every stage of every variant of every model as `change` gives it back."""
    models = tuple(
        replace(
            model,
            variants=tuple(
                replace(variant, stages=tuple(change(model, variant, stage) for stage in variant.stages))
                for variant in model.variants
            ),
        )
        for model in request.models
    )
    return replace(request, models=models)


def with_cuts(request: PlanRequest, profile: Profile, outcome: PartitionOutcome) -> PlanRequest:
    """Offer a model's cuts to the planner, in place of those offered before; a model not served yet is added, by
    another name where one that is served has its own. A request without a link gets the one that the cuts are for.

    A cut that was offered before and forbidden stays forbidden.
    """
    names = model_names([profile], {model.name for model in request.models})
    demands = dict.fromkeys(names, DEFAULT_DEMAND_RPS)
    new = build_request([profile], request.gpus, candidates=[outcome], demands=demands, names=names)
    request = replace(request, link_gb_per_s=request.link_gb_per_s or new.link_gb_per_s)
    built = new.models[0]
    if not any(is_of(model, profile) for model in request.models):
        return replace(request, models=(*request.models, built))
    cuts = tuple(variant for variant in built.variants if len(variant.stages) > 1)

    def offered(model: PlanModel) -> PlanModel:
        whole = (variant for variant in model.variants if len(variant.stages) == 1)
        out = {_cut(variant) for variant in model.variants if not variant.allowed}
        again = (replace(variant, allowed=_cut(variant) not in out) for variant in cuts)
        return replace(model, variants=(*whole, *again), source=model.source or built.source)

    return replace(
        request,
        models=tuple(offered(model) if is_of(model, profile) else model for model in request.models),
    )


def with_relaxation(request: PlanRequest, changes: Sequence[Relaxation]) -> PlanRequest:
    """The request with the least relaxation applied."""
    models = {model.name: model for model in request.models}
    for change in changes:
        eased: dict[str, Any] = {change.demand: change.new}
        models[change.model] = replace(models[change.model], **eased)
    return replace(request, models=tuple(models[model.name] for model in request.models))


def with_more_gpus(request: PlanRequest, place: int, more: int) -> PlanRequest | None:
    """The request with so many GPUs more like those of the entry at a place; None beyond what a plan takes."""
    if sum(entry.count for entry in request.gpus) + more > MAX_GPUS:
        return None
    gpus, entry = list(request.gpus), request.gpus[place]
    # An entry with an id of its own is one GPU: those like it are another entry.
    if entry.id is None:
        gpus[place] = replace(entry, count=entry.count + more)
    else:
        gpus.append(replace(entry, id=None, count=more))
    return replace(request, gpus=tuple(gpus))


def with_demands_as_minima(request: PlanRequest) -> PlanRequest:
    """The request with its demand as the minimum of every model that has none."""
    models = (
        model if model.min_throughput_rps else replace(model, min_throughput_rps=model.demand_rps)
        for model in request.models
    )
    return replace(request, models=tuple(models))


def with_limits_of_the_response(request: PlanRequest) -> PlanRequest:
    """The request with its service-time limit also as the limit of the response, of every model without one."""
    models = (
        model if model.max_response_ms is not None else replace(model, max_response_ms=model.max_latency_ms)
        for model in request.models
    )
    return replace(request, models=tuple(models))


def checked(request: PlanRequest) -> PlanRequest:
    """The request itself. Raises InputFault where the planner would refuse it, so that nothing is stored."""
    validate(request)
    check_owed(request)
    return request


def belongs(outcome: PartitionOutcome, profile: Profile) -> bool:
    """Whether the cuts are of this profile's model."""
    if outcome.architecture_hash:
        return outcome.architecture_hash == profile.architecture_hash
    return bool(outcome.source) and outcome.source == profile.source


def _cut(variant: Variant) -> tuple[object, ...]:
    """What makes two variants the same cut."""
    names = tuple(stage.name for stage in variant.stages)
    return variant.name, variant.cut_bytes, variant.cut_bytes_per_request, names


def _merged(model: PlanModel, built: PlanModel) -> PlanModel:
    """The model with the built points added to stages of the same name and cut."""
    more: dict[tuple[object, ...], Stage] = {
        (*_cut(variant), stage.name): stage for variant in built.variants for stage in variant.stages
    }

    def grown(variant: Variant) -> Variant:
        return replace(
            variant,
            stages=tuple(
                replace(stage, points=(*stage.points, *found.points))
                if (found := more.get((*_cut(variant), stage.name)))
                else stage
                for stage in variant.stages
            ),
        )

    variants = tuple(grown(variant) for variant in model.variants)
    return replace(model, variants=variants, source=model.source or built.source)
