"""Time in the planner: deadlines for parts of the work, and the seconds of searching among all."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from torchsplit_core.solver.highs import solver_name
from torchsplit_core.values import PlanStatistics


def part_of(deadline: float, part: float) -> float:
    """A deadline (time.perf_counter) of its own for a step: this part of what is left until `deadline`."""
    now = time.perf_counter()
    return now + part * (deadline - now)


@dataclass
class Stopwatch:
    """Of the seconds since `begun` (time.perf_counter) those spent searching; all others went into building."""

    begun: float = field(default_factory=time.perf_counter)
    searched_s: float = 0.0

    @contextmanager
    def searching(self) -> Iterator[None]:
        """What runs inside is searching. Not to be nested: it would count twice."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.searched_s += time.perf_counter() - begun

    def statistics(self, details: Mapping[str, str | int | float]) -> PlanStatistics:
        """The seconds by now, before anything is verified."""
        build_s = time.perf_counter() - self.begun - self.searched_s
        return PlanStatistics(build_s, self.searched_s, 0.0, solver_name(), details)
