"""Whole slices counted GPU by GPU: plans on them, the levels they reach, and who may have their idle slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchsplit_core.planning.outcome.assignment import Assignment, ColocatedGpus, assign_instances
from torchsplit_core.planning.outcome.instances import choices_by_point, point_key
from torchsplit_core.planning.patterns.capacity import Vector
from torchsplit_core.planning.patterns.feasibility import PatternSearch
from torchsplit_core.planning.patterns.gpu_fillings import FillingSearch
from torchsplit_core.planning.problem.build import Choice, Problem
from torchsplit_core.values import PlannedGpu

MAX_GPUS, MAX_COUNTS = 16, 1_500
"""GPUs, and instances that are counted, up to which a program counts GPU by GPU."""

ROUNDING = 1e-9
"""Relative part of a rate, level, cost or worth that is rounding."""

Instance = tuple[int, int, int, int, int]
"""GPU, model, its option, the stage, and the pool of the slice (all indices)."""


@dataclass(frozen=True)
class GpuPlan:
    """By GPU its layout column; instances by GPU, model, option, stage and pool."""

    columns: tuple[int, ...]
    instances: Mapping[Instance, int]


class GpuCounts:
    """The fleet of a search without co-locations GPU by GPU, for plans with co-located sets of models.

    Slices are priced by the search over `fillings`, if given. `loss_minima`: the requests/s that each model must have
    without any one GPU; empty where no loss is to be survived.
    """

    def __init__(
        self,
        base: PatternSearch,
        sets: Sequence[tuple[int, ...]],
        fillings: FillingSearch | None = None,
        loss_minima: Sequence[float] = (),
    ) -> None:
        self.base, self.sets, self.loss_minima = base, sets, loss_minima
        self.priced = base if fillings is None else fillings.search
        # To fillings each co-located model has pools of its own.
        members = () if fillings is None else fillings.members
        width = len(base.capacity.pools)
        self.pools_at = {model: (number + 1) * width for number, model in enumerate(members)}
        capacity = base.capacity
        self.columns = [
            np.flatnonzero(capacity.group_of == group).tolist() for group in range(len(capacity.gpus))
        ]
        # A GPU on which no model can run has no column.
        self.gpus = [
            group for group, count in enumerate(capacity.gpus.tolist()) if self.columns[group]
            for _ in range(int(count))
        ]  # fmt: skip
        self.members = frozenset(model for models in sets for model in models)
        most = capacity.slices.max(axis=1).tolist()
        self.offers: list[tuple[Instance, float, int]] = [
            ((gpu, model, number, stage, pool), float(offer.rates[pool]), most[pool])
            for model, ways in enumerate(base.options)
            for number, option in enumerate(ways.options)
            for stage, offer in enumerate(option.stages)
            for pool in np.flatnonzero(offer.rates > 0).tolist()
            for gpu, group in enumerate(self.gpus)
            if group == capacity.pools[pool][0]
        ]

    @classmethod
    def of(
        cls,
        base: PatternSearch,
        sets: Sequence[tuple[int, ...]],
        fillings: FillingSearch | None,
        loss_minima: Sequence[float] = (),
    ) -> GpuCounts | None:
        """The counts; None where GPUs or instances are too many to be counted so, or GPUs are taken together."""
        if len(base.capacity.at_most) or base.capacity.gpus.sum() > MAX_GPUS:
            return None
        counts = cls(base, sets, fillings, loss_minima)
        return counts if len(counts.offers) <= MAX_COUNTS else None

    def price(self, instance: Instance) -> float:
        """Of its slice at the last prices."""
        _, model, _, _, pool = instance
        return float(self.priced.prices[self.pools_at.get(model, 0) + pool])

    def model_levels(self, plan: GpuPlan) -> list[float]:
        """The level of every model."""
        demand = self.base.demand
        levels: list[float] = np.minimum(self._rates(plan) / demand.units, demand.caps).tolist()
        return levels

    def keeps_minima(self, plan: GpuPlan) -> bool:
        """Whether every model has its minimum, and without any one GPU what it must then have."""
        lost = range(len(self.gpus)) if any(self.loss_minima) else ()
        least = np.array(self.loss_minima) * (1 - ROUNDING)
        return bool((self._rates(plan) >= self.base.demand.minima * (1 - ROUNDING)).all()) and all(
            (self._rates(plan, gpu) >= least).all() for gpu in lost
        )

    def _rates(self, plan: GpuPlan, lost: int | None = None) -> Vector:
        """Requests/s of every model, without one GPU if that is lost."""
        served: dict[tuple[int, int], dict[int, float]] = {}
        for (gpu, model, number, stage, pool), count in plan.instances.items():
            if gpu == lost:
                continue
            by_stage = served.setdefault((model, number), {})
            rate = float(self.base.options[model].options[number].stages[stage].rates[pool])
            by_stage[stage] = by_stage.get(stage, 0.0) + count * rate
        rates = np.zeros(len(self.base.options))
        for (model, number), by_stage in served.items():
            if len(by_stage) == len(self.base.options[model].options[number].stages):
                rates[model] += min(by_stage.values())
        return rates

    def fill_idle(self, plan: GpuPlan) -> GpuPlan:
        """The plan with its idle slices given to the worst-served models that may stand on their GPUs."""
        capacity, demand = self.base.capacity, self.base.demand
        idle = {
            (gpu, pool): int(capacity.slices[pool, column])
            for gpu, column in enumerate(plan.columns)
            for pool in np.flatnonzero(capacity.slices[:, column]).tolist()
        }
        instances = dict(plan.instances)
        for (gpu, _, _, _, pool), count in instances.items():
            idle[gpu, pool] -= count
        there = {(key[0], key[1]) for key, count in instances.items() if count}
        option_of = {key[1]: key[2] for key, count in instances.items() if count}
        full: set[int] = set()
        while any(idle.values()):
            levels = self.model_levels(GpuPlan(plan.columns, instances))
            rising = [
                model for model, level in enumerate(levels)
                if model not in full and model in option_of and level < demand.ceilings[model]
            ]  # fmt: skip
            if not rising:
                break
            model = min(rising, key=lambda number: demand.priority(number, levels[number]))
            option = self.base.options[model].options[option_of[model]]
            served = [0.0] * len(option.stages)
            for (_, other, _, stage, pool), count in instances.items():
                if other == model:
                    served[stage] += count * float(option.stages[stage].rates[pool])
            stage = int(np.argmin(served))
            rates = option.stages[stage].rates
            open_to = [
                (float(rates[pool]), gpu, pool)
                for (gpu, pool), count in idle.items()
                if count and rates[pool] > 0 and (model not in self.members or (gpu, model) in there)
            ]
            if not open_to:
                full.add(model)
                continue
            _, gpu, pool = max(open_to)
            key = gpu, model, option_of[model], stage, pool
            instances[key] = instances.get(key, 0) + 1
            idle[gpu, pool] -= 1
        return GpuPlan(plan.columns, instances)

    def plan_of(self, free: Problem, gpus: Sequence[PlannedGpu]) -> GpuPlan | None:
        """The plan of these GPUs, of the problem without co-locations; None if a model runs in no known way."""
        capacity = self.base.capacity
        choice_of = choices_by_point(free)
        pool_of = {pool: number for number, pool in enumerate(capacity.pools)}
        used: dict[int, list[tuple[int, PlannedGpu]]] = {}
        group_of = {name: number for number, group in enumerate(free.groups) for name in group.gpu_ids}
        for gpu in gpus:
            group = group_of[gpu.id]
            needed = np.zeros(len(capacity.pools))
            for item in gpu.slices:
                if item.tenants and (group, item.profile) not in pool_of:
                    return None
                if item.tenants:
                    needed[pool_of[group, item.profile]] += 1
            if needed.any():
                fitting = (n for n in self.columns[group] if (capacity.slices[:, n] >= needed).all())
                column = next(fitting, None)
                if column is None:
                    return None
                used.setdefault(group, []).append((column, gpu))
        columns = [self.columns[group][0] for group in self.gpus]
        standing: list[list[tuple[int, int, int]]] = [[] for _ in self.base.options]
        for group, filled in used.items():
            # Equal GPUs stand in the order of the rows `twins`.
            filled.sort(key=lambda entry: -entry[0])
            for number, (column, gpu) in enumerate(filled, self.gpus.index(group)):
                columns[number] = column
                for item in gpu.slices:
                    for tenant in item.tenants:
                        index = choice_of[group, point_key(gpu.type, item.profile, tenant)]
                        place = number, index, pool_of[group, item.profile]
                        standing[free.choices[index].model].append(place)
        instances: dict[Instance, int] = {}
        for model, slices in enumerate(standing):
            if not slices:
                continue
            placed = self._in_option(free, model, slices)
            if placed is None:
                return None
            for key in placed:
                instances[key] = instances.get(key, 0) + 1
        return GpuPlan(tuple(columns), instances)

    def _in_option(
        self, free: Problem, model: int, slices: Sequence[tuple[int, int, int]]
    ) -> list[Instance] | None:
        """Instances (GPU, choice, pool) of the first option whose points are as good as theirs."""
        for number, option in enumerate(self.base.options[model].options):
            stages = {
                (free.choices[offer.choices[pool]].case, free.choices[offer.choices[pool]].stage, pool): stage
                for stage, offer in enumerate(option.stages)
                for _, _, pool in slices
                if offer.rates[pool] > 0
            }
            placed: list[Instance] = []
            for gpu, index, pool in slices:
                choice = free.choices[index]
                stage = stages.get((choice.case, choice.stage, pool), -1)
                if stage < 0 or option.stages[stage].rates[pool] < choice.rate_rps * (1 - ROUNDING):
                    break
                placed.append((gpu, model, number, stage, pool))
            else:
                return placed
        return None

    def assign(self, free: Problem, plan: GpuPlan) -> Assignment:
        """The plan's instances on GPUs of the problem without co-locations."""
        capacity = self.base.capacity
        layouts: dict[tuple[int, int], int] = {}
        together: list[ColocatedGpus] = []
        for gpu, number in enumerate(plan.columns):
            column = capacity.columns[number]
            layouts[column] = layouts.get(column, 0) + 1
            instances = tuple(
                (self._choice(free, key), count)
                for key, count in plan.instances.items()
                if key[0] == gpu and count
            )
            if instances:
                together.append(ColocatedGpus(column, instances, 1))
        return assign_instances(free, layouts, (), together)

    def _choice(self, free: Problem, key: Instance) -> Choice:
        _, model, number, stage, pool = key
        return free.choices[self.base.options[model].options[number].stages[stage].choices[pool]]
