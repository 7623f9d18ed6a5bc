"""Hard co-locations of models on few GPUs, exactly: a GPU's layout and what co-located models have of it is one column.

A filling of a GPU gives slices to the members of some sets of co-located models, to every member of a set or to none,
and leaves the others open to all other models. Each co-located model has pools of its own, so to the search a filling
is a layout like any other, and its proofs hold: "no" by prices and by exhaustion, level by level. That two sets share a
GPU is a filling too, which patterns of whole sets (colocated.py) do not know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchsplit_core.planning.outcome.assignment import (
    Assignment,
    ColocatedGpus,
    assign_instances,
)
from torchsplit_core.planning.patterns.capacity import Counts, FleetCapacity, Vector
from torchsplit_core.planning.patterns.covers.gpu_divisions import divisions_of
from torchsplit_core.planning.patterns.feasibility import FEW_GPUS, PatternPlan, PatternSearch
from torchsplit_core.planning.patterns.pricing import Pattern
from torchsplit_core.planning.problem.build import Choice, Problem

MAX_FILLINGS, MAX_LARGE_FILLINGS = 16_000, 8_000
"""Fillings above which HiGHS takes too long for each question; the second on more than FEW_GPUS GPUs."""


@dataclass(frozen=True)
class _Filling:
    """A layout column, and slices by (member, pool) of the models that are on the GPU."""

    column: int
    slices: Counts


@dataclass(frozen=True)
class FillingSearch:
    """The search over fillings of a problem without co-locations, whose models in `members` are co-located."""

    base: PatternSearch
    members: tuple[int, ...]
    fillings: tuple[_Filling, ...]
    search: PatternSearch

    def assign(self, free: Problem, plan: PatternPlan) -> Assignment:
        """The plan on GPUs: whatever a filling gives a co-located model is in use, so that it is present."""
        layouts: dict[tuple[int, int], int] = {}
        together: list[ColocatedGpus] = []
        for number in np.flatnonzero(plan.layouts).tolist():
            filling, count = self.fillings[number], int(plan.layouts[number])
            key = self.base.capacity.columns[filling.column]
            layouts[key] = layouts.get(key, 0) + count
            instances = tuple(
                (self._choice(free, self.members[member], pool), int(filling.slices[member, pool]))
                for member, pool in zip(*np.nonzero(filling.slices), strict=True)
            )
            if instances:
                together.append(ColocatedGpus(key, instances, count))
        others = self.search.instance_counts(
            plan, [m for m in range(len(plan.patterns)) if m not in self.members]
        )
        choices = [(free.choices[index], count) for index, count in others]
        return assign_instances(free, layouts, choices, together)

    def plan_of(self, free: Problem, assignment: Assignment) -> PatternPlan | None:
        """A plan on GPUs of the same problem as patterns and fillings; None if a model runs in no known way."""
        index_of = {id(choice): number for number, choice in enumerate(free.choices)}
        tenants = [(slice_, choice) for slice_ in assignment.slices for choice, _ in slice_.tenants]
        instances: list[Counter[int]] = [Counter() for _ in self.search.options]
        for _, choice in tenants:
            instances[choice.model][index_of[id(choice)]] += 1
        patterns = [self._pattern(model, counts) for model, counts in enumerate(instances)]
        if not all(patterns):
            return None
        pool_of = {pool: number for number, pool in enumerate(self.base.capacity.pools)}
        nothing = np.zeros((len(self.members), len(pool_of)), dtype=np.int64)
        slices_of = {gpu: nothing.copy() for gpu in assignment.columns}
        for slice_, choice in tenants:
            if choice.model in self.members:
                member = self.members.index(choice.model)
                slices_of[slice_.gpu_id][member, pool_of[slice_.group, slice_.profile]] += 1
        column_of = {key: number for number, key in enumerate(self.base.capacity.columns)}
        number_of = {
            (filling.column, filling.slices.tobytes()): number for number, filling in enumerate(self.fillings)
        }
        layouts = np.zeros(len(self.fillings), dtype=np.int64)
        for gpu, key in assignment.columns.items():
            layouts[number_of[column_of[key], slices_of[gpu].tobytes()]] += 1
        return PatternPlan(tuple(filter(None, patterns)), layouts)

    def _pattern(self, model: int, instances: Mapping[int, int]) -> Pattern | None:
        """The pattern of these instances by choice."""
        width = len(self.search.capacity.pools)
        if not instances:
            return Pattern(-1, np.zeros((0, width), dtype=np.int64), np.zeros(width, dtype=np.int64), 0.0)
        for number, option in enumerate(self.search.options[model].options):
            stages = np.zeros((len(option.stages), width), dtype=np.int64)
            for stage, offer in enumerate(option.stages):
                for choice in instances.keys() & set(offer.choices):
                    stages[stage, offer.choices.index(choice)] = instances[choice]
            if stages.sum() == sum(instances.values()):
                rate = min(float(offer.rates @ row) for offer, row in zip(option.stages, stages, strict=True))
                return Pattern(number, stages, stages.sum(axis=0), rate)
        return None

    def _choice(self, free: Problem, model: int, pool: int) -> Choice:
        return free.choices[self.base.options[model].options[0].stages[0].choices[pool]]


def search_fillings(base: PatternSearch, sets: Sequence[tuple[int, ...]]) -> FillingSearch | None:
    """The search of a problem without co-locations, for these co-located sets of models.

    None if a co-located model runs in several ways or stages, or there are too many.
    """
    members = tuple(model for models in sets for model in models)
    ways = [base.options[model].options for model in members]
    if any(len(way) != 1 or len(way[0].stages) != 1 for way in ways):
        return None
    rates = np.array([way[0].stages[0].rates for way in ways])
    ends = np.cumsum([len(models) for models in sets]).tolist()
    places = [range(end - len(models), end) for models, end in zip(sets, ends, strict=True)]
    limit = MAX_FILLINGS if base.capacity.gpus.sum() <= FEW_GPUS else MAX_LARGE_FILLINGS
    fillings: list[_Filling] = []
    for column in range(len(base.capacity.columns)):
        for slices in _fillings_of(base.capacity.slices[:, column], rates, places):
            fillings.append(_Filling(column, slices))
            if len(fillings) > limit:
                return None
    capacity = _capacity_of(base.capacity, fillings)
    width, pools = len(capacity.pools), len(base.capacity.pools)
    place_of = {model: number + 1 for number, model in enumerate(members)}
    options = [
        model_options.moved(place_of.get(model, 0) * pools, width)
        for model, model_options in enumerate(base.options)
    ]
    most = np.tile(capacity.max_slices, (len(options), 1))
    prices = np.tile(base.prices, len(members) + 1)
    search = PatternSearch(capacity, options, base.demand, prices, most)
    return FillingSearch(base, members, tuple(fillings), search)


def _fillings_of(slices: Counts, rates: Vector, sets: Sequence[Sequence[int]]) -> Iterator[Counts]:
    """What sets of members can have of a GPU with these slices by pool, as slices by (member, pool)."""
    given = np.zeros(rates.shape, dtype=np.int64)
    if not sets:
        yield given
        return
    *others, last = sets
    yield from _fillings_of(slices, rates, others)
    for division in divisions_of(slices, rates[last]):
        taken = np.array(division, dtype=np.int64)
        for filling in _fillings_of(slices - taken.sum(axis=1), rates, others):
            filling[last] = taken.T
            yield filling


def _capacity_of(base: FleetCapacity, fillings: Sequence[_Filling]) -> FleetCapacity:
    """The capacity with fillings for layouts: open slices of each pool first, then the pools of each member."""
    columns = np.array([filling.column for filling in fillings])
    given = np.array([filling.slices for filling in fillings])
    open_slices = base.slices[:, columns] - given.sum(axis=1).T
    slices = np.concatenate([open_slices, given.reshape(len(fillings), -1).T])
    group_of = base.group_of[columns]
    gpus = base.gpus[[group for group, _ in base.pools] * (given.shape[1] + 1)]
    return replace(
        base,
        pools=tuple((number, name) for number in range(given.shape[1] + 1) for _, name in base.pools),
        columns=tuple((int(group), number) for number, group in enumerate(group_of)),
        slices=slices,
        group_of=group_of,
        max_slices=gpus * slices.max(axis=1),
    )
