"""Pooled shares packed on concrete slices in a chain, then made as fair as the tenants allow.

Whole slices first. The rest of each model is chained: a slice is filled up, and a remainder that does not fit continues
on the next slice, so most slices have two tenants and every model can exchange share with its neighbours. The next
tenant of a slice is the one with the most memory that still fits, which puts small models between large ones; tenants
with the largest least share come before all. Without limits within a slice nothing is lost; with them share_program
spreads the loss over all models of the chain. The caller compares the result with the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchsplit_core.planning.formulation.solution import NEGLIGIBLE_SHARE
from torchsplit_core.planning.outcome.assignment import AssignedSlice, Assignment, assign_layouts
from torchsplit_core.planning.patterns.share_program import OutOfScale, Share, ShareProgram, share_demand
from torchsplit_core.planning.problem.build import Choice, Problem
from torchsplit_core.planning.tolerance import TOLERANCE

SHARE_TOLERANCE = 1e-9
"""Shares closer than this are equal."""

SHRINK_FACTORS = (0.0, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25)
"""Parts by which all shares are reduced in turn until every model has room."""


@dataclass
class _PendingShare:
    """The unassigned share of a choice, and the least share of any piece."""

    choice: Choice
    amount: float
    least_share: float


def pack_shares(
    problem: Problem, layouts: Mapping[tuple[int, int], int], amounts: Sequence[tuple[Choice, float]]
) -> Assignment | None:
    """Assign pooled shares to slices; None if a model loses a stage or its minimum.

    Keeps memory, least shares under latency limits, and the most tenants of a slice.
    """
    least = least_shares(problem, [choice for choice, _ in amounts])
    assignment = None
    for part in SHRINK_FACTORS:
        assignment = assign_layouts(problem, layouts)
        if _assign_all(problem, assignment, amounts, least, 1 - part):
            break
    return equalise_shares(problem, assignment) if assignment is not None else None


def equalise_shares(
    problem: Problem,
    assignment: Assignment,
    present: Callable[[int, Choice], float] = lambda place, choice: 0.0,
    surviving: Collection[int] = (),
) -> Assignment | None:
    """The same tenants with their fairest shares; None if no shares meet the minima.

    `present`: the least share of the tenant at this place of a slice, if that is above what limits ask for.
    `surviving`: models that keep their minimum without any one GPU.
    """
    tenancies = [
        (number, choice) for number, slice_ in enumerate(assignment.slices) for choice, _ in slice_.tenants
    ]
    stays = [
        present(*tenant) for slice_ in assignment.slices for tenant in enumerate(c for c, _ in slice_.tenants)
    ]
    used = sorted({choice.case for _, choice in tenancies})
    cases = [problem.cases[case_number] for case_number in used]
    if len({case.model for case in cases}) < len(cases):
        return None
    for case_number, case in zip(used, cases, strict=True):
        stages = {choice.stage for _, choice in tenancies if choice.case == case_number}
        if len(stages) < case.stages:
            return None
    least = least_shares(problem, [choice for _, choice in tenancies])
    shares = [
        Share(
            used.index(choice.case),
            choice.stage,
            slice_,
            choice.rate_rps,
            max(least.get(choice.case, 0.0), part),
        )
        for (slice_, choice), part in zip(tenancies, stays, strict=True)
    ]
    if not shares:
        return None if any(spec.min_throughput_rps for spec in problem.request.models) else assignment
    owners = [case.model for case in cases]
    try:
        demand = share_demand(problem.request.models)
        program = ShareProgram(demand, owners, shares, np.ones(len(assignment.slices)))
    except OutOfScale:
        return None
    _require_minima_without_gpus(problem, program, assignment, tenancies, surviving)
    if program.raise_levels() is None:
        return None
    for slice_ in assignment.slices:
        slice_.tenants = []
    for (number, choice), part in zip(tenancies, program.amounts().tolist(), strict=True):
        if part > NEGLIGIBLE_SHARE:
            assignment.slices[number].tenants.append((choice, part))
    for slice_ in assignment.slices:
        # The program keeps sums only to its tolerance.
        total = sum(part for _, part in slice_.tenants)
        if total > 1:
            slice_.tenants = [(choice, part / total) for choice, part in slice_.tenants]
    return assignment


def _require_minima_without_gpus(
    problem: Problem,
    program: ShareProgram,
    assignment: Assignment,
    tenancies: Sequence[tuple[int, Choice]],
    models: Collection[int],
) -> None:
    """Have the shares of these models, one for each tenancy (slice, choice), meet their minima without any one GPU."""
    by_stage: dict[tuple[int, int], list[int]] = {}
    for column, (_, choice) in enumerate(tenancies):
        if choice.model in models:
            by_stage.setdefault((choice.case, choice.stage), []).append(column)
    for columns in by_stage.values():
        least_rps = problem.request.models[tenancies[columns[0]][1].model].min_throughput_rps or 0.0
        gpu_of = {column: assignment.slices[tenancies[column][0]].gpu_id for column in columns}
        for lost in dict.fromkeys(gpu_of.values()):
            others = [column for column in columns if gpu_of[column] != lost]
            # Slightly more, since the program keeps rows to its tolerance only.
            program.require(others, least_rps * (1 + TOLERANCE))


def least_shares(problem: Problem, used: Sequence[Choice]) -> Mapping[int, float]:
    """Λ / (limit − transfer) for each case in use, with Λ over the points in use."""
    longest: dict[tuple[int, int], float] = {}
    for choice in used:
        key = (choice.case, choice.stage)
        longest[key] = max(longest.get(key, 0.0), choice.point.latency_ms)
    least = {}
    for case_number, case in enumerate(problem.cases):
        if case.budget_ms is not None:
            total = sum(longest.get((case_number, stage), 0.0) for stage in range(case.stages))
            least[case_number] = total / case.budget_ms if total else 0.0
    return least


def _assign_all(
    problem: Problem,
    assignment: Assignment,
    amounts: Sequence[tuple[Choice, float]],
    least: Mapping[int, float],
    scale: float,
) -> bool:
    """Assign every pool's items to slices; False if some do not fit (the others are assigned all the same)."""
    by_class: dict[tuple[int, str], list[_PendingShare]] = {}
    for choice, amount in amounts:
        floor = least.get(choice.case, 0.0)
        item = _PendingShare(choice, amount * scale, floor)
        by_class.setdefault((choice.group, choice.profile), []).append(item)
    assigned = True
    for key, items in by_class.items():
        slices = [slice_ for slice_ in assignment.slices if (slice_.group, slice_.profile) == key]
        for item in items:
            for slice_ in [slice_ for slice_ in slices if not slice_.tenants][
                : int(item.amount + SHARE_TOLERANCE)
            ]:
                slice_.tenants.append((item.choice, 1.0))
                item.amount -= 1.0
        rest = [item for item in items if item.amount > NEGLIGIBLE_SHARE]
        rest.sort(key=lambda item: (-item.least_share, -item.choice.memory_gib, -item.amount))
        assigned = (
            _chain_shares(problem, [slice_ for slice_ in slices if not slice_.tenants], rest) and assigned
        )
    return assigned


def _chain_shares(problem: Problem, slices: Sequence[AssignedSlice], items: list[_PendingShare]) -> bool:
    """Chain the items through the slices; whether all fit."""
    carried: _PendingShare | None = None
    for slice_ in slices:
        if carried is not None:
            piece = min(1.0, max(carried.amount, carried.least_share))
            slice_.tenants.append((carried.choice, piece))
            carried = None
        while items and slice_.free_share > SHARE_TOLERANCE:
            item = next((candidate for candidate in items if _fits(problem, slice_, candidate)), None)
            if item is None:
                break
            items.remove(item)
            piece = min(slice_.free_share, max(item.amount, item.least_share))
            rest = item.amount - piece
            if rest > NEGLIGIBLE_SHARE:
                # Both pieces must be large enough.
                if rest < item.least_share and item.amount - item.least_share >= item.least_share:
                    piece = item.amount - item.least_share
                carried = _PendingShare(item.choice, item.amount - piece, item.least_share)
            slice_.tenants.append((item.choice, piece))
            if carried is not None:
                break
    return not items and carried is None


def _fits(problem: Problem, slice_: AssignedSlice, item: _PendingShare) -> bool:
    """Whether free share, memory and the number of tenants allow the item on this slice."""
    request, choice = problem.request, item.choice
    if slice_.free_share + SHARE_TOLERANCE < item.least_share:
        return False
    if any(other is choice or other.needs_own_slice or choice.needs_own_slice for other, _ in slice_.tenants):
        return False
    if request.max_tenants_per_slice is not None and len(slice_.tenants) >= request.max_tenants_per_slice:
        return False
    limit = problem.slice_memory_gib(slice_.group, slice_.profile)
    if request.objective.memory_violation_penalty is not None:
        # Excess memory costs a penalty, which the exact model weighs.
        limit = max(limit, choice.memory_gib)
    return sum(other.memory_gib for other, _ in slice_.tenants) + choice.memory_gib <= limit + SHARE_TOLERANCE
