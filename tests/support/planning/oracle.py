"""The best plan of a tiny exclusive request by looking at every one, from the contract's words alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations_with_replacement, product

from torchsplit_core.hardware import gpu_type, layout_multisets
from torchsplit_core.values import PlanRequest, Point, Variant

Instance = tuple[int, int, int, Point]
GpuState = frozenset[tuple[Instance, int]]
Held = tuple[Point, int, str | None]
"""A point, how many instances of it, on which node."""


def best_plan(request: PlanRequest) -> tuple[tuple[float, ...], float] | None:
    """(objective vector to be maximised, bytes of separations) of the best plan; None where there is none."""
    costs = [entry.cost for entry in request.gpus for _ in range(entry.count)]
    best: tuple[tuple[float, ...], float] | None = None
    for states in _fleet_states(request):
        worth = _worth(request, states, costs)
        if worth is None:
            continue
        if best is None or _better(worth, best):
            best = worth
    return best


def _better(new: tuple[tuple[float, ...], float], old: tuple[tuple[float, ...], float]) -> bool:
    for mine, other in zip(new[0], old[0], strict=True):
        if abs(mine - other) > 1e-9 * max(abs(mine), abs(other)):
            return mine > other
    return new[1] < old[1]


def _fleet_states(request: PlanRequest) -> Iterator[tuple[GpuState, ...]]:
    """What the GPUs can hold together; those of one entry are alike, so each of their mixes comes once."""
    by_entry = (
        combinations_with_replacement(_states(request, entry.type, entry.layouts), entry.count)
        for entry in request.gpus
    )
    for chosen in product(*by_entry):
        yield tuple(chain.from_iterable(chosen))


def _states(request: PlanRequest, kind: str, layouts: tuple[tuple[str, ...], ...] | None) -> list[GpuState]:
    """Every set of instances one GPU can hold (idle slices allowed)."""
    options: dict[str, list[Instance | None]] = {}
    for profile in gpu_type(kind).profiles:
        found: list[Instance | None] = [None]
        for m, model in enumerate(request.models):
            for v, variant in enumerate(model.variants):
                for s, stage in enumerate(variant.stages):
                    found += [
                        (m, v, s, point)
                        for point in stage.points
                        if (point.gpu_type, point.profile) == (kind, profile.name)
                        and (
                            request.objective.memory_violation_penalty is not None
                            or profile.memory_gib is None
                            or (point.memory_gib or 0) <= profile.memory_gib
                        )
                    ]
        options[profile.name] = found
    states: set[GpuState] = set()
    for layout in layouts if layouts is not None else layout_multisets(gpu_type(kind)):
        parts = []
        for name in sorted(set(layout)):
            indices = range(len(options[name]))
            parts.append(
                [
                    [options[name][i] for i in chosen if options[name][i] is not None]
                    for chosen in combinations_with_replacement(indices, layout.count(name))
                ]
            )
        for combined in product(*parts):
            flat = [item for part in combined for item in part]
            states.add(frozenset((item, flat.count(item)) for item in flat if item is not None))
    return sorted(states, key=repr)


def _nodes(request: PlanRequest) -> list[str | None]:
    """The node of every GPU, in the order of `_fleet_states`."""
    return [entry.node for entry in request.gpus for _ in range(entry.count)]


def served(request: PlanRequest, variant: Variant, stages: list[list[Held]]) -> tuple[float, float]:
    """Requests/s and milliseconds of a variant whose stages have these points, so many of each, on these nodes."""
    crossing = len({node for stage in stages for _, _, node in stage}) > 1
    links = [request.link_gb_per_s, request.network_gb_per_s if crossing else None]
    link = min((figure * 1e9 for figure in links if figure is not None), default=None)
    rates, latency = [], 0.0
    for s, stage in enumerate(stages):
        rate = 0.0
        for point, count, _ in stage:
            each = point.throughput_rps
            if request.solver.plan_at == "low" and point.low_rps is not None:
                each = point.low_rps
            rate += count * min(each, linked(variant, s, point, link))
        rates.append(rate)
        latency += max(point.latency_ms for point, _, _ in stage)
    batches = [max(point.batch_size for point, _, _ in stage) for stage in stages]
    return min(rates), latency + moving_ms(variant, batches, link)


def linked(variant: Variant, stage: int, point: Point, link: float | None) -> float:
    """Requests/s that one instance's link lets it have; `link` in bytes/s."""
    per_request = variant.cut_bytes_per_request or (0.0,) * len(variant.cut_bytes)
    around = [cut for cut in (stage - 1, stage) if 0 <= cut < len(variant.cut_bytes)]
    carried = sum(variant.cut_bytes[cut] / point.batch_size + per_request[cut] for cut in around)
    return float("inf") if link is None or carried == 0 else link / carried


def moving_ms(variant: Variant, batches: list[int], link: float | None) -> float:
    """Milliseconds across all cuts, with the largest batch of every stage; `link` in bytes/s."""
    if link is None:
        return 0.0
    per_request = variant.cut_bytes_per_request or (0.0,) * len(variant.cut_bytes)
    return sum(
        (fixed + max(batches[cut], batches[cut + 1]) * per_request[cut]) / link * 1e3
        for cut, fixed in enumerate(variant.cut_bytes)
    )


def _worth(
    request: PlanRequest, states: tuple[GpuState, ...], costs: list[float]
) -> tuple[tuple[float, ...], float] | None:
    held: dict[tuple[int, int, int], list[Held]] = {}
    variant_of: dict[int, int] = {}
    excess = 0.0
    for state, node in zip(states, _nodes(request), strict=True):
        for (m, v, s, point), count in state:
            if variant_of.setdefault(m, v) != v:
                return None
            held.setdefault((m, v, s), []).append((point, count, node))
            if request.objective.memory_violation_penalty:  # without one nothing exceeds its slice
                size = gpu_type(point.gpu_type).profile(point.profile).memory_gib
                excess += count * max(0.0, (point.memory_gib or 0.0) - (size or 0.0)) if size else 0.0
    rates = []
    for m, model in enumerate(request.models):
        rate = 0.0
        if m in variant_of:
            variant = model.variants[variant_of[m]]
            stages = [held.get((m, variant_of[m], s), []) for s in range(len(variant.stages))]
            if not all(stages):
                return None
            rate, latency = served(request, variant, stages)
            if model.max_latency_ms is not None and latency > model.max_latency_ms + 1e-9:
                return None
        if model.min_throughput_rps is not None and rate < model.min_throughput_rps - 1e-9:
            return None
        rates.append(rate)
    separations = 0.0
    for state in states:
        there = {request.models[item[0]].name for item, _ in state}
        for pair in request.colocations:
            torn = 0 < len(there & set(pair.models)) < len(pair.models)
            if torn and pair.mode == "hard":
                return None
            if torn:
                separations += pair.bytes_per_request
    counted = [
        min(rate, model.demand_rps) if model.cap_at_demand else rate
        for rate, model in zip(rates, request.models, strict=True)
    ]
    paid = (request.objective.memory_violation_penalty or 0.0) * excess
    paid += request.objective.separation_weight * separations
    ranked = sorted(
        c / (m.weight * m.demand_rps) - paid for c, m in zip(counted, request.models, strict=True)
    )
    kind = request.objective.kind
    value: tuple[float, ...] = tuple(ranked)
    if kind == "max_min":
        value = (ranked[0],)
    elif kind == "weighted_sum":
        value = (sum(c * m.weight for c, m in zip(counted, request.models, strict=True)) - paid,)
    elif kind == "min_gpus":
        value = (-sum(cost for cost, state in zip(costs, states, strict=True) if state) - paid,)
    return value, separations if request.objective.separation_weight == 0 else 0.0


def least_change(request: PlanRequest) -> float:
    """Least sum of relative changes of minima and latency limits with which some plan is sound."""
    bare = replace(
        request,
        models=tuple(replace(m, min_throughput_rps=None, max_latency_ms=None) for m in request.models),
        objective=replace(request.objective, kind="weighted_sum"),
    )
    least = float("inf")
    costs = [0.0] * sum(entry.count for entry in request.gpus)
    for states in _fleet_states(request):
        if _worth(bare, states, costs) is None:
            continue
        least = min(least, _change(request, states))
    return least


def _change(request: PlanRequest, states: tuple[GpuState, ...]) -> float:
    total = 0.0
    for m, model in enumerate(request.models):
        held = [
            (item, count, node)
            for state, node in zip(states, _nodes(request), strict=True)
            for item, count in state
            if item[0] == m
        ]
        rate = 0.0
        if held:
            variant = model.variants[held[0][0][1]]
            stages = [
                [(point, n, node) for (_, _, s, point), n, node in held if s == number]
                for number in range(len(variant.stages))
            ]
            rate, latency = served(request, variant, stages)
            if model.max_latency_ms is not None:
                total += max(0.0, latency - model.max_latency_ms) / model.max_latency_ms
        if model.min_throughput_rps:
            total += max(0.0, model.min_throughput_rps - rate) / model.min_throughput_rps
    return total
