"""Questions to the planner about one plan: each changed request is answered once, in a share of the time left."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torchsplit_core.planning.explanation.changes import Apply
from torchsplit_core.planning.explanation.levels import NOT_EXAMINED, LevelComparison, compare_levels
from torchsplit_core.planning.explanation.relaxation_bound import RelaxationBound, relaxation_bound
from torchsplit_core.planning.explanation.worker import Planner
from torchsplit_core.planning.outcome.levels import Levels
from torchsplit_core.planning.request.objective import first_level, goal_of
from torchsplit_core.values import PlanRequest

LEAST_SHARE_S = 0.4
"""A question gets as much, even if a later one then gets none: a few answers are worth more than many open."""

MOST_FAILURES = 2
"""So many questions in a row without any level proven in time, and the others get bounds alone."""

BOUND_S = 0.5
"""Most seconds for a bound by linear relaxation; it takes milliseconds."""


@dataclass
class Questions:
    """The plan's request, its levels, and what every change to it is compared with.

    `expected` counts the questions still to come: each gets its share of what is left. With
    `thorough` False only the objective's first level is planned, because the whole leximin
    would not be proven in that share.
    """

    request: PlanRequest
    before: Levels
    planner: Planner
    effort_s: float
    expected: int = 1
    _answered: dict[PlanRequest, Levels | None] = field(default_factory=dict)
    _failures: int = 0

    @property
    def negated(self) -> bool:
        """Whether levels are negated costs."""
        return goal_of(self.request).minimised

    def bound(self, request: PlanRequest) -> RelaxationBound | None:
        """The linear relaxation of a request, where there is time for it."""
        left = self.planner.left
        return relaxation_bound(request, min(BOUND_S, left)) if left else None

    def effect(self, apply: Apply, *, eases: bool, deep: bool = False) -> LevelComparison:
        """What a change does, that only eases the request or only restricts it.

        `deep` plans every level whatever it takes, for a second look with the time left over.
        """
        if not self.planner.left:
            return NOT_EXAMINED
        asked = apply(main_part(self.request))
        if asked in self._answered and not deep:
            return compare_levels(self.before, self._answered[asked], eases=eases)
        share = max(self._share(), 2 * self.effort_s) if deep else self._share()
        many = goal_of(self.request).every_level
        thorough = deep or not many or self.effort_s <= share
        levels = None
        if self._failures < MOST_FAILURES:
            levels = self.planner.levels(asked if thorough else _first_level(asked), share, eases=eases)
            if levels is not None and levels.proven == 0 and many and thorough and not deep:
                levels = self.planner.levels(_first_level(asked), share, eases=eases) or levels
            settled = levels is not None and (levels.proven > 0 or not levels.feasible)
            self._failures = 0 if settled else self._failures + 1
        if levels is None or (levels.feasible and levels.proven == 0):
            levels = self._bounded(asked, levels, eases=eases)
        self._answered[asked] = levels
        return compare_levels(self.before, levels, eases=eases)

    @property
    def hopeless(self) -> bool:
        """Whether the planner is no longer asked, because it does not answer in the shares there are."""
        return self._failures >= MOST_FAILURES

    def shallow(self, found: LevelComparison) -> bool:
        """Whether a second look at all levels could tell more than this one, of the first level, does."""
        partial = found.after is not None and len(found.after.values) < len(self.before.values)
        return (
            partial and found.effect in ("open", "better") and bool(found.level or found.effect == "better")
        )

    def inherited(self, found: LevelComparison) -> LevelComparison | None:
        """What the effect of dropping much says of dropping or easing less; None where that must be asked.

        Nothing gained with more is nothing gained with less. Where only the first level was
        planned and is the same, asking for less would tell no more than that either.
        """
        if found.effect == "same":
            return found
        if found.effect == "open" and self.shallow(found):
            return replace(found, value_after=found.value_before)
        return None

    def first(self, request: PlanRequest, *, eases: bool) -> Levels | None:
        """The first level of any other request."""
        return self.planner.levels(_first_level(main_part(request)), self._share(), eases=eases)

    def _share(self) -> float:
        share = self.planner.left / max(1, self.expected)
        self.expected -= 1
        return max(share, LEAST_SHARE_S)

    def _bounded(self, asked: PlanRequest, levels: Levels | None, *, eases: bool) -> Levels | None:
        """With the relaxation's bound of the first level where that is tighter, or where nothing else is known."""
        found = self.bound(asked)
        if found is None or (levels is None and not eases):
            return levels
        limit = -found.bound if self.negated else found.bound
        if levels is None:
            # The plan itself is one of the easier request too.
            return Levels(self.before.values[:1], bound=limit)
        return replace(levels, bound=limit if levels.bound is None else min(limit, levels.bound))


def main_part(request: PlanRequest) -> PlanRequest:
    """Without the soft co-locations that only break ties: they change no level and cost much time."""
    if request.objective.separation_weight > 0:
        return request
    return replace(request, colocations=tuple(item for item in request.colocations if item.mode == "hard"))


def _first_level(request: PlanRequest) -> PlanRequest:
    return replace(request, objective=first_level(request.objective))
