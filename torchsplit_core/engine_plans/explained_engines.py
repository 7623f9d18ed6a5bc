"""What an explanation asks of a request's LLMs: a larger limit, and all engines of a model on places of one kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torchsplit_core.engine_plans.engine_figures import EnginePlace
from torchsplit_core.engine_plans.points import WHOLE, LlmEngines, engine_places, llm_engines
from torchsplit_core.planning.explanation.changes import (
    RELAXED_SHARE,
    Change,
    EngineQuestions,
    edit_model,
)
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.values import (
    ChangeEffect,
    EnginePoint,
    EngineReason,
    LlmModel,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    Stage,
    Variant,
    tenants_on,
)
from torchsplit_core.values.plan.explanation import ChangeKind

OTHER_LIMIT: Mapping[ChangeKind, str] = {"max_ttft_ms": "TPOT", "max_tpot_ms": "TTFT"}
"""The limits of an LLM, and the word with which a point says that the other one binds."""


def engine_questions(resolved: PlanRequest, outcome: PlanOutcome) -> EngineQuestions:
    """What is asked of the LLMs of a request whose LLMs have points."""
    eased: list[Change] = []
    places: list[tuple[EngineReason, Change | None]] = []
    for model in resolved.models:
        if model.llm is not None:
            engines = llm_engines(resolved, model.llm)
            eased += _eased_limits(resolved, model, model.llm, engines)
            places += _places(resolved, model, model.llm, engines, outcome)
    return EngineQuestions(tuple(eased), tuple(places))


def _eased_limits(
    resolved: PlanRequest, model: PlanModel, llm: LlmModel, engines: LlmEngines
) -> Iterator[Change]:
    """Each limit that binds some engine, larger by a tenth."""
    before = {place_of(point): point for point in engines.points}
    for name, other in OTHER_LIMIT.items():
        limit: float | None = getattr(llm, name)
        # What the other limit holds stays as it is.
        known = {place: point for place, point in before.items() if point.binds == other}
        if limit is None or (len(known) == len(before) and not engines.missing):
            continue
        larger: Any = {name: limit * (1 + RELAXED_SHARE)}
        changed = replace(llm, **larger)
        # Rates are found to a hundredth: an engine that keeps a limit keeps a larger one too.
        points = tuple(
            max(before.get(place_of(point), point), point, key=lambda item: item.throughput_rps)
            for point in llm_engines(resolved, changed, known).points
        )
        if points != engines.points:
            spec = ChangeEffect(name, "not_examined", limit, larger[name], model=model.name)
            yield Change(spec, edit_model(model.name, partial(_with_engines, llm=changed, points=points)))


def _places(
    resolved: PlanRequest, model: PlanModel, llm: LlmModel, engines: LlmEngines, outcome: PlanOutcome
) -> Iterator[tuple[EngineReason, Change | None]]:
    """Every kind of place that the fleet has for the model."""
    in_use: defaultdict[EnginePlace, float] = defaultdict(float)
    for gpu, item, tenant in tenants_on(outcome.gpus):
        if tenant.model == model.name:
            in_use[EnginePlace(gpu.type, item.profile, tenant.gpus)] += 1 / tenant.gpus
    points = {place_of(point): point for point in engines.points}
    missing = {item.place: item.reason for item in engines.missing}
    for place in engine_places(list_gpus(resolved.gpus), llm.tensor_parallel):
        reason = EngineReason(
            model.name, place.gpu_type, place.profile or None, place.tensor_parallel, "not_examined"
        )
        if place in missing:
            yield replace(reason, reason="no_engine", detail=missing[place]), None
        elif place not in points:
            without_point = llm.config is None
            detail = "no measured point keeps the limits, and no sizes are given" if without_point else ""
            yield replace(reason, reason="no_engine" if without_point else "dominated", detail=detail), None
        else:
            point = points[place]
            reason = replace(
                reason,
                engines=round(in_use[place]) if place in in_use else 0,
                rate_rps=point.throughput_rps, low_rps=point.low_rps, high_rps=point.high_rps, binds=point.binds,
            )  # fmt: skip
            if set(in_use) == {place}:
                yield replace(reason, reason="in_plan"), None
                continue
            spec = ChangeEffect("engine", "not_examined", model=model.name, gpu_type=place.gpu_type)
            only = edit_model(model.name, partial(_with_engines, llm=llm, points=(point,)))
            yield replace(reason, reason="in_plan" if place in in_use else "not_examined"), Change(spec, only)


def place_of(point: EnginePoint) -> EnginePlace:
    """Where the engine of a point stands."""
    return EnginePlace(point.gpu_type, point.profile, point.tensor_parallel)


def _with_engines(model: PlanModel, llm: LlmModel, points: tuple[EnginePoint, ...]) -> PlanModel:
    return replace(model, llm=llm, variants=(Variant(WHOLE, (Stage(WHOLE, points),)),))
