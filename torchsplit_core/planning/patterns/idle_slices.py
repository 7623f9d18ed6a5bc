"""Idle slices of a plan go to the worst-served models."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from torchsplit_core.planning.patterns.capacity import Counts, FleetCapacity, Vector
from torchsplit_core.planning.patterns.feasibility import LevelDemand, PatternPlan
from torchsplit_core.planning.patterns.options import ModelOption, ModelOptions
from torchsplit_core.planning.patterns.pricing import Pattern, build_pattern


def use_idle_slices(
    capacity: FleetCapacity,
    options: Sequence[ModelOptions],
    demand: LevelDemand,
    plan: PatternPlan,
    prices: Vector,
    closed: frozenset[int] = frozenset(),
) -> PatternPlan:
    """The plan with its idle slices, and those of idle GPUs, given to the worst-served models not in `closed`."""
    layouts = _assign_all_gpus(capacity, plan.layouts, prices)
    idle = capacity.slices @ layouts
    for pattern in plan.patterns:
        idle = idle - pattern.usage
    stages = [pattern.stages.copy() for pattern in plan.patterns]
    chosen = [pattern.option for pattern in plan.patterns]
    rates = [pattern.rate for pattern in plan.patterns]
    units = demand.units
    queue = [
        (demand.priority(model, rate / units[model]), model)
        for model, rate in enumerate(rates)
        if model not in closed
    ]
    heapq.heapify(queue)
    while queue and idle.any():
        (_, level), model = heapq.heappop(queue)
        if level >= demand.ceilings[model]:
            continue
        if chosen[model] < 0 and not _start_model(options[model].options, idle, model, stages, chosen):
            continue
        option = options[model].options[chosen[model]]
        served = [
            float(offer.rates @ stage) for offer, stage in zip(option.stages, stages[model], strict=True)
        ]
        if rates[model] < min(served):
            rates[model] = min(served)
            heapq.heappush(queue, (demand.priority(model, rates[model] / units[model]), model))
            continue
        least = int(np.argmin(served))
        gain = np.where(idle > 0, option.stages[least].rates, 0.0)
        best = int(np.argmax(gain))
        if gain[best] <= 0:
            continue
        idle[best] -= 1
        stages[model][least][best] += 1
        served[least] += float(gain[best])
        rates[model] = min(served)
        heapq.heappush(queue, (demand.priority(model, rates[model] / units[model]), model))
    filled: list[Pattern] = []
    for model, pattern in enumerate(plan.patterns):
        better = pattern
        if chosen[model] >= 0 and model not in closed:
            better = build_pattern(options[model].options[chosen[model]], chosen[model], stages[model])
        filled.append(better)
    return PatternPlan(tuple(filled), layouts)


def _assign_all_gpus(capacity: FleetCapacity, layouts: Counts, prices: Vector) -> Counts:
    """A layout for every GPU: those without one take the one of highest value, those worth most for a GPU first."""
    layouts = layouts.copy()
    worth = prices @ capacity.slices
    each = capacity.taken.max(axis=0, initial=1)
    for group in np.argsort(-capacity.dearest(worth / each), kind="stable").tolist():
        group_columns = np.flatnonzero(capacity.group_of == group)
        if len(group_columns):
            column = group_columns[np.argmax(worth[group_columns])]
            left = int(capacity.gpus[group] - layouts[group_columns].sum())
            limits = np.flatnonzero(capacity.taken[:, column])
            free = capacity.at_most[limits] - capacity.taken[limits] @ layouts
            layouts[column] += min([left, *(free // capacity.taken[limits, column]).tolist()])
    return layouts


def _start_model(
    options: Sequence[ModelOption], idle: Counts, model: int, stages: list[Counts], chosen: list[int]
) -> bool:
    """Place an instance of every stage of the first option that fits; False if none does."""
    for number, option in enumerate(options):
        left = idle.copy()
        new_stages = np.zeros((len(option.stages), len(idle)), dtype=np.int64)
        for stage, offer in enumerate(option.stages):
            gain = np.where(left > 0, offer.rates, 0.0)
            best = int(np.argmax(gain))
            if gain[best] <= 0:
                break
            left[best] -= 1
            new_stages[stage, best] += 1
        else:
            idle[:] = left
            stages[model], chosen[model] = new_stages, number
            return True
    return False
