"""Small instances: every pipeline, dropped where a whole one is known that is as quick and worth no less."""

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
    """The plans that no other beats in throughput and latency, by rising throughput; None where the instance is not
    small, or the look took too many steps."""
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
    """More steps than a look at all is worth."""


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
        """Every way to end a pipeline of so many layers; `seconds` and `value` are no worse than its own so far."""
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
    """Whether a plan is no worse than this throughput and latency, and as good in both only with no more GPUs."""
    if plan.throughput < throughput or plan.latency_s > latency_s:
        return False
    return (plan.throughput, plan.latency_s) != (throughput, latency_s) or plan.gpus <= gpus
