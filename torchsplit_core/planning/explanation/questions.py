"""The questions of an explanation: what is known of the best plans of changed requests, each bounded by the others.

A plan of a request is also one of any easier request, and a bound of the easier holds for the stricter: what is found
of one question narrows those beside it, so that answers never contradict each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile, zip_longest

from torchsplit_core.planning.outcome.levels import NO_PLAN, Levels, known_equal, outcome_levels
from torchsplit_core.planning.request.objective import goal_of, has_tiers
from torchsplit_core.values import PlanOutcome, PlanRequest

Values = tuple[float, ...]
"""Values of the first levels, the larger the better; of the others nothing is known."""

FIRST, LAST = 0, 2
"""The orders of questions whose answers bound many others, and of those that are planned once, after all others."""

MOST_TELLING_TOGETHER = 0.01
"""The largest difference of relaxations at which several changes together are planned: beyond, one of them tells."""


@dataclass(eq=False)
class Question:
    """What the best plan of a changed request reaches.

    Its levels are lexicographically between `lower`, those of a plan, and `upper`, which is proven. `level_count`: how
    many are asked for. `whole`: all of them, also beyond the first that differs from the plan's. `order`: those with a
    smaller one come first, whatever they tell. `telling`: by how much the relaxation's bound differs from that of the
    plan's request, as a share of it. `relaxed_level`: the last level that the relaxation was solved for. `members`: the
    stricter questions for whose sake alone this one is asked. `writable`: a request file can say what is asked, so that
    its plan can be stored under it.
    """

    request: PlanRequest
    relaxes: bool
    level_count: int
    whole: bool = False
    order: int = 1
    telling: float = 0.0
    lower: Values = ()
    upper: Values = ()
    feasible: bool = True
    attempts: int = 0
    relaxed_level: int = -1
    members: tuple[Question, ...] = ()
    writable: bool = True

    @property
    def proven(self) -> int:
        """The number of first levels that are known."""
        pairs = zip(self.lower, self.upper, strict=False)
        return sum(1 for _ in takewhile(lambda pair: known_equal(*pair), pairs))

    @property
    def lacks_bound(self) -> bool:
        """Whether a relaxation may tell more: of the first level, or where nothing bounds the one after those known."""
        if self.relaxed_level < 0:
            return True
        proven = self.proven
        return self.relaxed_level < proven and len(self.upper) <= proven < self.level_count

    def levels(self) -> Levels | None:
        """What is known; None if nothing bounds it."""
        if not self.feasible:
            return NO_PLAN
        if not self.upper:
            return None
        proven = self.proven
        return Levels(self.lower, proven, self.upper[proven] if proven < len(self.upper) else None)

    def settled(self, plan: Question) -> bool:
        """Whether the answer is known up to the first level that differs from the plan's."""
        if not self.feasible:
            return True
        proven = self.proven
        if proven >= self.level_count:
            return True
        differs = any(not known_equal(*pair) for pair in zip(self.lower[:proven], plan.lower, strict=False))
        return differs and not self.whole

    def take_plan(self, values: Values) -> bool:
        """Take the levels of a plan; whether they are better than those known. A bound below them is not believed."""
        if _order(values, self.lower, -math.inf) <= 0:
            return False
        self.lower = values
        if _exceeds(values, self.upper):
            self.upper = ()
        return True

    def take_bound(self, values: Values) -> bool:
        """Take a proven bound; whether it is tighter. One that a plan exceeds is not believed."""
        if _order(values, self.upper, math.inf) >= 0 or _exceeds(self.lower, values):
            return False
        self.upper = values
        return True

    def take_outcome(self, outcome: PlanOutcome) -> None:
        """Take an outcome of the request, or of its first level alone."""
        levels = outcome_levels(outcome)
        if levels is None:
            return
        if not levels.feasible:
            self.feasible = False
            return
        self.take_plan(self._all_levels(outcome, levels.values))
        known = levels.values[: levels.proven]
        if levels.bound is not None:
            known = (*known, levels.bound)
        self.take_bound(known[: self.level_count])

    def _all_levels(self, outcome: PlanOutcome, values: Values) -> Values:
        """Those that the plan reaches, also where only the first was asked for."""
        objective = outcome.objective
        if len(values) < self.level_count and goal_of(objective).fair and not has_tiers(self.request):
            penalty = objective.sorted_normalised[0] - values[0]
            values = tuple(r - penalty for r in objective.sorted_normalised)
        return values[: self.level_count]


@dataclass
class Questions:
    """The question that the plan answers, and those of changed requests; `pairs` are of a stricter and an easier one.

    `limits` has such pairs that differ in one limit, so that a plan of the easier may keep the stricter's too.
    """

    plan: Question
    changed: list[Question] = field(default_factory=list)
    pairs: list[tuple[Question, Question]] = field(default_factory=list)
    limits: list[tuple[Question, Question]] = field(default_factory=list)

    def add(self, question: Question) -> Question:
        """Add the question of a changed request."""
        self.changed.append(question)
        self.pairs.append((self.plan, question) if question.relaxes else (question, self.plan))
        return question

    def spread(self) -> None:
        """Let every answer bound those of easier and stricter requests."""
        narrowed = True
        while narrowed:
            narrowed = False
            for stricter, easier in self.pairs:
                if easier.feasible:
                    # What is explained is the plan, whether there is a better one or not.
                    narrowed |= easier is not self.plan and easier.take_plan(stricter.lower)
                    narrowed |= stricter.take_bound(easier.upper)
                elif stricter.feasible:
                    stricter.feasible, narrowed = False, True

    def unsettled(self) -> list[Question]:
        """Those without a proven answer, the next to be planned first."""
        left = [question for question in self.changed if self._is_open(question)]
        return sorted(left, key=lambda item: (item.attempts, item.order, item.proven > 0, -item.telling))

    def _is_open(self, question: Question) -> bool:
        if question.settled(self.plan):
            return False
        if not question.members:
            return True
        # Several at once are worth a plan only if it may show that none of them changes anything.
        left = sum(not member.settled(self.plan) for member in question.members)
        return left > 1 and question.telling <= MOST_TELLING_TOGETHER


def _order(first: Sequence[float], second: Sequence[float], missing: float) -> int:
    """-1, 0 or 1: how `first` stands to `second`, level by level, within the tolerance."""
    for a, b in zip_longest(first, second, fillvalue=missing):
        if a != b and not known_equal(a, b):
            return 1 if a > b else -1
    return 0


def _exceeds(values: Sequence[float], bound: Sequence[float]) -> bool:
    """Whether a plan's values are above a bound."""
    return _order(values[: len(bound)], bound[: len(values)], 0.0) > 0
