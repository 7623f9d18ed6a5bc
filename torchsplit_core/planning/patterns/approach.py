"""How near to a bound the next plan is sought, from the plans found and not found so far.

Whether HiGHS finds a plan at a level within its seconds is chance to a degree, so a search that found nothing is
repeated nearby, with other patterns, before it is given up.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_STEP, STEP_GROWTH = 0.008, 2.5
"""Relative distance from the bound at which a plan is sought first, and its growth after a failure."""

NEXT_PARTS = (0.4, 0.6, 0.8)
"""Parts of the distance left at which the next plans are sought, one after the other until one is found."""

MOST_FAILURES = 8
"""Searches in a row without a better plan that end it."""

NEAREST = 2e-4
"""Relative distance at which no nearer plan is sought."""


@dataclass
class Approach:
    """The relative distance `step` of the last search, and how many found nothing since the last plan."""

    step: float = FIRST_STEP
    failures: int = 0

    def next_step(self, left: float) -> float | None:
        """Where to seek a plan if the best one is `left` from the bound (relative); None: no nearer one is sought."""
        if left <= NEAREST or self.failures >= MOST_FAILURES:
            return None
        if self.step >= left:
            self.step = left * NEXT_PARTS[self.failures % len(NEXT_PARTS)]
        return self.step

    def take(self, *, found: bool) -> None:
        """Note how the search ended."""
        self.failures = 0 if found else self.failures + 1
        if not found:
            self.step *= STEP_GROWTH
