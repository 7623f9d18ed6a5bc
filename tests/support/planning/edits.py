"""Requests and plans that differ from others in their models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from torchsplit_core.values import PlanModel, PlanOutcome, PlanRequest, Point

Plan = TypeVar("Plan", PlanRequest, PlanOutcome)


def with_model(plan: Plan, place: int, **changes: Any) -> Plan:
    """The request or plan with the model at that place changed."""
    models = tuple(
        replace(model, **changes) if number == place else model for number, model in enumerate(plan.models)
    )
    return replace(plan, models=models)


def with_each_model(plan: Plan, **changes: Any) -> Plan:
    """The request or plan with all models changed alike."""
    return replace(plan, models=tuple(replace(model, **changes) for model in plan.models))


def with_points(model: PlanModel, changed: Callable[[Point], Point]) -> PlanModel:
    """The model with every point changed."""
    variants = (
        replace(
            variant, stages=tuple(replace(s, points=tuple(map(changed, s.points))) for s in variant.stages)
        )
        for variant in model.variants
    )
    return replace(model, variants=tuple(variants))


def with_allowed_variants(request: PlanRequest, allowed: Mapping[str, Sequence[str]]) -> PlanRequest:
    """The request with only these variants allowed of each named model; the others stay, disallowed."""
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
