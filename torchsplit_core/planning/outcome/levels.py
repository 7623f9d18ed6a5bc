"""The levels of a plan's objective: the value reached at each, and the proven bound.

`planning.request.objective` defines the levels. Costs are negated here, so that larger is always better. A bound of a
level holds given that the levels before it are proven.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchsplit_core.planning.request.objective import goal_of, reached_levels
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import PlanOutcome


@dataclass(frozen=True)
class Levels:
    """The values reached; the first `proven` are optimal, `bound` bounds the next one.

    `feasible` False: it is proven that the request has no plan.
    """

    values: tuple[float, ...]
    proven: int = 0
    bound: float | None = None
    feasible: bool = True

    def bound_of(self, level: int) -> float:
        """A proven bound of the level (from 0), given that all before it are proven; inf if there is none."""
        if level < self.proven:
            return self.values[level]
        if level == self.proven and self.bound is not None:
            return self.bound
        return math.inf


NO_PLAN = Levels((), feasible=False)


def outcome_levels(outcome: PlanOutcome) -> Levels | None:
    """The levels of a plan; NO_PLAN if the request is infeasible, None after a timeout."""
    objective = outcome.objective
    if outcome.status == "infeasible":
        return NO_PLAN
    if objective.value is None:
        return None
    sign = -1 if goal_of(objective).minimised else 1
    values = tuple(sign * value for value in reached_levels(objective))
    proven = objective.proven_levels
    bound = None if objective.bound is None or proven == len(values) else sign * objective.bound
    return Levels(values, proven, bound)


def known_equal(first: float | None, second: float | None) -> bool:
    """Whether both are known and equal within the contract's tolerance."""
    if first is None or second is None or math.isinf(first) or math.isinf(second):
        return False
    return equal(first, second)
