"""Pooled shares onto concrete slices: whole slices first, then the remainders where they fit.

Without limits that tie a slice together (memory of co-tenants, least shares, most tenants)
nothing is lost: slices of one profile are alike, and a remainder may be split over two. With
them this is a heuristic, and the caller compares what it gives with the bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchsplit_core.planning.disaggregate import Bench, Slot, lay_out
from torchsplit_core.planning.expand import Choice, Problem
from torchsplit_core.planning.solution import NOTHING

CLOSE = 1e-9
"""Shares closer than this are equal."""


def pack(
    problem: Problem, layouts: Mapping[tuple[int, int], int], amounts: Sequence[tuple[Choice, float]]
) -> Bench | None:
    """Seat pooled shares; None where a model loses a stage, or its demand, on the way.

    Memory, least shares under latency limits and the most tenants of a slice are kept to.
    """
    bench = lay_out(problem, layouts)
    least = _least_shares(problem, [choice for choice, _ in amounts])
    wanted: dict[tuple[int, str], list[tuple[float, float, Choice]]] = {}
    for choice, amount in amounts:
        floor = least.get((choice.model, choice.variant), 0.0)
        wanted.setdefault((choice.group, choice.profile), []).append((amount, floor, choice))
    for key, items in wanted.items():
        slots = [slot for slot in bench.slots if (slot.group, slot.profile) == key]
        rest = []
        for amount, floor, choice in items:
            whole = int(amount + CLOSE)
            for slot in [slot for slot in slots if not slot.tenants][:whole]:
                slot.tenants.append((choice, 1.0))
            if amount - whole > NOTHING:
                rest.append((amount - whole, floor, choice))
        for amount, floor, choice in sorted(rest, key=lambda item: (-item[2].memory_gib, -item[0])):
            _seat(problem, slots, amount, floor, choice)
    return bench if _keeps_demands(problem, bench) else None


def _seat(problem: Problem, slots: list[Slot], amount: float, floor: float, choice: Choice) -> None:
    """Seat a remainder on the fullest slice that takes it whole, or else in pieces, fullest first."""
    able = [slot for slot in slots if _welcome(problem, slot, choice)]
    whole = [slot for slot in able if slot.free + CLOSE >= max(amount, floor)]
    if whole:
        tightest = min(whole, key=lambda slot: (not slot.tenants, slot.free))
        tightest.tenants.append((choice, min(max(amount, floor), max(slot.free for slot in whole))))
        return
    for slot in sorted(able, key=lambda slot: slot.free):
        piece = min(amount, slot.free)
        if piece > NOTHING and piece + CLOSE >= floor:
            slot.tenants.append((choice, piece))
            amount -= piece
        if amount <= NOTHING:
            return


def _welcome(problem: Problem, slot: Slot, choice: Choice) -> bool:
    """Whether memory and the most tenants allow one more on this slice."""
    request = problem.request
    if request.max_tenants_per_slice is not None and len(slot.tenants) >= request.max_tenants_per_slice:
        return False
    if request.objective.memory_violation_penalty is not None:
        # Excess costs a penalty: leave that weighing to the exact model.
        limit = max(problem.capacity_gib[problem.groups[slot.group].type, slot.profile], choice.memory_gib)
    else:
        limit = problem.capacity_gib[problem.groups[slot.group].type, slot.profile]
    return sum(other.memory_gib for other, _ in slot.tenants) + choice.memory_gib <= limit + CLOSE


def _least_shares(problem: Problem, used: Sequence[Choice]) -> Mapping[tuple[int, int], float]:
    """For each variant in use Λ / (limit − transfer), Λ over the points in use."""
    longest: dict[tuple[int, int, int], float] = {}
    for choice in used:
        key = (choice.model, choice.variant, choice.stage)
        longest[key] = max(longest.get(key, 0.0), choice.point.latency_ms)
    least = {}
    for case in problem.cases:
        if case.budget_ms is not None:
            total = sum(longest.get((case.model, case.variant, stage), 0.0) for stage in range(case.stages))
            least[case.model, case.variant] = total / case.budget_ms if total else 0.0
    return least


def _keeps_demands(problem: Problem, bench: Bench) -> bool:
    """Whether every variant in use has all its stages, and every minimum is met."""
    rates: dict[tuple[int, int, int], float] = {}
    for slot in bench.slots:
        for choice, share in slot.tenants:
            key = (choice.model, choice.variant, choice.stage)
            rates[key] = rates.get(key, 0.0) + share * choice.point.throughput_rps
    reached = [0.0] * len(problem.request.models)
    for case in problem.cases:
        stages = [rates.get((case.model, case.variant, stage)) for stage in range(case.stages)]
        if all(stage is None for stage in stages):
            continue
        if any(stage is None for stage in stages):
            return False
        reached[case.model] += min(stage or 0.0 for stage in stages)
    return all(
        rate >= (spec.min_throughput_rps or 0.0) * (1 - CLOSE)
        for spec, rate in zip(problem.request.models, reached, strict=True)
    )
