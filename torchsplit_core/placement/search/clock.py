"""The time limit and counters of a search."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

TRY_PART, LEAST_TRY_S = 0.05, 0.5
"""Share of the time and least seconds of one try. An undecided try is repeated with four times as much. In
benchmarks/placement_constants.py a quarter and four times of either make no difference beyond the noise (a third)."""


@dataclass(frozen=True)
class SearchClock:
    """When the search must end (seconds of the monotonic clock), and its counters by name."""

    started_s: float
    limit_s: float
    counts: dict[str, float] = field(default_factory=dict)

    @classmethod
    def start(cls, limit_s: float) -> SearchClock:
        """A clock that runs from now."""
        return cls(time.monotonic(), limit_s)

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter."""
        self.counts[name] = self.counts.get(name, 0) + amount

    def passed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_s

    def left_s(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self.limit_s - self.passed_s())

    def part(self, seconds: float) -> SearchClock:
        """A clock that ends after `seconds`, or with this one if that is sooner; it shares the counters."""
        return SearchClock(time.monotonic(), min(seconds, self.left_s()), self.counts)

    def over(self) -> bool:
        """Whether the time is over."""
        return self.left_s() <= 0.0
