"""Whole-slice plans improved by second tenants, which use what a slice's owner can spare.

An owner with more of a slice than it needs lends the rest to a second tenant whose memory fits beside it; every second
tenant owns slices elsewhere, so surplus moves to the worst-served models. The pooled prices choose the second tenants,
and share_program their shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.fractional.packing import SHARE_TOLERANCE, equalise_shares
from torchsplit_core.planning.outcome.assignment import AssignedSlice, Assignment
from torchsplit_core.planning.problem.build import Choice, Problem
from torchsplit_core.planning.request.objective import unit_rps

MIN_SHARED_RATE = 0.7
"""Part of its best throughput that a model must reach beside others to be held back for models that cannot."""

PRESENCE_SHARE = 0.01
"""Least share of a co-located owner, which stays beside a second tenant."""


def add_second_tenants(
    problem: Problem, assignment: Assignment, prices: NDArray[np.float64]
) -> Assignment | None:
    """The assignment with at most one second tenant a slice and its fairest shares; None if a minimum is missed.

    `prices` weigh the models' levels. Models under a latency limit are not second tenants: a small share would break
    it; co-located ones only where they are already.
    """
    most = problem.request.max_tenants_per_slice
    if most is not None and most < 2:
        return None
    cases_in_use = {choice.case for slice_ in assignment.slices for choice, _ in slice_.tenants}
    by_pool: dict[tuple[int, str], list[Choice]] = {}
    for choice in problem.choices:
        if choice.case in cases_in_use and not problem.cases[choice.case].has_latency_levels:
            by_pool.setdefault((choice.group, choice.profile), []).append(choice)
    members = problem.colocation_index.hard_members
    present: dict[str, frozenset[int]] = {}
    for slice_ in assignment.slices if members else ():
        for choice, _ in slice_.tenants:
            there = problem.colocation_members(choice) & members
            present[slice_.gpu_id] = present.get(slice_.gpu_id, frozenset()) | there
    owned: dict[tuple[int, str, int, frozenset[int]], list[AssignedSlice]] = {}
    for slice_ in assignment.slices:
        if len(slice_.tenants) == 1:
            there = present.get(slice_.gpu_id, frozenset())
            key = slice_.group, slice_.profile, id(slice_.tenants[0][0]), there
            owned.setdefault(key, []).append(slice_)
    for (group, profile, _, there), slices in owned.items():
        owner = slices[0].tenants[0][0]
        if owner.needs_own_slice:
            continue
        size = problem.slice_memory_gib(group, profile)
        room = size - owner.memory_gib
        allowed = [
            choice
            for choice in by_pool.get((group, profile), [])
            if problem.colocation_members(choice) & members <= there
        ]
        candidates = _second_tenants(problem, allowed, owner, room, prices)
        for slice_, choice in zip(slices, candidates, strict=False):
            slice_.tenants.append((choice, 0.0))

    def owner_stays(place: int, choice: Choice) -> float:
        return PRESENCE_SHARE if place == 0 and problem.colocation_members(choice) & members else 0.0

    return equalise_shares(problem, assignment, owner_stays)


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


def _second_tenants(
    problem: Problem,
    choices: Sequence[Choice],
    owner: Choice,
    room: float,
    prices: NDArray[np.float64],
) -> list[Choice]:
    """The second tenants that fit, one choice a model and stage, by the value of a whole slice to them."""
    best_by_stage: dict[tuple[int, int], tuple[float, Choice]] = {}
    for choice in choices:
        key = (choice.model, choice.stage)
        if (
            key == (owner.model, owner.stage)
            or choice.needs_own_slice
            or choice.memory_gib > room + SHARE_TOLERANCE
        ):
            continue
        spec = problem.request.models[choice.model]
        worth = float(prices[choice.model]) * choice.rate_rps / unit_rps(spec)
        if key not in best_by_stage or worth > best_by_stage[key][0]:
            best_by_stage[key] = (worth, choice)
    return [choice for _, choice in sorted(best_by_stage.values(), key=lambda item: -item[0])]
