"""The best fractional plan on a few GPUs: every set of tenants on every slice, shares by linear programs."""

from collections import Counter, defaultdict
from itertools import chain, combinations, combinations_with_replacement, product

import numpy as np
from scipy.optimize import linprog

from tests.support.planning.oracle import alike_together, by_tier, linked, moving_ms, names_of
from torchsplit_core.hardware import gpu_type, layout_multisets
from torchsplit_core.values import FleetEntry, PlanRequest, Point, point_type

Instance = tuple[int, int, int, Point]
Slot = tuple[Instance, ...]


def best_shared(request: PlanRequest) -> tuple[float, ...] | None:
    """The leximin-best sorted vector of normalised throughputs of a request of one GPU or a few, all on one node; with
    tiers as `by_tier` has it."""
    best: tuple[float, ...] | None = None
    by_entry = (
        combinations_with_replacement(_fillings(request, entry), entry.count)
        for entry in alike_together(request).gpus
    )
    fleets = (tuple(chain.from_iterable(chosen)) for chosen in product(*by_entry))
    every = [
        (tuple(chain.from_iterable(filled)), [gpu for gpu, mine in enumerate(filled) for _ in mine])
        for filled in fleets
        if all(_keeps_pairs(request, slots) for slots in filled)
    ]
    bounds = [_at_most(request, slots) for slots, _ in every]
    # What may become best comes first: what cannot become better than that needs no linear programs.
    for number in sorted(range(len(every)), key=bounds.__getitem__, reverse=True):
        if best is None or _greater(bounds[number], best):
            vector = _leximin(request, *every[number])
            if vector is not None and (best is None or _greater(vector, best)):
                best = vector
    return best


def _keeps_pairs(request: PlanRequest, slots: tuple[Slot, ...]) -> bool:
    """Whether all of a hard co-location, or none of it, stands on a GPU with these slots."""
    there = names_of(request, chain.from_iterable(slots))
    hard = [set(pair.models) for pair in request.colocations if pair.mode == "hard"]
    return all(len(there & names) in (0, len(names)) for names in hard)


def _at_most(request: PlanRequest, slots: tuple[Slot, ...]) -> tuple[float, ...]:
    """The vector as it were if every tenant had its slice to itself."""
    link = None if request.link_gb_per_s is None else request.link_gb_per_s * 1e9
    given: defaultdict[tuple[int, int, int], float] = defaultdict(float)
    for m, v, s, point in chain.from_iterable(slots):
        given[m, v, s] += min(point.throughput_rps, linked(request.models[m].variants[v], s, point, link))
    most = []
    for m, model in enumerate(request.models):
        rate = min((rate for (of, _, _), rate in given.items() if of == m), default=0.0)
        counted = min(rate, model.demand_rps) if model.cap_at_demand else rate
        most.append(counted / (model.weight * model.demand_rps))
    return tuple(by_tier(request, most))


def _fillings(request: PlanRequest, entry: FleetEntry) -> list[tuple[Slot, ...]]:
    """What may stand on the slices of a GPU in use, slice by slice."""
    kind = gpu_type(entry.type)
    whole = not kind.profiles or not entry.mig
    found: dict[tuple[str, ...], tuple[Slot, ...]] = {}
    for layout in (("",),) if whole else entry.layouts or layout_multisets(kind):
        parts = []
        for name, count in sorted(Counter(layout).items()):
            parts.append(list(combinations_with_replacement(_subsets(request, entry.type, name), count)))
        for combined in product(*parts):
            slots = tuple(slot for part in combined for slot in part if slot)
            found[tuple(sorted(map(repr, slots)))] = slots
    return list(found.values())


def _greater(new: tuple[float, ...], old: tuple[float, ...]) -> bool:
    for mine, other in zip(new, old, strict=True):
        if abs(mine - other) > 1e-7 * max(abs(mine), abs(other)):
            return mine > other
    return False


def _subsets(request: PlanRequest, kind: str, name: str) -> list[Slot]:
    size = gpu_type(kind).profile(name).memory_gib or float("inf")
    here = [
        (m, v, s, point)
        for m, model in enumerate(request.models)
        for v, variant in enumerate(model.variants)
        for s, stage in enumerate(variant.stages)
        for point in stage.points
        if (point.gpu_type, point.profile) == (point_type(kind), name)
    ]
    most = request.max_tenants_per_slice or len(here)
    every = chain.from_iterable(combinations(here, count) for count in range(min(most, len(here)) + 1))
    return [slot for slot in every if _fits(slot, size)]


def _fits(slot: Slot, size: float) -> bool:
    """What has unknown memory shares its slice with nobody."""
    known = [point.memory_gib for *_, point in slot]
    return (len(slot) == 1 or None not in known) and sum(need or 0.0 for need in known) <= size


def _leximin(request: PlanRequest, slots: tuple[Slot, ...], gpus: list[int]) -> tuple[float, ...] | None:
    """Best shares for these tenants, by linear programs; `gpus` has the GPU of every slot."""
    link = None if request.link_gb_per_s is None else request.link_gb_per_s * 1e9
    tenants = [(number, item) for number, slot in enumerate(slots) for item in slot]
    shares, models = len(tenants), len(request.models)
    # Columns: the shares, what each tenant gives with its share, then the models' throughputs.
    count = 2 * shares
    lower, upper = np.zeros(count + models), np.full(count + models, np.inf)
    upper[:shares] = 1.0
    tied = set().union(*(pair.models for pair in request.colocations))
    # A tenant that a co-location asks for has at least this share (docs/internals/formulations.md).
    lower[[i for i, (_, item) in enumerate(tenants) if names_of(request, [item]) & tied]] = 1e-4
    rows: list[np.ndarray] = []
    limits: list[float] = []
    for number in range(len(slots)):
        row = np.zeros(count + models)
        row[[i for i, (slot, _) in enumerate(tenants) if slot == number]] = 1.0
        rows.append(row)
        limits.append(1.0)
    for m, model in enumerate(request.models):
        mine = [i for i, (_, item) in enumerate(tenants) if item[0] == m]
        if len({tenants[i][1][1] for i in mine}) > 1:
            return None
        if not mine:
            upper[count + m] = 0.0
        else:
            variant = model.variants[tenants[mine[0]][1][1]]
            longest = 0.0
            for s in range(len(variant.stages)):
                here = [i for i in mine if tenants[i][1][2] == s]
                if not here:
                    return None
                longest += max(tenants[i][1][3].latency_ms for i in here)
                row = np.zeros(count + models)
                row[count + m] = 1.0
                for i in here:
                    point = tenants[i][1][3]
                    low = point.low_rps if request.solver.plan_at == "low" else None
                    given = np.zeros(count + models)
                    given[shares + i], given[i] = 1.0, -(point.throughput_rps if low is None else low)
                    rows.append(given)
                    limits.append(0.0)
                    upper[shares + i] = linked(variant, s, point, link)
                    row[shares + i] = -1.0
                rows.append(row)
                limits.append(0.0)
                for lost in set(gpus) if request.objective.survives and model.min_throughput_rps else ():
                    kept = np.zeros(count + models)
                    kept[[shares + i for i in here if gpus[tenants[i][0]] != lost]] = -1.0
                    rows.append(kept)
                    limits.append(-(model.min_throughput_rps or 0.0))
            if model.max_latency_ms is not None:
                batches = [
                    max(tenants[i][1][3].batch_size for i in mine if tenants[i][1][2] == s)
                    for s in range(len(variant.stages))
                ]
                moved = moving_ms(variant, batches, link)
                if model.max_latency_ms <= moved or longest > model.max_latency_ms - moved + 1e-9:
                    return None
                lower[mine] = np.maximum(lower[mine], longest / (model.max_latency_ms - moved))
        lower[count + m] = model.min_throughput_rps or 0.0
        if lower[count + m] > upper[count + m]:
            return None
    return _rank(request, rows, limits, lower, np.maximum(upper, lower), count)


def _rank(
    request: PlanRequest,
    rows: list[np.ndarray],
    limits: list[float],
    lower: np.ndarray,
    upper: np.ndarray,
    count: int,
) -> tuple[float, ...] | None:
    """Lexicographic maximum of the sums of the k smallest, k = 1 … N, exactly as linear programs; tier by tier first,
    where no r counts for more than 1."""
    models = len(request.models)
    tiers = sorted({model.tier for model in request.models}, reverse=True)
    groups = [([m for m in range(models) if request.models[m].tier == tier], 1.0) for tier in tiers]
    groups = [*(groups if len(tiers) > 1 else ()), (list(range(models)), np.inf)]
    levels = [(members, cap, k) for members, cap in groups for k in range(1, len(members) + 1)]
    caps = [model.demand_rps if model.cap_at_demand else np.inf for model in request.models]
    units = [model.weight * model.demand_rps for model in request.models]
    floors: list[tuple[np.ndarray, float]] = []
    sums: list[float] = []
    width = count + models + models + len(levels) * (1 + models)
    # Columns: shares, T, u (what counts, normalised), then t_k and d_mk of every level.
    for number, (_, _, k) in enumerate(levels, start=1):
        matrix = [np.concatenate([row, np.zeros(width - len(row))]) for row in rows]
        right = list(limits)
        for m in range(models):
            row = np.zeros(width)
            row[count + models + m], row[count + m] = units[m], -1.0
            matrix.append(row)
            right.append(0.0)
            for level in (at for at in range(number) if m in levels[at][0]):
                start = count + 2 * models + level * (1 + models)
                row = np.zeros(width)
                row[start], row[start + 1 + m], row[count + models + m] = 1.0, -1.0, -1.0
                matrix.append(row)
                right.append(0.0)
        for theta, value in floors:
            matrix.append(-theta)
            right.append(-value)
        start = count + 2 * models + (number - 1) * (1 + models)
        theta = np.zeros(width)
        theta[start], theta[start + 1 : start + 1 + models] = k, -1.0
        low, high = np.zeros(width), np.full(width, np.inf)
        for level, (_, cap, _) in enumerate(levels):
            high[count + 2 * models + level * (1 + models)] = cap
        low[: len(lower)], high[: len(upper)] = lower, upper
        high[count + models : count + 2 * models] = [c / u for c, u in zip(caps, units, strict=True)]
        answer = linprog(-theta, A_ub=np.array(matrix), b_ub=right, bounds=np.column_stack([low, high]))
        if answer.status != 0:
            return None
        sums.append(-answer.fun)
        floors.append((theta, -answer.fun - 1e-9))
    return tuple(
        value - (before if k > 1 else 0.0)
        for value, before, (_, _, k) in zip(sums, [0.0, *sums[:-1]], levels, strict=True)
    )
