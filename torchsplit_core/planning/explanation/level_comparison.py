"""Two plans compared level by level (outcome/levels): what is proven of the best plans before and after a change."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torchsplit_core.planning.outcome.levels import Levels, known_equal
from torchsplit_core.values import ChangeEffect
from torchsplit_core.values.plan.explanation import Effect


@dataclass(frozen=True)
class LevelComparison:
    """What is proven of the best plans before and after a change, up to and including `level` (from 0)."""

    effect: Effect
    level: int | None = None
    value_before: float | None = None
    bound_before: float | None = None
    value_after: float | None = None
    bound_after: float | None = None
    after: Levels | None = None

    @property
    def exact(self) -> bool:
        """Whether both values are proven to be the best ones."""
        if self.effect == "infeasible":
            return known_equal(self.value_before, self.bound_before)
        return known_equal(self.value_before, self.bound_before) and known_equal(
            self.value_after, self.bound_after
        )


NOT_EXAMINED = LevelComparison("not_examined")


def compare_levels(before: Levels, after: Levels | None, *, relaxes: bool) -> LevelComparison:
    """The effect of a change that either only relaxes the request or only restricts it.

    A plan of the stricter request is a plan of the easier one, so values of the stricter and bounds of the easier hold
    for both. Levels are compared in order while they are proven equal; the first that differs, or is open, decides.
    """
    if after is None:
        return NOT_EXAMINED
    if not after.feasible:
        return LevelComparison("infeasible", 0, before.values[0], _finite(before.bound_of(0)), after=after)
    if relaxes:
        after = _better_levels(after, before.values)
    for level, value in enumerate(before.values):
        bound = max(before.bound_of(level), value)
        new_bound = after.bound_of(level)
        reached = after.values[level] if level < len(after.values) else None
        if relaxes:
            reached = value if reached is None else reached
            bound = min(bound, max(new_bound, value))
        else:
            new_bound = min(new_bound, bound)
        if reached is not None:
            new_bound = max(new_bound, reached)
        if reached is not None and _above(reached, bound):
            effect: Effect = "better"
        elif _above(value, new_bound):
            effect = "worse"
        elif reached is not None and known_equal(value, bound) and known_equal(reached, new_bound):
            continue
        else:
            effect = "open"
        return LevelComparison(effect, level, value, _finite(bound), reached, _finite(new_bound), after)
    return LevelComparison("same", None, after=after)


def with_comparison(
    change: ChangeEffect, comparison: LevelComparison, before: Levels, shown_level: int, *, negated: bool
) -> ChangeEffect:
    """The change with the figures of its comparison; `shown_level` is shown if no level differs."""
    if comparison.effect == "not_examined":
        return replace(change, effect="not_examined")
    if comparison.effect == "same":
        value: float | None = before.values[shown_level]
        figures = [value] * 4
        level, exact = shown_level, True
    else:
        figures = [
            comparison.value_before,
            comparison.bound_before,
            comparison.value_after,
            comparison.bound_after,
        ]
        assert comparison.level is not None
        level, exact = comparison.level, comparison.exact
    if negated:
        figures = [None if figure is None else 0.0 - figure for figure in figures]
    return replace(
        change,
        effect=comparison.effect,
        level=level + 1,
        value_before=figures[0],
        bound_before=figures[1],
        value_after=figures[2],
        bound_after=figures[3],
        proven=exact,
    )


def _above(first: float, second: float) -> bool:
    return first > second and not known_equal(first, second)


def _finite(bound: float) -> float | None:
    return None if math.isinf(bound) else bound


def _better_levels(after: Levels, values: tuple[float, ...]) -> Levels:
    """The levels of the better of two plans: a plan of the stricter request serves the easier one too."""
    for level, (old, new) in enumerate(zip(values, after.values, strict=False)):
        if _above(new, old):
            return after
        if _above(old, new):
            # Below a level said to be proven, the proof is not believed from there on.
            proven = min(after.proven, level)
            bound = after.bound if proven == after.proven else None
            if bound is not None and _above(old, bound):
                bound = None
            return Levels(values[: len(after.values)], proven, bound)
    return after
