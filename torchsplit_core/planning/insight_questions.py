"""Questions to the planner about one plan: each changed request is answered once, in a share of the time left."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torchsplit_core.planning.insight_ask import Planner
from torchsplit_core.planning.insight_bound import Relaxed, relaxed
from torchsplit_core.planning.insight_changes import Apply
from torchsplit_core.planning.insight_compare import NOT_EXAMINED, Comparison, Levels, compare
from torchsplit_core.values import Objective, PlanRequest

LEAST_SHARE_S = 0.4
"""A question gets as much, even if a later one then gets none: a few answers are worth more than many open."""

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
    answered: dict[PlanRequest, Levels | None] = field(default_factory=dict)

    @property
    def negated(self) -> bool:
        """Whether levels are negated costs."""
        return self.request.objective.kind == "min_gpus"

    def bound(self, request: PlanRequest) -> Relaxed | None:
        """The linear relaxation of a request, where there is time for it."""
        left = self.planner.left
        return relaxed(request, min(BOUND_S, left)) if left else None

    def effect(self, apply: Apply, *, eases: bool) -> Comparison:
        """What a change does, that only eases the request or only restricts it."""
        if not self.planner.left:
            return NOT_EXAMINED
        asked = apply(main_part(self.request))
        share = self._share()
        if asked in self.answered:
            return compare(self.before, self.answered[asked], eases=eases)
        thorough = self.request.objective.kind != "leximin" or self.effort_s <= share
        levels = self.planner.levels(asked if thorough else first_level(asked), share, eases=eases)
        if levels is not None and levels.feasible and levels.proven == 0:
            if self.request.objective.kind == "leximin" and thorough:
                levels = self.planner.levels(first_level(asked), share, eases=eases) or levels
            levels = self._bounded(asked, levels)
        self.answered[asked] = levels
        return compare(self.before, levels, eases=eases)

    def inherited(self, found: Comparison) -> Comparison | None:
        """What the effect of dropping much says of dropping or easing less; None where that must be asked.

        Nothing gained with more is nothing gained with less. Where only the first level was
        planned and is the same, asking for less would tell no more than that either.
        """
        if found.effect == "same":
            return found
        shallow = found.after is not None and len(found.after.values) < len(self.before.values)
        if found.effect == "open" and found.level and shallow:
            return replace(found, value_after=found.value_before)
        return None

    def first(self, request: PlanRequest, *, eases: bool) -> Levels | None:
        """The first level of any other request."""
        return self.planner.levels(first_level(main_part(request)), self._share(), eases=eases)

    def _share(self) -> float:
        share = self.planner.left / max(1, self.expected)
        self.expected -= 1
        return max(share, LEAST_SHARE_S)

    def _bounded(self, asked: PlanRequest, levels: Levels) -> Levels:
        """With the relaxation's bound of the first level where that is tighter."""
        found = self.bound(asked) if levels.proven == 0 else None
        if found is None:
            return levels
        limit = -found.bound if self.negated else found.bound
        return replace(levels, bound=limit if levels.bound is None else min(limit, levels.bound))


def main_part(request: PlanRequest) -> PlanRequest:
    """Without the soft co-locations that only break ties: they change no level and cost much time."""
    if request.objective.separation_weight > 0:
        return request
    return replace(request, colocations=tuple(item for item in request.colocations if item.mode == "hard"))


def first_level(request: PlanRequest) -> PlanRequest:
    """The request with the objective's first level alone."""
    if request.objective.kind != "leximin":
        return request
    objective: Objective = replace(request.objective, kind="max_min")
    return replace(request, objective=objective)
