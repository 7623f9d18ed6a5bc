"""Edits of a plan request as the Plan page's tables make them: tables out, request in. No streamlit in here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import pandas as pd

from app.format.numbers import size
from torchsplit_core.planning.request.fleet_text import layouts_text, parse_layouts
from torchsplit_core.planning.request.ties import models_of
from torchsplit_core.simulation.validate import check_arrivals
from torchsplit_core.values import (
    Colocation,
    FleetEntry,
    InputFault,
    PlanModel,
    PlanRequest,
    SimulationRequest,
    TraceArrivals,
    Variant,
)
from torchsplit_core.values.simulation.arrivals_text import arrivals_text, parse_arrivals
from torchsplit_core.values.simulation.request import Arrivals

PERCENTILE = 95.0
"""Of responses, where a row says none."""

TOGETHER: Mapping[Literal["hard", "soft"], str] = {"hard": "must", "soft": "would rather"}
"""Modes of a pair as people say them."""


def fleet_table(request: PlanRequest) -> pd.DataFrame:
    """GPU types and counts, one row an entry."""
    return pd.DataFrame(
        {"type": [entry.type for entry in request.gpus], "count": [entry.count for entry in request.gpus]}
    ).astype({"type": "str", "count": "Int64"})


def details_table(request: PlanRequest) -> pd.DataFrame:
    """What else a request says of its GPUs, one row an entry of the fleet; an empty text for what it leaves out."""
    return pd.DataFrame(
        {
            "type": [entry.type for entry in request.gpus],
            "id": [entry.id or "" for entry in request.gpus],
            "node": [entry.node or "" for entry in request.gpus],
            "cost": [entry.cost for entry in request.gpus],
            "layouts": [layouts_text(entry.layouts) for entry in request.gpus],
        }
    ).astype({"type": "str", "id": "str", "node": "str", "cost": "float", "layouts": "str"})


def models_table(request: PlanRequest) -> pd.DataFrame:
    """Demands, one row a model."""
    rows = [
        {
            "model": model.name,
            "demand": model.demand_rps,
            "limit": model.max_latency_ms,
            "response": model.max_response_ms,
            "percentile": model.response_percentile,
            "arrivals": arrivals_text(model.arrivals, model.demand_rps),
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
        "response": "float",
        "percentile": "float",
        "arrivals": "str",
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
    """The fleet of the table; a row that stood in the request keeps its id, node, layouts and cost."""
    entries = []
    for index, row in table.iterrows():
        kind, count = row["type"], row["count"]
        if _missing(kind):
            raise InputFault("fleet", "has a row without a GPU type", "Choose one, or delete the row.")
        if _missing(count) or count < 1:
            raise InputFault(
                f"fleet, {kind}",
                "has no count" if _missing(count) else f"has the count {count}, below the least value 1",
                "Correct it, or delete the row.",
            )
        old = request.gpus[index] if isinstance(index, int) and index < len(request.gpus) else None
        if old is None or old.type != kind:
            old = FleetEntry(type=str(kind))
        entries.append(replace(old, count=int(count)))
    return replace(request, gpus=tuple(entries))


def with_details(request: PlanRequest, table: pd.DataFrame) -> PlanRequest:
    """The fleet with the ids, nodes, costs and layouts of the table, whose rows are the fleet's entries."""
    entries = []
    for entry, (_, row) in zip(request.gpus, table.iterrows(), strict=True):
        layouts = parse_layouts(_text(row["layouts"]), f"fleet, layouts of {entry.type}")
        cost = 1.0 if _missing(row["cost"]) else float(row["cost"])
        node, name = _text(row["node"]) or None, _text(row["id"]) or None
        entries.append(replace(entry, id=name, node=node, cost=cost, layouts=layouts))
    return replace(request, gpus=tuple(entries))


def with_models(request: PlanRequest, table: pd.DataFrame) -> PlanRequest:
    """The demands of the table; models without a row leave the request, and their pairs with them."""
    by_name = {model.name: model for model in request.models}
    models = []
    for _, row in table.iterrows():
        old = by_name[row["model"]]
        demand = _number(old.name, "demand", row["demand"])
        models.append(
            replace(
                old,
                demand_rps=demand,
                max_latency_ms=_optional(row["limit"]),
                max_response_ms=_optional(row["response"]),
                response_percentile=PERCENTILE if _missing(row["percentile"]) else float(row["percentile"]),
                arrivals=_arrivals(old, _text(row["arrivals"]), demand),
                min_throughput_rps=_optional(row["least"]),
                weight=_number(row["model"], "weight", row["weight"]),
                cap_at_demand=bool(row["cap"]),
            )
        )
    left = {model.name for model in models}
    pairs = tuple(pair for pair in request.colocations if left.issuperset(models_of(request.models, pair)))
    return replace(request, models=tuple(models), colocations=pairs)


def _arrivals(model: PlanModel, text: str, demand: float) -> Arrivals | None:
    """The arrivals of a row; what is untouched stays as it is, and without a rate of its own goes with the demand."""
    same = text == arrivals_text(model.arrivals, model.demand_rps)
    if same and (demand == model.demand_rps or isinstance(model.arrivals, TraceArrivals)):
        return model.arrivals
    if not text:
        return None
    where = f"model {model.name}, arrivals"
    found = parse_arrivals(text, demand, where)
    check_arrivals(where, found, SimulationRequest((), ()).requests_per_model)
    return found


def way_label(variant: Variant) -> str:
    """A variant in words: its name, into how many stages it cuts the model, and what crosses the cuts."""
    if len(variant.stages) == 1:
        return variant.name
    fixed, each = sum(variant.cut_bytes), sum(variant.cut_bytes_per_request)
    carried = [size(fixed)] if fixed or not each else []
    carried += [f"{size(each)} a request"] if each else []
    across = " and ".join(carried)
    return f"{variant.name}: {len(variant.stages)} stages, {across} across cuts"


def with_pairs(request: PlanRequest, table: pd.DataFrame) -> PlanRequest:
    """The pairs of the table."""
    modes: Mapping[str, Literal["hard", "soft"]] = {words: mode for mode, words in TOGETHER.items()}
    pairs = []
    for _, row in table.iterrows():
        models = row["models"]
        if not isinstance(models, (list, tuple)) or len(models) < 2:
            raise InputFault(
                "together on one GPU", "has a row with fewer than two models", "Add one, or delete the row."
            )
        megabytes = 0.0 if _missing(row["megabytes"]) else float(row["megabytes"])
        mode = modes.get(row["mode"], "hard")
        pairs.append(Colocation(models=tuple(models), mode=mode, bytes_per_request=megabytes * 1e6))
    return replace(request, colocations=tuple(pairs))


def _missing(value: Any) -> bool:
    return value is None or value is pd.NA or value == "" or (isinstance(value, float) and math.isnan(value))


def _text(value: Any) -> str:
    return "" if _missing(value) else str(value).strip()


def _number(model: str, what: str, value: Any) -> float:
    if _missing(value):
        raise InputFault(f"model {model}, {what}", "is empty", "Enter a number above 0.")
    return float(value)


def _optional(value: Any) -> float | None:
    return None if _missing(value) else float(value)
