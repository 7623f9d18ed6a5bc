"""Small instances: all pipelines, pruned by known plans that are as fast and have no lower throughput."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np

from torchsplit_core.placement.latency.pipeline_plan import (
    PassCosts,
    PipelinePlan,
    evaluate_plan,
    nondominated,
)
from torchsplit_core.placement.model.instance import ProblemInstance, Segments
from torchsplit_core.placement.search.exhaustive import MOST_MOVES, MOST_STEPS


def enumerate_pareto_front(instance: ProblemInstance, costs: PassCosts) -> list[PipelinePlan] | None:
    """The nondominated plans by ascending throughput; None if the instance is not small or takes too many steps."""
    gpus = len(instance.kinds)
    sizes = range(1, instance.max_gpus + 1)
    if sum(comb(gpus, size) for size in sizes) * instance.layers > MOST_MOVES:
        return None
    enumeration = _Enumeration(instance, costs)
    try:
        enumeration.extend(0, (), frozenset(), 0.0, float("inf"))
    except _TooManySteps:
        return None
    return enumeration.front


class _TooManySteps(Exception):
    """The enumeration takes more steps than it is worth."""


class _Enumeration:
    """kept: the best plans so far."""

    def __init__(self, instance: ProblemInstance, costs: PassCosts) -> None:
        self._instance, self._costs, self.front = instance, costs, list[PipelinePlan]()
        self._steps = 0
        self._moves = []
        for size in range(1, instance.max_gpus + 1):
            for chosen in combinations(range(len(instance.kinds)), size):
                kinds = tuple(sorted(instance.kinds[gpu] for gpu in chosen))
                for count in range(1, instance.layers + 1):
                    value = instance.value(kinds, count)
                    if value > 0:
                        seconds = float(costs.segment_s(np.array(value)))
                        self._moves.append((seconds, value, count, chosen))
        self._moves.sort()

    def extend(
        self, done: int, segments: Segments, used: frozenset[int], seconds: float, value: float
    ) -> None:
        """Every completion of a partial pipeline; `seconds` and `value` bound those of its completions."""
        layers = self._instance.layers
        for segment_s, segment_value, count, chosen in self._moves:
            self._steps += 1
            if self._steps > MOST_STEPS:
                raise _TooManySteps
            if count > layers - done or not used.isdisjoint(chosen):
                continue
            now_s, now = seconds + segment_s, min(value, segment_value)
            if segments:
                link = float(self._instance.links[np.ix_(segments[-1][1], chosen)].min())
                if link <= 0:
                    continue
                now_s, now = now_s + float(self._costs.link_s(np.array(link))), min(now, link)
            gpus = len(used) + len(chosen)
            if any(_dominates(plan, now, now_s, gpus) for plan in self.front):
                continue
            longer = (*segments, (count, chosen))
            if count < layers - done:
                self.extend(done + count, longer, used | set(chosen), now_s, now)
                continue
            plan = evaluate_plan(self._instance, self._costs, longer)
            if plan is not None:
                self.front = nondominated([*self.front, plan])


def _dominates(plan: PipelinePlan, throughput: float, latency_s: float, gpus: int) -> bool:
    """Whether the plan is no worse than this throughput and latency, and, if equal in both, has no more GPUs."""
    if plan.throughput < throughput or plan.latency_s > latency_s:
        return False
    return (plan.throughput, plan.latency_s) != (throughput, latency_s) or plan.gpus <= gpus
