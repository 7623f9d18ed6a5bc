"""Edits of a plan request as the Plan page's tables make them: tables out, request in. No streamlit in here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from app.format.numbers import size
from torchsplit_core.planning.request.build import build_request, model_name
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.values import (
    Colocation,
    FleetEntry,
    InputFault,
    PartitionOutcome,
    PlanModel,
    PlanRequest,
    Profile,
    Relaxation,
    Stage,
    Variant,
)
from torchsplit_core.workflow.steps import DOOR_DEMAND_RPS

TOGETHER = {"hard": "must", "soft": "would rather"}
"""Modes of a pair as people say them."""


def profiles_by_model(profiles: Sequence[Profile]) -> dict[str, Profile]:
    """Each profile under the model name a request uses; the first of a name wins."""
    found: dict[str, Profile] = {}
    for profile in profiles:
        found.setdefault(model_name(profile), profile)
    return found


def fleet_table(request: PlanRequest) -> pd.DataFrame:
    """GPU types and counts, one row an entry."""
    return pd.DataFrame(
        {"type": [entry.type for entry in request.gpus], "count": [entry.count for entry in request.gpus]}
    ).astype({"type": "str", "count": "Int64"})


def models_table(request: PlanRequest) -> pd.DataFrame:
    """Demands, one row a model."""
    rows = [
        {
            "model": model.name,
            "demand": model.demand_rps,
            "limit": model.max_latency_ms,
            "least": model.min_throughput_rps,
            "weight": model.weight,
            "cap": model.cap_at_demand,
        }
        for model in request.models
    ]
    types = {
        "model": "str",
        "demand": "float",
        "limit": "float",
        "least": "float",
        "weight": "float",
        "cap": "bool",
    }
    return pd.DataFrame(rows, columns=list(types)).astype(types)


def pairs_table(request: PlanRequest) -> pd.DataFrame:
    """Models that must or would rather share a GPU."""
    rows = [
        {"models": list(pair.models), "mode": TOGETHER[pair.mode], "megabytes": pair.bytes_per_request / 1e6}
        for pair in request.colocations
    ]
    return pd.DataFrame(rows, columns=["models", "mode", "megabytes"]).astype(
        {"models": "object", "mode": "object", "megabytes": "float"}
    )


def with_fleet(request: PlanRequest, table: pd.DataFrame) -> PlanRequest:
    """The fleet of the table; a row that stood in the request keeps its id, layouts and cost."""
    entries = []
    for index, row in table.iterrows():
        kind, count = row["type"], row["count"]
        if _missing(kind):
            raise InputFault(
                "fleet", "an empty type", "every row names a GPU type", "Choose one, or delete the row."
            )
        if _missing(count) or count < 1:
            raise InputFault(
                f"fleet, {kind}", _told(count), "a count is 1 or more", "Mend it, or delete the row."
            )
        known = isinstance(index, int) and index < len(request.gpus)
        old = (
            request.gpus[index] if known and request.gpus[index].type == kind else FleetEntry(type=str(kind))
        )
        entries.append(replace(old, count=int(count)))
    return replace(request, gpus=tuple(entries))


def with_models(request: PlanRequest, table: pd.DataFrame) -> PlanRequest:
    """The demands of the table; models without a row leave the request, and their pairs with them."""
    by_name = {model.name: model for model in request.models}
    models = []
    for _, row in table.iterrows():
        models.append(
            replace(
                by_name[row["model"]],
                demand_rps=_number(row["model"], "demand", row["demand"]),
                max_latency_ms=_optional(row["limit"]),
                min_throughput_rps=_optional(row["least"]),
                weight=_number(row["model"], "weight", row["weight"]),
                cap_at_demand=bool(row["cap"]),
            )
        )
    left = {model.name for model in models}
    pairs = tuple(pair for pair in request.colocations if left.issuperset(pair.models))
    return replace(request, models=tuple(models), colocations=pairs)


def several_ways(request: PlanRequest) -> tuple[PlanModel, ...]:
    """The models with more than one variant: those that have a choice of what to allow."""
    return tuple(model for model in request.models if len(model.variants) > 1)


def way_label(variant: Variant) -> str:
    """A variant in words: its name, into how many stages it cuts the model, and what crosses the cuts."""
    if len(variant.stages) == 1:
        return variant.name
    return f"{variant.name}: {len(variant.stages)} stages, {size(sum(variant.cut_bytes))} across cuts"


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


def with_pairs(request: PlanRequest, table: pd.DataFrame) -> PlanRequest:
    """The pairs of the table."""
    modes = {words: mode for mode, words in TOGETHER.items()}
    pairs = []
    for _, row in table.iterrows():
        models = row["models"]
        if not isinstance(models, (list, tuple)) or len(models) < 2:
            raise InputFault(
                "together on one GPU",
                _told(models),
                "a row names two models or more",
                "Add one, or delete the row.",
            )
        megabytes = 0.0 if _missing(row["megabytes"]) else float(row["megabytes"])
        mode = modes.get(row["mode"], "hard")
        pairs.append(Colocation(models=tuple(models), mode=mode, bytes_per_request=megabytes * 1e6))  # type: ignore[arg-type]
    return replace(request, colocations=tuple(pairs))


def with_added(request: PlanRequest, names: Sequence[str], profiles: Mapping[str, Profile]) -> PlanRequest:
    """More models of the workspace's profiles, each asking for a demand until the user says otherwise."""
    if not names:
        return request
    added = build_request(
        [profiles[name] for name in names], request.gpus, demands=dict.fromkeys(names, DOOR_DEMAND_RPS)
    )
    return replace(request, models=(*request.models, *added.models))


def new_request(names: Sequence[str], profiles: Mapping[str, Profile], kind: str, count: int) -> PlanRequest:
    """A request for these models on `count` GPUs of one type. Raises InputFault where no model is named."""
    fleet = (FleetEntry(type=kind, count=count),)
    return build_request(
        [profiles[name] for name in names], fleet, demands=dict.fromkeys(names, DOOR_DEMAND_RPS)
    )


def with_points(
    request: PlanRequest, profiles: Mapping[str, Profile], partitions: Sequence[PartitionOutcome]
) -> PlanRequest:
    """Points for GPU types that are new in the fleet, from the workspace's profiles."""
    types = {entry.type for entry in request.gpus}
    models = []
    for model in request.models:
        has = {p.gpu_type for variant in model.variants for stage in variant.stages for p in stage.points}
        missing = sorted(types - has)
        profile = profiles.get(model.name)
        if missing and profile is not None:
            fleet = [FleetEntry(type=kind) for kind in missing]
            cuts = [outcome for outcome in partitions if belongs(outcome, profile)]
            model = _merged(model, build_request([profile], fleet, candidates=cuts).models[0])
        models.append(model)
    return replace(request, models=tuple(models))


def with_cuts(request: PlanRequest, profile: Profile, outcome: PartitionOutcome) -> PlanRequest:
    """Offer a model's cuts to the planner, in place of those offered before; a model not served yet is added.

    A cut that was offered before and forbidden stays forbidden.
    """
    name = model_name(profile)
    built = build_request(
        [profile], request.gpus, candidates=[outcome], demands={name: DOOR_DEMAND_RPS}
    ).models[0]
    if name not in {model.name for model in request.models}:
        return replace(request, models=(*request.models, built))
    cuts = tuple(variant for variant in built.variants if len(variant.stages) > 1)

    def offered(model: PlanModel) -> PlanModel:
        whole = (variant for variant in model.variants if len(variant.stages) == 1)
        out = {_cut(variant) for variant in model.variants if not variant.allowed}
        again = (replace(variant, allowed=_cut(variant) not in out) for variant in cuts)
        return replace(model, variants=(*whole, *again))

    return replace(
        request, models=tuple(offered(model) if model.name == name else model for model in request.models)
    )


def with_relaxation(request: PlanRequest, changes: Sequence[Relaxation]) -> PlanRequest:
    """The request with the least relaxation applied."""
    models = {model.name: model for model in request.models}
    for change in changes:
        models[change.model] = replace(models[change.model], **{change.demand: change.new})
    return replace(request, models=tuple(models[model.name] for model in request.models))


def checked(request: PlanRequest) -> PlanRequest:
    """The request itself. Raises InputFault where the planner would refuse it, so that nothing is stored."""
    validate(request)
    return request


def belongs(outcome: PartitionOutcome, profile: Profile) -> bool:
    """Whether the cuts are of this profile's model."""
    if outcome.architecture_hash:
        return outcome.architecture_hash == profile.architecture_hash
    return bool(outcome.source) and outcome.source == profile.source


def _cut(variant: Variant) -> tuple[object, ...]:
    """What makes two variants the same cut."""
    return variant.name, variant.cut_bytes, tuple(stage.name for stage in variant.stages)


def _merged(model: PlanModel, built: PlanModel) -> PlanModel:
    """The model with the built points added to stages of the same name and cut."""
    more: dict[tuple[str, tuple[float, ...], str], Stage] = {
        (variant.name, variant.cut_bytes, stage.name): stage
        for variant in built.variants
        for stage in variant.stages
    }

    def grown(variant: Variant) -> Variant:
        return replace(
            variant,
            stages=tuple(
                replace(stage, points=(*stage.points, *found.points))
                if (found := more.get((variant.name, variant.cut_bytes, stage.name)))
                else stage
                for stage in variant.stages
            ),
        )

    return replace(model, variants=tuple(grown(variant) for variant in model.variants))


def _missing(value: Any) -> bool:
    return value is None or value is pd.NA or value == "" or (isinstance(value, float) and math.isnan(value))


def _told(value: Any) -> Any:
    return "nothing" if _missing(value) else value


def _number(model: str, what: str, value: Any) -> float:
    if _missing(value):
        raise InputFault(f"model {model}, {what}", "nothing", "it is a number above 0", "Enter one.")
    return float(value)


def _optional(value: Any) -> float | None:
    return None if _missing(value) else float(value)
