"""The levels of a plan's objective: how far each is reached, how far proven.

A request's best levels are the lexicographic maximum of the sorted r (leximin), or the one value
of the other objectives; min_gpus is negated here, so that larger is better everywhere. Of a level
the planner leaves a value reached and, given that the levels before it are proven, a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchsplit_core.values import PlanOutcome

TOLERANCE = 1e-6
"""Values closer than this (relative) are equal, as the contract has it."""


@dataclass(frozen=True)
class Levels:
    """Values reached level by level; the first `proven` are optimal, `bound` limits the next one.

    `feasible` False: the request is proven to have no plan.
    """

    values: tuple[float, ...]
    proven: int = 0
    bound: float | None = None
    feasible: bool = True

    def limit(self, level: int) -> float:
        """A proven bound of the level (from 0), given that all before it are proven; inf for none."""
        if level >= len(self.values):
            return math.inf
        if level < self.proven:
            return self.values[level]
        if level == self.proven and self.bound is not None:
            return self.bound
        return math.inf


NO_PLAN = Levels((), feasible=False)


def levels_of(outcome: PlanOutcome) -> Levels | None:
    """The levels of a plan, NO_PLAN of an infeasible request, None of a timeout."""
    objective = outcome.objective
    if outcome.status == "infeasible":
        return NO_PLAN
    if objective.value is None:
        return None
    if objective.kind == "min_gpus":
        bound = None if objective.bound is None else -objective.bound
        return Levels((-objective.value,), objective.proven_levels, bound)
    if objective.kind != "leximin":
        return Levels((objective.value,), objective.proven_levels, objective.bound)
    ranked = objective.sorted_normalised
    # A penalty is taken from every level alike.
    values = tuple(item - (ranked[0] - objective.value) for item in ranked)
    return Levels(values, objective.proven_levels, objective.bound)


def same(first: float | None, second: float | None) -> bool:
    """Whether both are known and equal within the contract's tolerance."""
    if first is None or second is None or math.isinf(first) or math.isinf(second):
        return False
    return abs(first - second) <= TOLERANCE * max(abs(first), abs(second))
