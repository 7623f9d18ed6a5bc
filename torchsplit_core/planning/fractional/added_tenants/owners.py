"""Plans in which a slice has one tenant or none, to which more are added: of pooled shares, and of whole slices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torchsplit_core.planning.fractional.packing import SHARE_TOLERANCE
from torchsplit_core.planning.fractional.relaxation import AggregatedShares
from torchsplit_core.planning.outcome.assignment import AssignedSlice, Assignment, assign_layouts
from torchsplit_core.planning.problem.build import Choice, Problem

MIN_SHARED_RATE = 0.7
"""Part of its best throughput that a model must reach beside others to be held back for models that cannot."""

RESTS = (1.0, 0.8, 0.5, 0.0)
"""Parts of a slice above which a model has the whole slice, where one is left: which is best differs from request to
request."""

ADDED_SHARE = 0.5
"""Part of the remaining time for plans with all these."""


def own_slices(problem: Problem, shares: AggregatedShares, rest: float) -> Assignment:
    """The whole slices among pooled shares, and those of which a model has more than `rest`; others have no tenant."""
    assignment = assign_layouts(problem, shares.layouts)
    slices: dict[tuple[int, str], list[AssignedSlice]] = {}
    for slice_ in assignment.slices:
        slices.setdefault((slice_.group, slice_.profile), []).append(slice_)
    parts: dict[tuple[int, str], list[tuple[Choice, float]]] = {}
    for number, amount in sorted(shares.amounts.items()):
        choice = problem.choices[number]
        parts.setdefault((choice.group, choice.profile), []).append((choice, amount))
    for pool, of_pool in parts.items():
        # Of a pool without slices there may be a part that is rounding.
        give_whole_slices(slices.get(pool, ()), of_pool, rest)
    return assignment


def give_whole_slices(
    slices: Sequence[AssignedSlice], parts: Sequence[tuple[Choice, float]], rest: float
) -> None:
    """Give equal slices to the choices that have so many of them, as `own_slices` does.

    What cannot share a slice is rounded up.
    """
    whole = [(math.floor(amount + SHARE_TOLERANCE), choice) for choice, amount in parts]
    left = [
        (amount - count, choice)
        for (choice, amount), (count, _) in zip(parts, whole, strict=True)
        if amount - count > (SHARE_TOLERANCE if choice.needs_own_slice else max(rest, SHARE_TOLERANCE))
    ]
    left.sort(key=lambda item: (not item[1].needs_own_slice, -item[0]))
    owners = [choice for count, choice in whole for _ in range(count)]
    owners += [choice for _, choice in left]
    for slice_, choice in zip(slices, owners, strict=False):
        slice_.tenants.append((choice, 0.0))


def as_fractional(problem: Problem, assignment: Assignment) -> Assignment | None:
    """An assignment of whole slices with the cases and choices of `problem`; None if no case contains a model's.

    Whole slices distinguish other cases than shares do.
    """
    by_key: dict[tuple[object, ...], dict[int, Choice]] = {}
    for choice in problem.choices:
        by_key.setdefault(_choice_key(choice), {})[choice.case] = choice
    common_cases: dict[int, set[int]] = {}
    for choice in {id(c): c for slice_ in assignment.slices for c, _ in slice_.tenants}.values():
        cases = set(by_key.get(_choice_key(choice), ()))
        common_cases[choice.model] = common_cases.get(choice.model, cases) & cases
    if not all(common_cases.values()):
        return None
    slices = [
        replace(
            slice_,
            tenants=[
                (by_key[_choice_key(c)][min(common_cases[c.model])], share) for c, share in slice_.tenants
            ],
        )
        for slice_ in assignment.slices
    ]
    return replace(assignment, slices=slices)


def cases_of(assignment: Assignment) -> set[int]:
    """The cases that have tenants."""
    return {choice.case for slice_ in assignment.slices for choice, _ in slice_.tenants}


def _choice_key(choice: Choice) -> tuple[object, ...]:
    point = choice.point
    return (
        choice.model, choice.variant, choice.stage, choice.group, choice.profile, point.batch_size, point.processes
    )  # fmt: skip


def second_tenant_models(problem: Problem) -> set[int]:
    """Models without a latency limit that lose little when they use at most half of a slice's memory."""
    best: dict[int, float] = {}
    best_beside: dict[int, float] = {}
    for choice in problem.choices:
        group = problem.groups[choice.group]
        # The rate of a GPU divided into such slices alone.
        count = max(layout.usable_counts.get(choice.profile, 0) for layout in group.layouts)
        rate = choice.rate_rps * count
        best[choice.model] = max(best.get(choice.model, 0.0), rate)
        if problem.cases[choice.case].has_latency_levels or choice.needs_own_slice:
            continue
        if choice.memory_gib <= problem.slice_memory_gib(choice.group, choice.profile) / 2:
            best_beside[choice.model] = max(best_beside.get(choice.model, 0.0), rate)
    return {model for model, rate in best_beside.items() if rate >= MIN_SHARED_RATE * best[model]}
