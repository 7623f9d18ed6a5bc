"""solve_leximin and solve_leximin_shared: the planner with dictionaries instead of a PlanRequest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.planner import plan
from torchsplit_core.values import (
    Colocation,
    FleetEntry,
    InputFault,
    Objective,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    Point,
    SolverOptions,
    Stage,
    Variant,
)
from torchsplit_core.values.errors import quoted, suggestion

ProfileKey = str | tuple[str, str]
"""A whole profile name ("3g.40gb"), or (GPU type, profile) if the fleet has several types."""

PerProfile = Mapping[ProfileKey, float]
Nodes = Mapping[str, str] | Sequence[str]
Layouts = Mapping[str, Iterable[Sequence[str]] | None] | Iterable[Sequence[str]] | None
Pair = Colocation | tuple[str, str] | tuple[str, str, float]

OPTIONS = (
    "latency_ms",
    "weights",
    "demands_rps",
    "min_throughput_rps",
    "cap_at_demand",
    "memory_violation_penalty",
    "separation_weight",
    "max_tenants_per_slice",
    "time_limit_s",
    "low_rps",
    "high_rps",
    "plan_at",
)


@dataclass(frozen=True)
class _ModelTables:
    """The dictionaries of a call, by the names of its arguments."""

    throughput: Mapping[str, PerProfile]
    mem: Mapping[str, PerProfile | float]
    latency_ms: Mapping[str, PerProfile | float]
    latency_targets: Mapping[str, float]
    low_rps: Mapping[str, PerProfile]
    high_rps: Mapping[str, PerProfile]


def solve_leximin(
    models: Sequence[str],
    nodes: Nodes,
    valid_layouts: Layouts,
    throughput: Mapping[str, PerProfile],
    mem: Mapping[str, PerProfile | float] | None = None,
    latency_targets: Mapping[str, float] | None = None,
    colocation_pairs: Sequence[Pair] = (),
    **options: Any,
) -> PlanOutcome:
    """The fairest plan with whole slices: lexicographic maximum of the sorted throughputs, exactly.

    models: names. nodes: {GPU id: GPU type}, or GPU types in a list (ids gpu0, gpu1, …).
    valid_layouts: None for every legal one, layouts for all nodes ([["3g.40gb", "4g.40gb"], …]),
    or {GPU id or GPU type: layouts or None}. throughput: {model: {profile: requests/s}}; mem:
    {model: GiB} or {model: {profile: GiB}}; latency_targets: {model: ms}; colocation_pairs:
    (a, b) hard, (a, b, bytes per request) soft, or Colocation values. A profile key is a whole
    name, or (GPU type, profile).

    options: latency_ms ({model: ms or {profile: ms}}, needed for models with a target), weights,
    demands_rps, min_throughput_rps, cap_at_demand ({model: …}), memory_violation_penalty,
    separation_weight, max_tenants_per_slice, time_limit_s; low_rps and high_rps ({model: {profile: requests/s}},
    the ends of the throughput's 90 % interval) and plan_at ("nominal", or "low" for the lower ends).

    Raises InputFault like `plan`, and for an unknown option or a table that names no model.
    """
    tables = _tables(throughput, mem, latency_targets, options)
    return plan(_request("exclusive", models, nodes, valid_layouts, tables, colocation_pairs, options))


def solve_leximin_shared(
    models: Sequence[str],
    nodes: Nodes,
    valid_layouts: Layouts,
    throughput: Mapping[str, PerProfile],
    mem: Mapping[str, PerProfile | float] | None = None,
    latency_targets: Mapping[str, float] | None = None,
    colocation_pairs: Sequence[Pair] = (),
    **options: Any,
) -> PlanOutcome:
    """The fairest plan with fractional shares of slices; arguments as for `solve_leximin`."""
    tables = _tables(throughput, mem, latency_targets, options)
    return plan(_request("fractional", models, nodes, valid_layouts, tables, colocation_pairs, options))


def _tables(
    throughput: Mapping[str, PerProfile],
    mem: Mapping[str, PerProfile | float] | None,
    latency_targets: Mapping[str, float] | None,
    options: Mapping[str, Any],
) -> _ModelTables:
    for name in options:
        if name not in OPTIONS:
            raise InputFault("", f"unknown option {quoted(name)}", suggestion(name, OPTIONS, "options"))
    return _ModelTables(
        throughput,
        mem or {},
        options.get("latency_ms") or {},
        latency_targets or {},
        options.get("low_rps") or {},
        options.get("high_rps") or {},
    )


def _request(
    sharing: Literal["exclusive", "fractional"],
    models: Sequence[str],
    nodes: Nodes,
    valid_layouts: Layouts,
    tables: _ModelTables,
    pairs: Sequence[Pair],
    options: Mapping[str, Any],
) -> PlanRequest:
    fleet = _fleet(nodes, valid_layouts)
    per_model = {
        "throughput": tables.throughput,
        "mem": tables.mem,
        "latency_targets": tables.latency_targets,
        "latency_ms": tables.latency_ms,
        "low_rps": tables.low_rps,
        "high_rps": tables.high_rps,
        **{
            name: options.get(name) or {}
            for name in ("weights", "demands_rps", "min_throughput_rps", "cap_at_demand")
        },
    }
    for table, entries in per_model.items():
        for name in entries:
            if name not in models:
                raise InputFault(table, f"unknown model {quoted(name)}", suggestion(name, models, "models"))
    kinds = list(dict.fromkeys(entry.type for entry in fleet))
    penalty = options.get("memory_violation_penalty")
    return PlanRequest(
        gpus=fleet,
        models=tuple(_model(name, kinds, tables, per_model) for name in models),
        colocations=tuple(_pair(item) for item in pairs),
        objective=Objective("leximin", penalty, options.get("separation_weight", 0.0)),
        sharing=sharing,
        max_tenants_per_slice=options.get("max_tenants_per_slice"),
        solver=SolverOptions(options.get("time_limit_s", 60.0), options.get("plan_at", "nominal")),
    )


def _fleet(nodes: Nodes, valid_layouts: Layouts) -> tuple[FleetEntry, ...]:
    named: list[tuple[str | None, str]] = []
    if isinstance(nodes, Mapping):
        named += [(node, kind) for node, kind in nodes.items()]
    else:
        named += [(None, kind) for kind in nodes]
    entries = []
    for node, kind in named:
        offered: Iterable[Sequence[str]] | None
        if isinstance(valid_layouts, Mapping):
            key = node if node is not None and node in valid_layouts else kind
            offered = valid_layouts.get(key)
        else:
            offered = valid_layouts
        layouts = None if offered is None else tuple(tuple(layout) for layout in offered)
        entries.append(FleetEntry(kind, id=node, layouts=layouts))
    return tuple(entries)


def _model(name: str, kinds: Sequence[str], tables: _ModelTables, per_model: Mapping[str, Any]) -> PlanModel:
    if name in tables.latency_targets and name not in tables.latency_ms:
        raise InputFault(
            "latency_ms",
            f"has no entry for {quoted(name)}, which has a latency target",
            "Give its latency per profile.",
        )
    points = []
    for kind in kinds:
        for profile in gpu_type(kind).profiles:
            rate = _look_up(tables.throughput.get(name, {}), kind, profile.name)
            if rate is None:
                continue
            latency = _look_up(tables.latency_ms.get(name, 0.0), kind, profile.name)
            if latency is None:
                raise InputFault(
                    f"latency_ms of {name}",
                    f"has no entry for {profile.name}, which has a throughput",
                    "Add its latency.",
                )
            memory = _look_up(tables.mem.get(name, {}), kind, profile.name)
            low = _look_up(tables.low_rps.get(name, {}), kind, profile.name)
            high = _look_up(tables.high_rps.get(name, {}), kind, profile.name)
            points.append(
                Point(kind, profile.name, 1, rate, latency, memory_gib=memory, low_rps=low, high_rps=high)
            )
    for table, rates in (
        ("throughput", tables.throughput),
        ("low_rps", tables.low_rps),
        ("high_rps", tables.high_rps),
    ):
        _check_profiles(table, name, kinds, rates.get(name, {}))
    return PlanModel(
        name,
        (Variant("whole", (Stage("whole", tuple(points)),)),),
        weight=per_model["weights"].get(name, 1.0),
        demand_rps=per_model["demands_rps"].get(name, 1.0),
        min_throughput_rps=per_model["min_throughput_rps"].get(name),
        max_latency_ms=tables.latency_targets.get(name),
        cap_at_demand=per_model["cap_at_demand"].get(name, False),
    )


def _check_profiles(table: str, name: str, kinds: Sequence[str], rates: PerProfile) -> None:
    """Every key must be a profile of a GPU of the fleet: a misspelt one would vanish silently."""
    known = {(kind, profile.name) for kind in kinds for profile in gpu_type(kind).profiles}
    names = {profile for _, profile in known}
    for key in rates:
        if not (key in known if isinstance(key, tuple) else key in names):
            raise InputFault(
                f"{table} of {name}",
                f"unknown profile {quoted(key)}",
                suggestion(key[-1] if isinstance(key, tuple) else key, sorted(names), "profiles"),
            )


def _look_up(table: PerProfile | float, kind: str, profile: str) -> float | None:
    """The figure for a profile: one number for all, or a table by profile or (type, profile)."""
    if not isinstance(table, Mapping):
        return table
    return table.get((kind, profile), table.get(profile))


def _pair(item: Pair) -> Colocation:
    if isinstance(item, Colocation):
        return item
    if len(item) == 2:
        return Colocation((item[0], item[1]))
    return Colocation((item[0], item[1]), "soft", item[2])
