"""The fingerprint of a request, which ties an outcome to its request."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from torchsplit_core.planning.request.fleet import objective_cost
from torchsplit_core.values import (
    FleetEntry,
    LlmPoint,
    Objective,
    PlanModel,
    PlanRequest,
    Point,
    SolverOptions,
    Stage,
    Variant,
)

_LATER_DEFAULTS: dict[Any, dict[str, Any]] = {
    Variant: {"allowed": True, "cut_bytes_per_request": []},
    Point: {"low_rps": None, "high_rps": None, "pace": None},
    Stage: {"nodes": []},
    PlanModel: {
        "source": None,
        "max_response_ms": None,
        "response_percentile": 95.0,
        "arrivals": None,
        "bytes_per_request": None,
        "tier": 0.0,
        "demand_windows": [],
        "demand_samples": [],
        "llm": None,
    },
    LlmPoint: {"engine": None},
    Objective: {"survives": 0.0, "max_touched_gpus": None, "attainment": None},
    FleetEntry: {"node": None, "mig": True, "cost_date": None},
    SolverOptions: {"plan_at": "nominal"},
    PlanRequest: {
        "network_gb_per_s": None,
        "front": None,
        "current": None,
        "seed": 0.0,
        "plan_demand_at": "p95",
    },
}
"""Fields that later versions added: omitted at their default, so that older requests keep their fingerprint."""


@lru_cache(maxsize=8)
def request_hash(request: PlanRequest) -> str:
    """SHA-256 (hex) of the request as canonical JSON: sorted keys, no spaces, every number a float.

    Whole numbers are written as floats so that 1 and 1.0 in a file are the same request.
    """
    # No price plans like a price of 1, which earlier versions wrote; its date changes no plan.
    gpus = tuple(replace(entry, cost=objective_cost(entry.cost), cost_date=None) for entry in request.gpus)
    return hashlib.sha256(_canonical_text(replace(request, gpus=gpus)).encode("utf-8")).hexdigest()


def _canonical_text(value: Any) -> str:
    """Canonical JSON. Variants are cached: they are nearly all of a request, and an edit changes few of them."""
    if isinstance(value, Variant):
        return _variant_text(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_canonical_text, value))}]"
    if value is None or isinstance(value, str | int | float):
        return _to_json(value)
    kind: Any = type(value)
    defaults = _LATER_DEFAULTS.get(kind, {})
    left_out = getattr(value, "left_out_of_files", ())
    entries = (
        f"{_to_json(name)}:{_canonical_text(getattr(value, name))}"
        for name in sorted(_field_names(kind))
        if name not in left_out
        if name not in defaults or _canonical_value(getattr(value, name)) != defaults[name]
    )
    return f"{{{','.join(entries)}}}"


@lru_cache(maxsize=1024)
def _variant_text(variant: Variant) -> str:
    return _to_json(variant)


def _to_json(value: Any) -> str:
    return json.dumps(_canonical_value(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@lru_cache(maxsize=64)
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


def _canonical_value(value: Any) -> Any:
    if isinstance(value, str | float | bool) or value is None:
        return value
    if isinstance(value, int):
        return float(value)
    if isinstance(value, list | tuple):
        return [_canonical_value(item) for item in value]
    kind = type(value)
    entries = {name: _canonical_value(getattr(value, name)) for name in _field_names(kind)}  # type: ignore[arg-type]
    for name, default in _LATER_DEFAULTS.get(kind, {}).items():
        if entries[name] == default:
            del entries[name]
    return entries
