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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.formulation.solution import NEGLIGIBLE_SHARE
from torchsplit_core.planning.fractional.packing import SHARE_TOLERANCE, equalise_shares, least_shares
from torchsplit_core.planning.outcome.assignment import AssignedSlice, Assignment
from torchsplit_core.planning.patterns.share_program import OutOfScale, Share, ShareProgram, share_demand
from torchsplit_core.planning.problem.build import Choice, Problem
from torchsplit_core.solver.highs import INF

PRESENCE_SHARE = 0.01
"""Least share of a co-located tenant."""

OPEN_ROUNDS, MAX_ROUNDS = 6, 15
"""Programs after which slices whose parts do not fit get no further ones, and after which such parts are dropped."""

Vector = NDArray[np.float64]


@dataclass
class _SliceClass:
    """Slices with equal tenants; `spare` is the share of each beyond the least shares of its tenants.

    `row` and `columns` are those of the program, the tenants' columns first.
    """

    slices: Sequence[AssignedSlice]
    tenants: tuple[Choice, ...]
    candidates: Sequence[Choice]
    room_gib: float
    spare: float
    row: int = -1
    columns: Sequence[int] = ()

    def shares(self, least: Mapping[int, float], most_rps: Mapping[int, float]) -> list[Share]:
        """The shares of tenants and candidates; `least` by case of a tenant, `most_rps` of a slice by model."""
        count = len(self.slices)

        def share(choice: Choice, floor: float) -> Share:
            most = INF
            if choice.model in most_rps:
                most = count * max(floor, most_rps[choice.model] / choice.rate_rps)
            return Share(choice.case, choice.stage, self.row, choice.rate_rps, floor * count, most)

        return [
            *(share(choice, least.get(choice.case, 0.0)) for choice in self.tenants),
            *(share(choice, 0.0) for choice in self.candidates),
        ]


def add_tenants(
    problem: Problem,
    assignment: Assignment,
    cases: Collection[int],
    deadline: float,
    most_rps: Mapping[int, float] | None = None,
) -> Assignment | None:
    """The assignment with further tenants of these cases and its fairest shares; None if a minimum is missed.

    None also where parts still do not fit by the `deadline` (time.perf_counter). Models under a limit of their service
    time get no further slices, since a small share would break it, and co-located ones only those of GPUs where they
    are. `most_rps`: by model the most requests/s that parts may have of a slice.
    """
    caps = most_rps or {}
    tenants = [choice for slice_ in assignment.slices for choice, _ in slice_.tenants]
    least = dict(least_shares(problem, tenants))
    presence = presence_shares(problem)
    for choice in tenants:
        least[choice.case] = max(presence(0, choice), least.get(choice.case, 0.0))
    most = problem.request.max_tenants_per_slice or len(cases)
    classes = list(_list_classes(problem, assignment, cases, least))
    program = _share_classes(problem, classes, least, caps)
    if program is None:
        return None
    for number in range(MAX_ROUNDS):
        if program.raise_levels(stop_at_price=True) is None:
            return None
        values = program.values()
        dealt = [_deal(item, values, most) for item in classes]
        if number == MAX_ROUNDS - 1 or all(complete for _, complete in dealt):
            break
        if time.perf_counter() > deadline:
            # Models that lack their parts could fall far, each to another level: a program for every one.
            return None
        still_open = number < OPEN_ROUNDS
        divided = []
        for item, (added, complete) in zip(classes, dealt, strict=True):
            if complete:
                divided.append(item)
                continue
            program.drop_pool(item.row, item.columns)
            for part in _divide(item, added, still_open):
                part.row, part.columns = program.add_pool(float(len(part.slices)), part.shares(least, caps))
                divided.append(part)
        classes = divided
    for item, (added, _) in zip(classes, dealt, strict=True):
        for slice_, further in zip(item.slices, added, strict=True):
            slice_.tenants = [(choice, 0.0) for choice in (*item.tenants, *further)]
    return equalise_shares(problem, assignment, presence_shares(problem))


def presence_shares(problem: Problem) -> Callable[[int, Choice], float]:
    """The least share of a tenant, wherever it is on its slice, with which it counts as present."""
    members = problem.colocation_index.hard_members
    return lambda place, choice: PRESENCE_SHARE if problem.colocation_members(choice) & members else 0.0


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
    """The class, with the best choices of those `offered` that fit beside its tenants."""
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


def _share_classes(
    problem: Problem,
    classes: Sequence[_SliceClass],
    least: Mapping[int, float],
    caps: Mapping[int, float],
) -> ShareProgram | None:
    """The program of these classes; None if it is out of scale."""
    shares: list[Share] = []
    for number, item in enumerate(classes):
        item.row, first = number, len(shares)
        shares += item.shares(least, caps)
        item.columns = range(first, len(shares))
    owners = [case.model for case in problem.cases]
    slots = np.array([float(len(item.slices)) for item in classes])
    try:
        return ShareProgram(share_demand(problem.request.models), owners, shares, slots)
    except OutOfScale:
        return None


def _deal(item: _SliceClass, values: Vector, most: int) -> tuple[list[list[Choice]], bool]:
    """By slice the candidates that get shares of it, the largest parts first, and whether all parts fit."""
    amounts = values[list(item.columns)[len(item.tenants) :]].tolist()
    parts = [part for part in zip(item.candidates, amounts, strict=True) if part[1] > NEGLIGIBLE_SHARE]
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


def _divide(item: _SliceClass, added: Sequence[Sequence[Choice]], still_open: bool) -> Iterator[_SliceClass]:
    """A class for each set of choices that slices get; `still_open`: others may follow."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for place, choices in enumerate(added):
        alike.setdefault(tuple(map(id, choices)), []).append(place)
    for places in alike.values():
        choices = added[places[0]]
        room = item.room_gib - sum(choice.memory_gib for choice in choices)
        left = [
            choice
            for choice in (item.candidates if still_open else ())
            if not any(choice is other for other in choices) and choice.memory_gib <= room + SHARE_TOLERANCE
        ]
        slices = [item.slices[place] for place in places]
        yield _SliceClass(slices, (*item.tenants, *choices), left, room, item.spare)
