"""The best plan of a tiny request with engines on groups of GPUs, by looking at every one.

From the contract's words alone: models of one stage, whole slices, groups of GPUs of one type on one node.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations, product

from torchsplit_core.hardware import gpu_type, layout_multisets
from torchsplit_core.values import FleetEntry, PlanOutcome, PlanRequest

Rates = tuple[float, ...]
Unit = tuple[Rates, frozenset[int], float]
"""What a GPU or a group of them gives each model, the models on it, and its cost where it is used."""
Worth = tuple[float, ...]


def best_worth(request: PlanRequest) -> Worth | None:
    """The objective of the best plan, larger is better; None where no plan keeps the minima."""
    return _best(request, [entry for entry in request.gpus for _ in range(entry.count)], [])


def best_worth_near(request: PlanRequest, now: PlanOutcome, most: int) -> Worth | None:
    """The same of plans that leave all but `most` GPUs as in the plan `now`; every entry is one GPU."""
    places: dict[object, list[int]] = defaultdict(list)
    for i, gpu in enumerate(now.gpus):
        places[gpu.group or i].append(i)
    best: Worth | None = None
    for count in range(most + 1):
        for touched in combinations(range(len(now.gpus)), count):
            left = [members for members in places.values() if not set(members) & set(touched)]
            if sum(map(len, left)) != len(now.gpus) - count:
                # Part of a group stays only with the whole.
                continue
            fixed = [_as_now(request, now, members) for members in left]
            worth = _best(request, [request.gpus[i] for i in touched], fixed)
            if worth is not None and (best is None or worth > best):
                best = worth
    return best


def _as_now(request: PlanRequest, now: PlanOutcome, members: Sequence[int]) -> Unit:
    names = [model.name for model in request.models]
    total = [0.0] * len(names)
    for i in members:
        for item in now.gpus[i].slices:
            for tenant in item.tenants:
                total[names.index(tenant.model)] += tenant.throughput_rps
    used = sum(_cost(request.gpus[i]) for i in members if now.gpus[i].used)
    return tuple(total), frozenset(m for m, rate in enumerate(total) if rate), used


def _best(request: PlanRequest, gpus: Sequence[FleetEntry], fixed: list[Unit]) -> Worth | None:
    options = {entry: list(_states(request, entry)) for entry in set(gpus)}
    best: Worth | None = None
    for units in _divisions(request, gpus, options):
        for chosen in product(*units):
            worth = _worth(request, [*chosen, *fixed])
            if worth is not None and (best is None or worth > best):
                best = worth
    return best


def _divisions(
    request: PlanRequest, gpus: Sequence[FleetEntry], options: dict[FleetEntry, list[Unit]]
) -> Iterator[list[list[Unit]]]:
    """The fleet as single GPUs and groups, each with what it may hold; equal divisions once."""
    seen = set()
    for groups in _groups(request, gpus, frozenset(range(len(gpus)))):
        grouped = frozenset().union(*(members for members, _ in groups))
        key = (
            frozenset(Counter(engines for _, engines in groups).items()),
            frozenset(Counter(gpus[i] for i in range(len(gpus)) if i not in grouped).items()),
        )
        if key in seen:
            continue
        seen.add(key)
        single = [options[gpus[i]] for i in range(len(gpus)) if i not in grouped]
        yield [*single, *([unit] for _, engines in groups for unit in engines)]


def _groups(
    request: PlanRequest, gpus: Sequence[FleetEntry], left: frozenset[int]
) -> Iterator[list[tuple[frozenset[int], tuple[Unit, ...]]]]:
    """Every set of disjoint groups of the GPUs that are left, each with one engine."""
    yield []
    for first in sorted(left):
        rest = frozenset(i for i in left if i > first)
        for size, model, rate in _engines(request, gpus[first]):
            for others in combinations(sorted(rest), size - 1):
                members = frozenset((first, *others))
                if {(gpus[i].type, gpus[i].node) for i in members} != {(gpus[first].type, gpus[first].node)}:
                    continue
                if not all(_may_be_whole(gpus[i]) for i in members):
                    continue
                cost = sum(_cost(gpus[i]) for i in members)
                unit = (_only(request, model, rate), frozenset((model,)), cost)
                for further in _groups(request, gpus, rest - members):
                    yield [(members, (unit,)), *further]


def _engines(request: PlanRequest, entry: FleetEntry) -> Iterator[tuple[int, int, float]]:
    for m, model in enumerate(request.models):
        for point in model.points:
            if point.tensor_parallel > 1 and point.gpu_type == entry.type:
                yield point.tensor_parallel, m, point.throughput_rps


def _states(request: PlanRequest, entry: FleetEntry) -> Iterator[Unit]:
    """What one GPU can hold: idle slices allowed, equal results once, dominated ones left out."""
    kind = gpu_type(entry.type)
    layouts: list[tuple[str, ...]] = []
    if _may_be_whole(entry):
        layouts.append(("",))
    if kind.profiles and entry.mig is not False:
        layouts += entry.layouts or layout_multisets(kind)
    rates = defaultdict(list)
    for m, model in enumerate(request.models):
        for point in model.points:
            if point.tensor_parallel == 1 and point.gpu_type == entry.type:
                rates[point.profile].append((m, point.throughput_rps))
    states: set[tuple[Rates, frozenset[int]]] = set()
    for layout in layouts:
        for held in product(*([None, *rates[name]] for name in layout)):
            sums = [0.0] * len(request.models)
            for m, rate in filter(None, held):
                sums[m] += rate
            states.add((tuple(sums), frozenset(m for m, _ in filter(None, held))))
    for total, there in states:
        if not any(
            other != total and members == there and all(map(float.__ge__, other, total))
            for other, members in states
        ):
            yield total, there, _cost(entry) if there else 0.0


def _may_be_whole(entry: FleetEntry) -> bool:
    return entry.mig is not True or not gpu_type(entry.type).profiles


def _cost(entry: FleetEntry) -> float:
    return 1.0 if entry.cost is None else entry.cost


def _only(request: PlanRequest, model: int, rate: float) -> Rates:
    return tuple(rate if m == model else 0.0 for m in range(len(request.models)))


def _worth(request: PlanRequest, units: Sequence[Unit]) -> Worth | None:
    totals = [sum(column) for column in zip(*(rates for rates, _, _ in units), strict=True)]
    for m, model in enumerate(request.models):
        least = model.min_throughput_rps or 0.0
        if totals[m] < least * (1 - 1e-9):
            return None
        lost = max(rates[m] for rates, _, _ in units)
        if request.objective.survives and totals[m] - lost < least * (1 - 1e-9):
            return None
    names = [model.name for model in request.models]
    for pair in request.colocations:
        wanted = {names.index(name) for name in pair.models}
        if any(0 < len(there & wanted) < len(wanted) for _, there, _ in units):
            return None
    if request.objective.kind == "min_gpus":
        return (-sum(cost for _, _, cost in units),)
    counted = [
        min(total, model.demand_rps) if model.cap_at_demand else total
        for model, total in zip(request.models, totals, strict=True)
    ]
    if request.objective.kind == "weighted_sum":
        return (sum(model.weight * total for model, total in zip(request.models, counted, strict=True)),)
    normalised = sorted(
        total / (model.weight * model.demand_rps)
        for model, total in zip(request.models, counted, strict=True)
    )
    return tuple(normalised[:1] if request.objective.kind == "max_min" else normalised)
