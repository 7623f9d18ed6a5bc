"""Pooled shares that keep hard co-locations of models: a GPU is the home of one set of models at most.

Models of a set run on its homes alone. There each has one slice on which it is present, if only with a small share; any
other model that the home may have can take the rest, if its memory fits beside. Which slice that is follows from the
prices of the request without co-locations: the one that loses least, for every layout and set. Homes are then layouts
like others, and relaxation.py has the fairest shares of their slices. Slices with a present model are pools of their
own. So are the others of a set's homes, for its members; any number of them may pass to the pool of all other models.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from torchsplit_core.planning.fractional.added_tenants.owners import give_whole_slices
from torchsplit_core.planning.fractional.added_tenants.slice_classes import PRESENCE_SHARE
from torchsplit_core.planning.fractional.packing import SHARE_TOLERANCE
from torchsplit_core.planning.fractional.relaxation import AggregatedShares, share_pools
from torchsplit_core.planning.outcome.assignment import AssignedSlice, Assignment
from torchsplit_core.planning.patterns.capacity import FleetCapacity
from torchsplit_core.planning.problem.build import CandidateLayout, Choice, Problem
from torchsplit_core.planning.request.objective import unit_rps

MAX_BESIDE = 20
"""Models that may stand beside those present, the dearest ones."""


@dataclass(frozen=True)
class _Slot:
    """A kind of slice: its pool, the set whose home it is on (None: no set), and the choices present there.

    Without any on the home of a set, only its members use it, unless it passes to the kind without a set.
    """

    group: int
    profile: str
    home_of: int | None
    present: tuple[int, ...] = ()

    @property
    def common(self) -> _Slot:
        """The kind without a set."""
        return _Slot(self.group, self.profile, None)


@dataclass(frozen=True)
class _Home:
    """A layout (group, number) as the home of a set, with its slices by kind."""

    layout: tuple[int, int]
    slots: Counter[_Slot]


@dataclass(frozen=True)
class HomeShares:
    """GPUs by (group, home), and for each kind of slice the choices with what they have of it."""

    problem: Problem
    homes: Sequence[_Home]
    gpus: Mapping[tuple[int, int], int]
    parts: Mapping[_Slot, Sequence[tuple[Choice, float]]]

    @property
    def cases(self) -> set[int]:
        """The cases that the shares use."""
        return {choice.case for parts in self.parts.values() for choice, _ in parts}

    def own_slices(self, rest: float) -> Assignment:
        """The slices of one tenant or none (see `owners.own_slices`), and those of the members present."""
        groups = self.problem.groups
        assignment = Assignment([], {}, {})
        names = [iter(group.gpu_ids) for group in groups]
        slices: dict[_Slot, list[AssignedSlice]] = defaultdict(list)
        for (group, number), count in sorted(self.gpus.items()):
            home = self.homes[number]
            for gpu_id in (next(names[group]) for _ in range(count)):
                assignment.layouts[gpu_id] = groups[group].layouts[home.layout[1]].profiles
                assignment.columns[gpu_id] = home.layout
                for slot in home.slots.elements():
                    present = [(self.problem.choices[choice], 0.0) for choice in slot.present]
                    slices[slot].append(AssignedSlice(gpu_id, group, slot.profile, present))
        assignment.slices = [slice_ for of_slot in slices.values() for slice_ in of_slot]
        passing: dict[_Slot, list[AssignedSlice]] = defaultdict(list)
        for slot, of_slot in slices.items():
            if not slot.present and slot.home_of is not None:
                passing[slot.common] += of_slot
        # Those without a set come last, to have what members leave.
        for slot in sorted(self.parts, key=lambda slot: slot.home_of is None):
            if not slot.present:
                usable = list(slices[slot])
                if slot.home_of is None:
                    usable += passing[slot]
                empty = [slice_ for slice_ in usable if not slice_.tenants]
                give_whole_slices(empty, self.parts[slot], rest)
        return assignment


def share_homes(
    problem: Problem, sets: Sequence[Sequence[int]], shares: AggregatedShares, deadline: float
) -> HomeShares | None:
    """The fairest shares of homes, found by `deadline` (time.perf_counter).

    Requires a problem that counts equal GPUs together, and its pooled `shares` without co-locations. None if no shares
    keep the sets, and if groups of GPUs or members of several ways or stages are among them.
    """
    tied = {model for members in sets for model in members}
    ways = Counter(case.model for case in problem.cases)
    if any(ways[case.model] > 1 or case.stages > 1 for case in problem.cases if case.model in tied):
        return None
    if problem.limits or any(group.held or group.must_change for group in problem.groups):
        return None
    return _HomeProgram(problem, sets, shares).solve(deadline)


class _HomeProgram:
    """The homes of a problem, and the shares of their slices."""

    def __init__(self, problem: Problem, sets: Sequence[Sequence[int]], shares: AggregatedShares) -> None:
        self.problem, self.sets = problem, sets
        self.set_of = {model: number for number, members in enumerate(sets) for model in members}
        self.values = [
            float(shares.prices[choice.model])
            * choice.rate_rps
            / unit_rps(problem.request.models[choice.model])
            for choice in problem.choices
        ]
        self.offered: dict[tuple[int, str], list[int]] = defaultdict(list)
        """Choices by pool, dearest first."""
        rates = [choice.rate_rps for choice in problem.choices]
        for number in sorted(range(len(rates)), key=lambda number: (-self.values[number], -rates[number])):
            choice = problem.choices[number]
            self.offered[choice.group, choice.profile].append(number)
        self.losses: dict[_Slot, float] = {}

    def solve(self, deadline: float) -> HomeShares | None:
        """The fairest shares; None without any in time."""
        problem = self.problem
        homes = list(self._list_homes())
        slots = {slot: row for row, slot in enumerate(dict.fromkeys(s for home in homes for s in home.slots))}
        passing = [slot for slot in slots if not slot.present and slot.home_of is not None]
        slices = np.zeros((len(slots), len(homes) + len(passing)), dtype=np.int64)
        for column, home in enumerate(homes):
            for slot, count in home.slots.items():
                slices[slots[slot], column] = count
        for column, slot in enumerate(passing, len(homes)):
            slices[slots[slot], column], slices[slots[slot.common], column] = -1, 1
        gpus = [len(group.gpu_ids) for group in problem.groups]
        most = slices.max(axis=1, initial=0) * np.array([gpus[slot.group] for slot in slots], dtype=np.int64)
        # Passing is a layout of a group without an end.
        group_of = [*(home.layout[0] for home in homes), *(len(gpus) for _ in passing)]
        capacity = FleetCapacity(
            tuple((slot.group, slot.profile) for slot in slots),
            tuple((group, column) for column, group in enumerate(group_of)),
            slices,
            np.array([*gpus, most.sum()], dtype=np.int64),
            np.array(group_of, dtype=np.int64),
            most,
            np.zeros((0, len(gpus) + 1), dtype=np.int64),
            np.zeros(0, dtype=np.int64),
        )
        uses = [
            (row, problem.choices[number], slot) for slot, row in slots.items() for number in self._uses(slot)
        ]
        numbered = [(row, choice, use) for use, (row, choice, _) in enumerate(uses)]
        shares = share_pools(problem, capacity, numbered, deadline, rounded=len(homes))
        if shares is None:
            return None
        parts: dict[_Slot, list[tuple[Choice, float]]] = defaultdict(list)
        for number, amount in sorted(shares.amounts.items()):
            _, choice, slot = uses[number]
            parts[slot].append((choice, amount))
        counts = {column: count for column, count in shares.layouts.items() if column[0] < len(gpus)}
        return HomeShares(problem, homes, counts, parts)

    def _list_homes(self) -> Iterator[_Home]:
        """Every layout as the home of no set, and of each that it can be the home of."""
        for g, group in enumerate(self.problem.groups):
            for number, layout in enumerate(group.layouts):
                for home_of in (None, *range(len(self.sets))):
                    slots = self._slots(g, layout, home_of)
                    if slots is not None:
                        yield _Home((g, number), slots)

    def _slots(self, group: int, layout: CandidateLayout, home_of: int | None) -> Counter[_Slot] | None:
        """A layout's slices, with those of the members that lose least; None if a member has none."""
        open_slices = Counter(layout.usable_counts)
        present: list[_Slot] = []
        for model in () if home_of is None else self.sets[home_of]:
            best: tuple[float, int, _Slot] | None = None
            empty = [_Slot(group, profile, home_of) for profile, count in open_slices.items() if count]
            for place, slot in enumerate((*present, *empty)):
                for number in self.offered[slot.group, slot.profile]:
                    if self.problem.choices[number].model == model and self._fits(slot, number):
                        beside = _Slot(slot.group, slot.profile, home_of, (*slot.present, number))
                        loss = self._loss(beside) - self._loss(slot)
                        if best is None or loss < best[0]:
                            best = loss, place, beside
            if best is None:
                return None
            _, place, slot = best
            if place < len(present):
                present[place] = slot
            else:
                present.append(slot)
                open_slices[slot.profile] -= 1
        rest = {_Slot(group, profile, home_of): count for profile, count in open_slices.items() if count}
        return Counter(present) + Counter(rest)

    def _loss(self, slot: _Slot) -> float:
        """How much less than its price a slice is worth with these choices present."""
        if slot not in self.losses:
            loss = 0.0
            if slot.present:
                dearest = max(
                    self.values[number] for number in (*slot.present, *islice(self._beside(slot), 1))
                )
                loss = self.values[self.offered[slot.group, slot.profile][0]]
                loss -= dearest * (1 - PRESENCE_SHARE * len(slot.present))
            self.losses[slot] = loss
        return self.losses[slot]

    def _uses(self, slot: _Slot) -> list[int]:
        """The best choice of each stage on such a slice, and those present."""
        best: dict[tuple[int, int], int] = {}
        for number in self._beside(slot) if slot.present else self.offered[slot.group, slot.profile]:
            choice = self.problem.choices[number]
            if slot.present or self.set_of.get(choice.model) == slot.home_of:
                best.setdefault((choice.case, choice.stage), number)
            if slot.present and len(best) == MAX_BESIDE:
                break
        return [*slot.present, *best.values()]

    def _beside(self, slot: _Slot) -> Iterator[int]:
        """Choices that may stand beside those present, dearest first."""
        for number in self.offered[slot.group, slot.profile]:
            allowed = self.set_of.get(self.problem.choices[number].model, slot.home_of) == slot.home_of
            if allowed and self._fits(slot, number):
                yield number

    def _fits(self, slot: _Slot, number: int) -> bool:
        """Whether a choice may stand beside those present."""
        choices = self.problem.choices
        if not slot.present:
            return True
        tenants = [choices[other] for other in (*slot.present, number)]
        most = self.problem.request.max_tenants_per_slice or len(tenants)
        size = self.problem.slice_memory_gib(slot.group, slot.profile)
        return (
            len(tenants) <= most
            and len({tenant.model for tenant in tenants}) == len(tenants)
            and not any(tenant.needs_own_slice for tenant in tenants)
            and not any(self.problem.cases[tenant.case].has_latency_levels for tenant in tenants)
            and sum(tenant.memory_gib for tenant in tenants) <= size + SHARE_TOLERANCE
        )
