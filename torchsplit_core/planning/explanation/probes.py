"""Probes of one plan: each changed request is planned once, in a share of the time left."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torchsplit_core.planning.explanation.changes import Apply
from torchsplit_core.planning.explanation.level_comparison import (
    NOT_EXAMINED,
    LevelComparison,
    compare_levels,
)
from torchsplit_core.planning.explanation.planner_process import PlannerProcess
from torchsplit_core.planning.explanation.relaxation_bound import RelaxationBound, relaxation_bound
from torchsplit_core.planning.outcome.levels import Levels
from torchsplit_core.planning.request.objective import first_level_objective, goal_of
from torchsplit_core.values import PlanRequest

MIN_SHARE_S = 0.4
"""Least share of a probe, even if a later one gets none: a few answers are worth more than many open ones."""

MAX_FAILURES = 2
"""After this many probes in a row without a level proven in time, the others get bounds alone."""

MAX_BOUND_S = 0.5
"""Most seconds for a bound by linear relaxation; it takes milliseconds."""


@dataclass
class SensitivityProbe:
    """The plan's request and levels, with which every change is compared.

    `expected_probes` counts the probes still to come: each gets its share of the time left. `thorough` False plans only
    the objective's first level, because the whole leximin would not be proven in that share.
    """

    request: PlanRequest
    before: Levels
    planner: PlannerProcess
    effort_s: float
    expected_probes: int = 1
    _cache: dict[PlanRequest, Levels | None] = field(default_factory=dict)
    _failures: int = 0

    @property
    def negated(self) -> bool:
        """Whether levels are negated costs."""
        return goal_of(self.request).minimised

    def bound(self, request: PlanRequest) -> RelaxationBound | None:
        """The linear relaxation of a request, if there is time for it."""
        left = self.planner.remaining_s
        return relaxation_bound(request, min(MAX_BOUND_S, left)) if left else None

    def effect(self, apply: Apply, *, relaxes: bool, deep: bool = False) -> LevelComparison:
        """The effect of a change that either only relaxes the request or only restricts it.

        `deep` plans every level whatever it takes, for a second look in the time left over.
        """
        if not self.planner.remaining_s:
            return NOT_EXAMINED
        changed = apply(without_tie_breaks(self.request))
        if changed in self._cache and not deep:
            return compare_levels(self.before, self._cache[changed], relaxes=relaxes)
        share = max(self._time_share_s(), 2 * self.effort_s) if deep else self._time_share_s()
        several_levels = goal_of(self.request).every_level
        thorough = deep or not several_levels or self.effort_s <= share
        levels = None
        if self._failures < MAX_FAILURES:
            levels = self.planner.levels(
                changed if thorough else _first_level_request(changed), share, relaxes=relaxes
            )
            if levels is not None and levels.proven == 0 and several_levels and thorough and not deep:
                levels = self.planner.levels(_first_level_request(changed), share, relaxes=relaxes) or levels
            settled = levels is not None and (levels.proven > 0 or not levels.feasible)
            self._failures = 0 if settled else self._failures + 1
        if levels is None or (levels.feasible and levels.proven == 0):
            levels = self._with_relaxation_bound(changed, levels, relaxes=relaxes)
        self._cache[changed] = levels
        return compare_levels(self.before, levels, relaxes=relaxes)

    @property
    def is_exhausted(self) -> bool:
        """Whether the planner is no longer asked, because it does not answer within its shares of the time."""
        return self._failures >= MAX_FAILURES

    def is_first_level_only(self, comparison: LevelComparison) -> bool:
        """Whether planning all levels could tell more than this comparison of the first level."""
        partial = comparison.after is not None and len(comparison.after.values) < len(self.before.values)
        return (
            partial
            and comparison.effect in ("open", "better")
            and bool(comparison.level or comparison.effect == "better")
        )

    def implied_comparison(self, comparison: LevelComparison) -> LevelComparison | None:
        """What the effect of a full change implies for a smaller one; None if that must be planned.

        If the full change gains nothing, neither does the smaller one. If only the first level was planned and stays
        the same, planning the smaller one would tell no more.
        """
        if comparison.effect == "same":
            return comparison
        if comparison.effect == "open" and self.is_first_level_only(comparison):
            return replace(comparison, value_after=comparison.value_before)
        return None

    def first_level(self, request: PlanRequest, *, relaxes: bool) -> Levels | None:
        """The first level of another request."""
        return self.planner.levels(
            _first_level_request(without_tie_breaks(request)), self._time_share_s(), relaxes=relaxes
        )

    def _time_share_s(self) -> float:
        share = self.planner.remaining_s / max(1, self.expected_probes)
        self.expected_probes -= 1
        return max(share, MIN_SHARE_S)

    def _with_relaxation_bound(
        self, changed: PlanRequest, levels: Levels | None, *, relaxes: bool
    ) -> Levels | None:
        """The levels with the relaxation's bound of the first, if that is tighter or nothing else is known."""
        relaxation = self.bound(changed)
        if relaxation is None or (levels is None and not relaxes):
            return levels
        limit = -relaxation.bound if self.negated else relaxation.bound
        if levels is None:
            # The plan itself is also one of the easier request.
            return Levels(self.before.values[:1], bound=limit)
        return replace(levels, bound=limit if levels.bound is None else min(limit, levels.bound))


def without_tie_breaks(request: PlanRequest) -> PlanRequest:
    """Without soft co-locations that only break ties: they change no level and take much time."""
    if request.objective.separation_weight > 0:
        return request
    return replace(request, colocations=tuple(item for item in request.colocations if item.mode == "hard"))


def _first_level_request(request: PlanRequest) -> PlanRequest:
    return replace(request, objective=first_level_objective(request.objective))
