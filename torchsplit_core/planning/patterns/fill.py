"""What a plan leaves idle goes to the models that are worst off."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from torchsplit_core.planning.patterns.decide import Demands, Plan
from torchsplit_core.planning.patterns.options import Option, Options
from torchsplit_core.planning.patterns.pattern import Pattern, pattern_of
from torchsplit_core.planning.patterns.supply import Counts, Supply, Vector


def fill(supply: Supply, options: Sequence[Options], demands: Demands, plan: Plan, prices: Vector) -> Plan:
    """The plan with its idle slices, and the slices of idle GPUs, given to the worst-served models."""
    layouts = _busy(supply, plan.layouts, prices)
    idle = supply.slices @ layouts
    for pattern in plan.patterns:
        idle = idle - pattern.usage
    stages = [pattern.stages.copy() for pattern in plan.patterns]
    chosen = [pattern.option for pattern in plan.patterns]
    rates = [pattern.rate for pattern in plan.patterns]
    units = demands.units
    queue = [(demands.turn(model, rate / units[model]), model) for model, rate in enumerate(rates)]
    heapq.heapify(queue)
    while queue and idle.any():
        (_, level), model = heapq.heappop(queue)
        if level >= demands.ceilings[model]:
            continue
        if chosen[model] < 0 and not _start(options[model].all, idle, model, stages, chosen):
            continue
        option = options[model].all[chosen[model]]
        served = [
            float(offer.rates @ stage) for offer, stage in zip(option.stages, stages[model], strict=True)
        ]
        if rates[model] < min(served):
            rates[model] = min(served)
            heapq.heappush(queue, (demands.turn(model, rates[model] / units[model]), model))
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
        heapq.heappush(queue, (demands.turn(model, rates[model] / units[model]), model))
    filled: list[Pattern] = []
    for model, pattern in enumerate(plan.patterns):
        better = pattern
        if chosen[model] >= 0:
            better = pattern_of(options[model].all[chosen[model]], chosen[model], stages[model])
        filled.append(better)
    return Plan(tuple(filled), layouts)


def _busy(supply: Supply, layouts: Counts, prices: Vector) -> Counts:
    """Every GPU with a layout: those without one take the layout that is worth most."""
    layouts = layouts.copy()
    worth = prices @ supply.slices
    for group, count in enumerate(supply.gpus):
        here = np.flatnonzero(supply.group_of == group)
        if len(here):
            layouts[here[np.argmax(worth[here])]] += count - layouts[here].sum()
    return layouts


def _start(
    options: Sequence[Option], idle: Counts, model: int, stages: list[Counts], chosen: list[int]
) -> bool:
    """Seat one instance of every stage of the first option that fits; False where none does."""
    for number, option in enumerate(options):
        left = idle.copy()
        mine = np.zeros((len(option.stages), len(idle)), dtype=np.int64)
        for stage, offer in enumerate(option.stages):
            gain = np.where(left > 0, offer.rates, 0.0)
            best = int(np.argmax(gain))
            if gain[best] <= 0:
                break
            left[best] -= 1
            mine[stage, best] += 1
        else:
            idle[:] = left
            stages[model], chosen[model] = mine, number
            return True
    return False
