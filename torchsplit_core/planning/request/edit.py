"""Edits of a request: models added, variants allowed, cuts offered, points measured, demands relaxed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchsplit_core.planning.request.build import build_request, model_name, model_names
from torchsplit_core.planning.request.fleet import is_unpartitioned
from torchsplit_core.planning.request.frontend_costs import with_frontend_costs
from torchsplit_core.planning.request.validate import MAX_GPUS, check_minima, validate
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
    """Each profile by the model name that a request of all of them uses."""
    return dict(zip(model_names(profiles), profiles, strict=True))


def is_model_of(model: PlanModel, profile: Profile) -> bool:
    """Whether a request's model is the profile's: by source, or by name if the request has no source.

    Models with the same short name may differ: the measured library's bert is not the sample of that name.
    """
    return model.source == profile.source if model.source else model.name == model_name(profile)


def profiles_of(request: PlanRequest, profiles: Sequence[Profile]) -> dict[str, Profile]:
    """The profile of each of the request's models, by name; the first if several match."""
    pairs = (
        (model, next((candidate for candidate in profiles if is_model_of(model, candidate)), None))
        for model in request.models
    )
    return {model.name: profile for model, profile in pairs if profile is not None}


def with_models(request: PlanRequest, names: Sequence[str], profiles: Mapping[str, Profile]) -> PlanRequest:
    """Adds models of the workspace's profiles with the default demand."""
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
    """A request for these models on `count` GPUs of one type. Raises InputFault without models."""
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
    """Adds points for GPU types (or whole GPUs) that are new in the fleet, from the models' `profiles_of`."""
    models, added = [], False
    for model in request.models:
        covered = {(point.gpu_type, point.profile == WHOLE_GPU) for point in model.points}
        distinct_entries = dict.fromkeys(
            FleetEntry(type=entry.type, mig=not is_unpartitioned(entry)) for entry in request.gpus
        )
        fleet = sorted(
            (entry for entry in distinct_entries if (point_type(entry.type), not entry.mig) not in covered),
            key=lambda entry: (entry.type, entry.mig),
        )
        profile = profiles.get(model.name)
        if fleet and profile is not None:
            cuts = [outcome for outcome in partitions if is_partition_of(outcome, profile)]
            model = _merge_points(model, build_request([profile], fleet, candidates=cuts).models[0])
            added = True
        models.append(model)
    request = replace(request, models=tuple(models))
    return with_frontend_costs(request, profiles) if added else request


def with_stages(request: PlanRequest, change: Callable[[PlanModel, Variant, Stage], Stage]) -> PlanRequest:
    """The request with `change` applied to every stage of every variant of every model."""
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
    """Offer a model's cuts to the planner in place of earlier ones; cuts that were forbidden stay forbidden.

    A missing model is added, under another name if its name is taken. A request without a link gets that of the cuts.
    """
    names = model_names([profile], {model.name for model in request.models})
    demands = dict.fromkeys(names, DEFAULT_DEMAND_RPS)
    new = build_request([profile], request.gpus, candidates=[outcome], demands=demands, names=names)
    request = replace(request, link_gb_per_s=request.link_gb_per_s or new.link_gb_per_s)
    built = new.models[0]
    if not any(is_model_of(model, profile) for model in request.models):
        return replace(request, models=(*request.models, built))
    cuts = tuple(variant for variant in built.variants if len(variant.stages) > 1)

    def with_new_cuts(model: PlanModel) -> PlanModel:
        whole = (variant for variant in model.variants if len(variant.stages) == 1)
        forbidden = {_cut_key(variant) for variant in model.variants if not variant.allowed}
        new_cuts = (replace(variant, allowed=_cut_key(variant) not in forbidden) for variant in cuts)
        return replace(model, variants=(*whole, *new_cuts), source=model.source or built.source)

    return replace(
        request,
        models=tuple(
            with_new_cuts(model) if is_model_of(model, profile) else model for model in request.models
        ),
    )


def with_relaxation(request: PlanRequest, changes: Sequence[Relaxation]) -> PlanRequest:
    """The request with the least relaxation applied."""
    models = {model.name: model for model in request.models}
    for change in changes:
        relaxed: dict[str, Any] = {change.demand: change.new}
        models[change.model] = replace(models[change.model], **relaxed)
    return replace(request, models=tuple(models[model.name] for model in request.models))


def with_more_gpus(request: PlanRequest, index: int, extra: int) -> PlanRequest | None:
    """The request with `extra` GPUs like those of the entry at `index`; None if a plan cannot have so many."""
    if sum(entry.count for entry in request.gpus) + extra > MAX_GPUS:
        return None
    gpus, entry = list(request.gpus), request.gpus[index]
    # An entry with an id is a single GPU: more of them need another entry.
    if entry.id is None:
        gpus[index] = replace(entry, count=entry.count + extra)
    else:
        gpus.append(replace(entry, id=None, count=extra))
    return replace(request, gpus=tuple(gpus))


def with_demands_as_minima(request: PlanRequest) -> PlanRequest:
    """The request with each model's demand as its minimum, if it has none."""
    models = (
        model if model.min_throughput_rps else replace(model, min_throughput_rps=model.demand_rps)
        for model in request.models
    )
    return replace(request, models=tuple(models))


def with_response_limits(request: PlanRequest) -> PlanRequest:
    """The request with each model's service-time limit as its response limit, if it has none."""
    models = (
        model if model.max_response_ms is not None else replace(model, max_response_ms=model.max_latency_ms)
        for model in request.models
    )
    return replace(request, models=tuple(models))


def validated_request(request: PlanRequest) -> PlanRequest:
    """The request itself. Raises InputFault if the planner would reject it, so that it is not stored."""
    validate(request)
    check_minima(request)
    return request


def is_partition_of(outcome: PartitionOutcome, profile: Profile) -> bool:
    """Whether the cuts are of this profile's model."""
    if outcome.architecture_hash:
        return outcome.architecture_hash == profile.architecture_hash
    return bool(outcome.source) and outcome.source == profile.source


def _cut_key(variant: Variant) -> tuple[object, ...]:
    """Identity of a variant's cut."""
    names = tuple(stage.name for stage in variant.stages)
    return variant.name, variant.cut_bytes, variant.cut_bytes_per_request, names


def _merge_points(model: PlanModel, built: PlanModel) -> PlanModel:
    """The model with the built points added to stages of the same name and cut."""
    new_stages: dict[tuple[object, ...], Stage] = {
        (*_cut_key(variant), stage.name): stage for variant in built.variants for stage in variant.stages
    }

    def merge_variant(variant: Variant) -> Variant:
        return replace(
            variant,
            stages=tuple(
                replace(stage, points=(*stage.points, *new_stage.points))
                if (new_stage := new_stages.get((*_cut_key(variant), stage.name)))
                else stage
                for stage in variant.stages
            ),
        )

    variants = tuple(merge_variant(variant) for variant in model.variants)
    return replace(model, variants=variants, source=model.source or built.source)
