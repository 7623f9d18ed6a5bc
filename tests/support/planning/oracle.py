"""The best plan of a tiny exclusive request by looking at every one, from the contract's words alone."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, combinations_with_replacement, product

from tests.support.planning.routed_oracle import sent
from torchsplit_core.hardware import gpu_type, layout_multisets
from torchsplit_core.values import Colocation, FleetEntry, PlanOutcome, PlanRequest, Point, Variant

Instance = tuple[int, int, int, Point]
GpuState = frozenset[tuple[Instance, int]]
Place = tuple[int, int, int]
"""Model, variant and stage."""
Part = frozenset[tuple[Instance, int]]
"""What a GPU has of one model."""
Held = tuple[Point, int, str | None]
"""A point, how many instances of it, on which node."""


def best_plan(request: PlanRequest) -> tuple[tuple[float, ...], float] | None:
    """(objective vector to be maximised, bytes of separations) of the best plan; None where there is none."""
    request = alike_together(request)
    look = Look(request)
    best: tuple[tuple[float, ...], float] | None = None
    for states in fleet_states(request):
        worth = look.worth(states)
        if worth is not None and (best is None or _better(worth, best)):
            best = worth
    return best


def alike_together(request: PlanRequest) -> PlanRequest:
    """The request with GPUs that differ in their names alone as one entry: no plan needs to be looked at twice."""
    counts: Counter[FleetEntry] = Counter()
    for entry in request.gpus:
        counts[replace(entry, id=None, count=1)] += entry.count
    return replace(request, gpus=tuple(replace(entry, count=count) for entry, count in counts.items()))


def levels_of(request: PlanRequest, outcome: PlanOutcome) -> tuple[float, ...]:
    """The objective of a plan as `best_plan` has it: larger is better."""
    objective = outcome.objective
    if objective.levels:
        return objective.levels
    if objective.kind == "leximin":
        paid = objective.sorted_normalised[0] - (objective.value or 0.0)
        return tuple(level - paid for level in objective.sorted_normalised)
    assert objective.value is not None
    return (-objective.value if objective.kind == "min_gpus" else objective.value,)


def by_tier(request: PlanRequest, r: Sequence[float]) -> list[float]:
    """r of the models of each tier up to 1, the highest tier first, then that of all; each sorted."""
    tiers = sorted({model.tier for model in request.models}, reverse=True)
    found = []
    for tier in tiers if len(tiers) > 1 else ():
        found += sorted(
            min(one, 1.0) for one, model in zip(r, request.models, strict=True) if model.tier == tier
        )
    return [*found, *sorted(r)]


def _better(new: tuple[tuple[float, ...], float], old: tuple[tuple[float, ...], float]) -> bool:
    for mine, other in zip(new[0], old[0], strict=True):
        if abs(mine - other) > 1e-9 * max(abs(mine), abs(other)):
            return mine > other
    return new[1] < old[1]


def fleet_states(request: PlanRequest) -> Iterator[tuple[GpuState, ...]]:
    """What the GPUs can hold together: one variant of a model, and that whole.

    The GPUs of one entry are alike, so each of their mixes comes once.
    """
    by_entry = []
    for entry in request.gpus:
        groups: defaultdict[frozenset[Place], list[tuple[GpuState, ...]]] = defaultdict(list)
        for held in combinations_with_replacement(_states(request, entry), entry.count):
            groups[frozenset((m, v, s) for state in held for (m, v, s, _), _ in state)].append(held)
        by_entry.append(groups)
    for places in product(*by_entry):
        if _whole(request, frozenset().union(*places)):
            for chosen in product(*map(dict.__getitem__, by_entry, places)):
                yield tuple(chain.from_iterable(chosen))


def _whole(request: PlanRequest, places: frozenset[Place]) -> bool:
    """Whether these are all stages of at most one variant of each model."""
    variants = {(m, v) for m, v, _ in places}
    return len({m for m, _ in variants}) == len(variants) and len(places) == sum(
        len(request.models[m].variants[v].stages) for m, v in variants
    )


def _layouts(request: PlanRequest, entry: FleetEntry) -> tuple[tuple[str, ...], ...]:
    """What a GPU of the entry can be divided into: by MIG, not at all, or into any numbers of cores in use."""
    kind = gpu_type(entry.type)
    if not kind.profiles or not entry.mig:
        return (("",),)
    if entry.layouts is not None:
        return entry.layouts
    if not entry.type.startswith("CPU-"):
        return layout_multisets(kind)
    points = [
        p
        for m in request.models
        for v in m.variants
        for s in v.stages
        for p in s.points
        if p.gpu_type == "CPU"
    ]
    sizes = sorted({int(point.profile[:-1]) for point in points})

    def fill(room: int, largest: int) -> Iterator[tuple[str, ...]]:
        yield ()
        for size in sizes:
            if size <= min(room, largest):
                for rest in fill(room - size, size):
                    yield (f"{size}c", *rest)

    return tuple(fill(kind.memory_slices, kind.memory_slices))


def _states(request: PlanRequest, entry: FleetEntry) -> list[GpuState]:
    """Every set of instances one GPU can hold (idle slices allowed)."""
    options: dict[str, list[Instance | None]] = {}
    layouts = _layouts(request, entry)
    kind = gpu_type(entry.type)
    points_of = "CPU" if entry.type.startswith("CPU-") else entry.type
    for profile in map(kind.profile, sorted({name for layout in layouts for name in layout})):
        found: list[Instance | None] = [None]
        for m, model in enumerate(request.models):
            for v, variant in enumerate(model.variants):
                for s, stage in enumerate(variant.stages):
                    found += [
                        (m, v, s, point)
                        for point in stage.points
                        if (point.gpu_type, point.profile) == (points_of, profile.name)
                        and (
                            request.objective.memory_violation_penalty is not None
                            or profile.memory_gib is None
                            or (point.memory_gib or 0) <= profile.memory_gib
                        )
                    ]
        options[profile.name] = found
    states: set[GpuState] = set()
    for layout in layouts:
        parts = []
        for name in sorted(set(layout)):
            indices = range(len(options[name]))
            parts.append([
                [options[name][i] for i in chosen if options[name][i] is not None]
                for chosen in combinations_with_replacement(indices, layout.count(name))
            ])  # fmt: skip
        for combined in product(*parts):
            flat = [item for part in combined for item in part]
            states.add(frozenset((item, flat.count(item)) for item in flat if item is not None))
    return sorted(states, key=repr)


def _nodes(request: PlanRequest) -> list[str | None]:
    """The node of every GPU, in the order of `fleet_states`."""
    return [entry.node for entry in request.gpus for _ in range(entry.count)]


def served(
    request: PlanRequest, variant: Variant, stages: list[list[Held]], nodes: set[str | None] | None = None
) -> tuple[float, float]:
    """Requests/s and milliseconds of a variant whose stages have these points, so many of each, on these nodes.

    `nodes`: those that it stood on when it was planned, where some of it is lost.
    """
    link = link_of(request, nodes or {node for stage in stages for _, _, node in stage})
    rates = [stage_rate(request, variant, s, stage, link) for s, stage in enumerate(stages)]
    latency = sum(max(point.latency_ms for point, _, _ in stage) for stage in stages)
    batches = [max(point.batch_size for point, _, _ in stage) for stage in stages]
    return min(rates), latency + moving_ms(variant, batches, link)


def link_of(request: PlanRequest, nodes: set[str | None]) -> float | None:
    """Bytes/s between instances on these nodes; None where transfers take no time."""
    links = [request.link_gb_per_s, request.network_gb_per_s if len(nodes) > 1 else None]
    return min((figure * 1e9 for figure in links if figure is not None), default=None)


def stage_rate(
    request: PlanRequest, variant: Variant, stage: int, held: list[Held], link: float | None
) -> float:
    """Requests/s of a stage that has these points, so many of each."""
    rate = 0.0
    for point, count, _ in held:
        each = point.throughput_rps
        if request.solver.plan_at == "low" and point.low_rps is not None:
            each = point.low_rps
        rate += count * min(each, linked(variant, stage, point, link))
    return rate


def rates_here(request: PlanRequest, states: Sequence[GpuState]) -> list[dict[str, float]]:
    """Of every GPU the requests/s of its models, their slowest stage counting, and of each stage."""
    found: list[dict[str, float]] = [{} for _ in states]
    for m, model in enumerate(request.models):
        parts = [frozenset(one for one in state if one[0][0] == m) for state in states]
        for v in {v for part in parts for (_, v, _, _), _ in part}:
            variant = model.variants[v]
            nodes = {node for part, node in zip(parts, _nodes(request), strict=True) if part}
            for place, here in enumerate(found):
                alone = [part if at == place else frozenset() for at, part in enumerate(parts)]
                link = link_of(request, nodes)
                stages = enumerate(_stages(request, alone, v, m))
                rates = [stage_rate(request, variant, s, held, link) for s, held in stages]
                here[model.name] = min(rates)
                for stage, rate in zip(variant.stages, rates, strict=True):
                    here[f"{model.name}/{stage.name}"] = here[f"{model.name}/{variant.name}.{stage.name}"] = (
                        rate
                    )
    return found


def names_of(request: PlanRequest, instances: Iterable[Instance]) -> set[str]:
    """What co-locations may call these instances; no model of the requests here has "/" in its name."""
    found = set()
    for m, v, s, _ in instances:
        model = request.models[m]
        variant = model.variants[v]
        stage = variant.stages[s].name
        found |= {model.name, f"{model.name}/{stage}", f"{model.name}/{variant.name}.{stage}"}
    return found


def torn_bytes(request: PlanRequest, pair: Colocation) -> float:
    """Bytes of a GPU that tears a co-location apart: given, else those that two stages in a row hand on."""
    if pair.bytes_per_request > 0:
        return pair.bytes_per_request
    for m, model in enumerate(request.models):
        for v, variant in enumerate(model.variants):
            for cut, fixed in enumerate(variant.cut_bytes):
                sides = [
                    names_of(request, [(m, v, s, variant.stages[s].points[0])]) - {model.name}
                    for s in (cut, cut + 1)
                ]
                if any({a, b} == set(pair.models) for a in sides[0] for b in sides[1]):
                    return (variant.cut_bytes_per_request or (0.0,) * (cut + 1))[cut] or fixed
    return 0.0


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


@dataclass(frozen=True)
class Alone:
    """What a GPU brings to any plan: the number of what each model has there, GiB too many, bytes torn apart."""

    parts: tuple[int, ...]
    excess: float
    torn: float


class Look:
    """What plans of a request are worth. What many plans have in common is looked at once."""

    def __init__(self, request: PlanRequest) -> None:
        self._request = request
        self._costs = [
            1.0 if entry.cost is None else entry.cost for entry in request.gpus for _ in range(entry.count)
        ]
        self._numbers: dict[Part, int] = {}
        self._parts: list[Part] = []
        self._alone: dict[GpuState, Alone | None] = {}
        self._rates: dict[tuple[int, ...], float | None] = {}

    def worth(self, states: tuple[GpuState, ...]) -> tuple[tuple[float, ...], float] | None:
        """(objective vector to be maximised, bytes of separations); None where the plan is not sound."""
        request = self._request
        alone = []
        for state in states:
            if state not in self._alone:
                self._alone[state] = self._look_at(state)
            found = self._alone[state]
            if found is None:
                return None
            alone.append(found)
        rates = []
        for m in range(len(request.models)):
            numbers = (m, *(one.parts[m] for one in alone))
            if numbers not in self._rates:
                self._rates[numbers] = _rate(request, m, [self._parts[number] for number in numbers[1:]])
            rate = self._rates[numbers]
            if rate is None:
                return None
            rates.append(rate)
        counted = [
            min(rate, model.demand_rps) if model.cap_at_demand else rate
            for rate, model in zip(rates, request.models, strict=True)
        ]
        separations = sum(one.torn for one in alone)
        if any(pair.mode == "routed" for pair in request.colocations):
            separations += sent(request, rates_here(request, states))
        paid = (request.objective.memory_violation_penalty or 0.0) * sum(one.excess for one in alone)
        paid += request.objective.separation_weight * separations
        ranked = by_tier(
            request,
            [c / (m.weight * m.demand_rps) - paid for c, m in zip(counted, request.models, strict=True)],
        )
        kind = request.objective.kind
        value: tuple[float, ...] = tuple(ranked)
        samples = list(zip(*(model.demand_samples for model in request.models), strict=True))
        held = sum(
            all(entry <= rate * (1 + 1e-9) for entry, rate in zip(moment, rates, strict=True))
            for moment in samples
        )
        share = request.objective.attainment
        if share is not None and held < Fraction(str(share)) * len(samples):
            return None
        if kind == "max_min":
            value = (ranked[0],)
        elif kind == "attainment":
            value = (held / len(samples),)
        elif kind == "weighted_sum":
            value = (sum(c * m.weight for c, m in zip(counted, request.models, strict=True)) - paid,)
        elif kind == "min_gpus":
            value = (-sum(cost for cost, state in zip(self._costs, states, strict=True) if state) - paid,)
        return value, separations if request.objective.separation_weight == 0 else 0.0

    def _look_at(self, state: GpuState) -> Alone | None:
        """None where it tears apart what may not be torn."""
        excess = torn = 0.0
        if self._request.objective.memory_violation_penalty:  # without one nothing exceeds its slice
            for (_, _, _, point), count in state:
                size = gpu_type(point.gpu_type).profile(point.profile).memory_gib
                excess += count * max(0.0, (point.memory_gib or 0.0) - (size or 0.0)) if size else 0.0
        there = names_of(self._request, (item for item, _ in state))
        for pair in self._request.colocations:
            if 0 < len(there & set(pair.models)) < len(pair.models):
                if pair.mode == "hard":
                    return None
                if pair.mode == "routed":
                    continue
                torn += torn_bytes(self._request, pair)
        numbers = []
        for m in range(len(self._request.models)):
            part = frozenset(one for one in state if one[0][0] == m)
            number = self._numbers.setdefault(part, len(self._parts))
            if number == len(self._parts):
                self._parts.append(part)
            numbers.append(number)
        return Alone(tuple(numbers), excess, torn)


def _stages(request: PlanRequest, parts: Sequence[Part], v: int, m: int) -> list[list[Held]]:
    """The instances of every stage of a variant, where each GPU has these of the model."""
    return [
        [
            (point, count, node)
            for part, node in zip(parts, _nodes(request), strict=True)
            for (_, _, s, point), count in part
            if s == stage
        ]
        for stage in range(len(request.models[m].variants[v].stages))
    ]


def _rate(request: PlanRequest, m: int, parts: Sequence[Part]) -> float | None:
    """Requests/s of a model of which each GPU has this; None where that breaks one of its limits."""
    model, rate = request.models[m], 0.0
    if request.objective.attainment is not None:
        model = replace(model, min_throughput_rps=None)
    variants = {v for part in parts for (_, v, _, _), _ in part}
    for v in variants:
        rate, latency = served(request, model.variants[v], _stages(request, parts, v, m))
        if model.max_latency_ms is not None and latency > model.max_latency_ms + 1e-9:
            return None
    if model.min_throughput_rps is not None and rate < model.min_throughput_rps - 1e-9:
        return None
    if request.objective.survives and model.min_throughput_rps:
        for v in variants:
            for lost in range(len(parts)):
                if _left(request, parts, m, v, lost) < model.min_throughput_rps - 1e-9:
                    return None
    return rate


def _left(request: PlanRequest, parts: Sequence[Part], m: int, v: int, lost: int) -> float:
    """Requests/s of a model with the instances of one GPU gone, behind the link that it was planned with."""
    rest = [frozenset() if place == lost else part for place, part in enumerate(parts)]
    kept = _stages(request, rest, v, m)
    if not all(kept):
        return 0.0
    nodes = {node for part, node in zip(parts, _nodes(request), strict=True) if part}
    return served(request, request.models[m].variants[v], kept, nodes)[0]


def least_change(request: PlanRequest) -> float:
    """Least sum of relative changes of minima and latency limits with which some plan is sound."""
    request = alike_together(request)
    bare = replace(
        request,
        models=tuple(replace(m, min_throughput_rps=None, max_latency_ms=None) for m in request.models),
        objective=replace(request.objective, kind="weighted_sum"),
    )
    look, least = Look(bare), float("inf")
    for states in fleet_states(request):
        if look.worth(states) is not None:
            least = min(least, _change(request, states))
    return least


def _change(request: PlanRequest, states: tuple[GpuState, ...]) -> float:
    total = 0.0
    for m, model in enumerate(request.models):
        parts = [frozenset(one for one in state if one[0][0] == m) for state in states]
        variants = {v for part in parts for (_, v, _, _), _ in part}
        rate = 0.0
        for v in variants:
            rate, latency = served(request, model.variants[v], _stages(request, parts, v, m))
            if model.max_latency_ms is not None:
                total += max(0.0, latency - model.max_latency_ms) / model.max_latency_ms
        if model.min_throughput_rps:
            if request.objective.survives:
                for v in variants:
                    rate = min(_left(request, parts, m, v, lost) for lost in range(len(states)))
            total += max(0.0, model.min_throughput_rps - rate) / model.min_throughput_rps
    return total
