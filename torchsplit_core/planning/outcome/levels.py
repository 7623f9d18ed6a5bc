"""The levels of a plan's objective: the value reached at each, and the bound proven.

A request's best levels are those of its objective (objective.py); a cost is negated here, so that
larger is better everywhere. Of a level
the planner leaves a value reached and, given that the levels before it are proven, a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchsplit_core.planning.request.objective import goal_of, reached_levels
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import PlanOutcome


@dataclass(frozen=True)
class Levels:
    """Values reached level by level; the first `proven` are optimal, `bound` limits the next one.

    `feasible` False: the request is proven to have no plan.
    """

    values: tuple[float, ...]
    proven: int = 0
    bound: float | None = None
    feasible: bool = True

    def bound_of(self, level: int) -> float:
        """A proven bound of the level (from 0), given that all before it are proven; inf for none."""
        if level >= len(self.values):
            return math.inf
        if level < self.proven:
            return self.values[level]
        if level == self.proven and self.bound is not None:
            return self.bound
        return math.inf


NO_PLAN = Levels((), feasible=False)


def outcome_levels(outcome: PlanOutcome) -> Levels | None:
    """The levels of a plan, NO_PLAN of an infeasible request, None of a timeout."""
    objective = outcome.objective
    if outcome.status == "infeasible":
        return NO_PLAN
    if objective.value is None:
        return None
    sign = -1 if goal_of(objective).minimised else 1
    bound = None if objective.bound is None else sign * objective.bound
    return Levels(tuple(sign * value for value in reached_levels(objective)), objective.proven_levels, bound)


def known_equal(first: float | None, second: float | None) -> bool:
    """Whether both are known and equal within the contract's tolerance."""
    if first is None or second is None or math.isinf(first) or math.isinf(second):
        return False
    return equal(first, second)
