"""Further tenants on slices, by a linear program that takes equal slices together.

Slices of one pool with the same tenants are a class. In the program any other model may have a part of a class if its
memory fits beside those tenants. Parts are then dealt out to slices; where they do not fit (more models than slices, or
more memory), those that do stay, their slices are classes of their own, and the program is solved again.

| row | formula |
|---|---|
| pool[k] | Σ_u∈k x[u] ≤ the slices of class k |

The other rows are those of share_program.py. Tenants that slices have at first keep their least share of each.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchsplit_core.planning.formulation.solution import NEGLIGIBLE_SHARE
from torchsplit_core.planning.fractional.packing import SHARE_TOLERANCE, equalise_shares, least_shares
from torchsplit_core.planning.outcome.assignment import AssignedSlice, Assignment
from torchsplit_core.planning.patterns.share_program import OutOfScale, Share, ShareProgram, share_demand
from torchsplit_core.planning.problem.build import Choice, Problem

PRESENCE_SHARE = 0.01
"""Least share of a co-located tenant."""

MAX_ROUNDS = 20
"""Programs after which what does not fit is dropped."""

Parts = list[tuple[Choice, float]]
"""Choices with the slices they have of a class."""


@dataclass(frozen=True)
class _SliceClass:
    """Slices with equal tenants; `spare` is the share of each beyond the least shares of its tenants."""

    slices: Sequence[AssignedSlice]
    tenants: tuple[Choice, ...]
    candidates: Sequence[Choice]
    room_gib: float
    spare: float


def add_tenants(
    problem: Problem, assignment: Assignment, cases: Collection[int], deadline: float
) -> Assignment | None:
    """The assignment with further tenants of these cases and its fairest shares; None if a minimum is missed.

    Models under a limit of their service time get no further slices, since a small share would break it, and co-located
    ones only those of GPUs where they are. After the `deadline` (time.perf_counter) no further program is solved.
    """
    members = problem.colocation_index.hard_members
    tenants = [choice for slice_ in assignment.slices for choice, _ in slice_.tenants]
    least = dict(least_shares(problem, tenants))
    for choice in tenants:
        if problem.colocation_members(choice) & members:
            least[choice.case] = max(PRESENCE_SHARE, least.get(choice.case, 0.0))
    most = problem.request.max_tenants_per_slice or len(cases)
    classes = list(_list_classes(problem, assignment, cases, least))
    for number in range(MAX_ROUNDS):
        parts = _solve(problem, classes, least)
        if parts is None:
            return None
        dealt = [_deal(item, of_class, most) for item, of_class in zip(classes, parts, strict=True)]
        late = number == MAX_ROUNDS - 1 or time.perf_counter() > deadline
        if late or all(complete for _, complete in dealt):
            break
        classes = [part for item, way in zip(classes, dealt, strict=True) for part in _divide(item, *way)]
    for item, (added, _) in zip(classes, dealt, strict=True):
        for slice_, further in zip(item.slices, added, strict=True):
            slice_.tenants = [(choice, 0.0) for choice in (*item.tenants, *further)]

    def presence(place: int, choice: Choice) -> float:
        return PRESENCE_SHARE if problem.colocation_members(choice) & members else 0.0

    return equalise_shares(problem, assignment, presence)


def _list_classes(
    problem: Problem, assignment: Assignment, cases: Collection[int], least: Mapping[int, float]
) -> Iterator[_SliceClass]:
    members = problem.colocation_index.hard_members
    there: dict[str, frozenset[int]] = {}
    for slice_ in assignment.slices if members else ():
        for choice, _ in slice_.tenants:
            present = problem.colocation_members(choice) & members
            there[slice_.gpu_id] = there.get(slice_.gpu_id, frozenset()) | present
    by_pool: dict[tuple[int, str], list[Choice]] = {}
    for choice in problem.choices:
        limited = problem.cases[choice.case].has_latency_levels
        if choice.case in cases and not limited and not choice.needs_own_slice:
            by_pool.setdefault((choice.group, choice.profile), []).append(choice)
    alike: dict[tuple[object, ...], list[AssignedSlice]] = {}
    for slice_ in assignment.slices:
        present = there.get(slice_.gpu_id, frozenset())
        key = (slice_.group, slice_.profile, present, *(id(choice) for choice, _ in slice_.tenants))
        alike.setdefault(key, []).append(slice_)
    for slices in alike.values():
        first = slices[0]
        present = there.get(first.gpu_id, frozenset())
        offered = [
            choice
            for choice in by_pool.get((first.group, first.profile), ())
            if problem.colocation_members(choice) & members <= present
        ]
        yield _class_of(problem, slices, tuple(choice for choice, _ in first.tenants), offered, least)


def _class_of(
    problem: Problem,
    slices: Sequence[AssignedSlice],
    tenants: tuple[Choice, ...],
    offered: Sequence[Choice],
    least: Mapping[int, float],
) -> _SliceClass:
    """The class, with the best choice of each stage that fits beside its tenants."""
    room = problem.slice_memory_gib(slices[0].group, slices[0].profile)
    room -= sum(choice.memory_gib for choice in tenants)
    spare = 1.0 - sum(least.get(choice.case, 0.0) for choice in tenants)
    full = any(choice.needs_own_slice for choice in tenants)
    used = {(choice.model, choice.stage) for choice in tenants}
    best: dict[tuple[int, int], Choice] = {}
    for choice in () if full else offered:
        key = (choice.model, choice.stage)
        if key in used or choice.memory_gib > room + SHARE_TOLERANCE:
            continue
        if key not in best or choice.rate_rps > best[key].rate_rps:
            best[key] = choice
    return _SliceClass(slices, tenants, tuple(best.values()), room, spare)


def _solve(
    problem: Problem, classes: Sequence[_SliceClass], least: Mapping[int, float]
) -> list[Parts] | None:
    """By class what the candidates have of it where the worst-served model has most; None if a minimum is missed."""
    shares: list[Share] = []
    candidates: list[tuple[int, int, Choice]] = []
    for number, item in enumerate(classes):
        count = len(item.slices)
        for choice in item.tenants:
            floor = least.get(choice.case, 0.0) * count
            shares.append(Share(choice.case, choice.stage, number, choice.rate_rps, floor))
        for choice in item.candidates:
            candidates.append((number, len(shares), choice))
            shares.append(Share(choice.case, choice.stage, number, choice.rate_rps))
    owners = [case.model for case in problem.cases]
    slots = np.array([float(len(item.slices)) for item in classes])
    try:
        program = ShareProgram(share_demand(problem.request.models), owners, shares, slots)
    except OutOfScale:
        return None
    if program.raise_levels(stop_at_price=True) is None:
        return None
    amounts = program.amounts()
    parts: list[Parts] = [[] for _ in classes]
    for number, place, choice in candidates:
        if amounts[place] > NEGLIGIBLE_SHARE:
            parts[number].append((choice, float(amounts[place])))
    return parts


def _deal(item: _SliceClass, parts: Parts, most: int) -> tuple[list[list[Choice]], bool]:
    """By slice the choices that get shares of it, the largest parts first, and whether all parts fit."""
    added: list[list[Choice]] = [[] for _ in item.slices]
    room, spare = [item.room_gib] * len(added), [item.spare] * len(added)
    complete = True
    for choice, amount in sorted(parts, key=lambda part: -part[1]):
        for place in sorted(range(len(added)), key=lambda place: len(added[place])):
            full = len(item.tenants) + len(added[place]) >= most or spare[place] <= SHARE_TOLERANCE
            if full or room[place] + SHARE_TOLERANCE < choice.memory_gib:
                continue
            share = min(amount, spare[place])
            added[place].append(choice)
            room[place] -= choice.memory_gib
            spare[place] -= share
            amount -= share
            if amount <= NEGLIGIBLE_SHARE:
                break
        complete &= amount <= NEGLIGIBLE_SHARE
    return added, complete


def _divide(item: _SliceClass, added: Sequence[Sequence[Choice]], complete: bool) -> Iterator[_SliceClass]:
    """The class; where its parts do not fit, a class for each set of choices that slices have of them."""
    if complete:
        yield item
        return
    alike: dict[tuple[int, ...], list[int]] = {}
    for place, choices in enumerate(added):
        alike.setdefault(tuple(map(id, choices)), []).append(place)
    for places in alike.values():
        choices = added[places[0]]
        room = item.room_gib - sum(choice.memory_gib for choice in choices)
        left = [
            choice
            for choice in item.candidates
            if choice not in choices and choice.memory_gib <= room + SHARE_TOLERANCE
        ]
        slices = [item.slices[place] for place in places]
        yield _SliceClass(slices, (*item.tenants, *choices), left, room, item.spare)
