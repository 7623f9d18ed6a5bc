"""Time in the planner: deadlines for parts of the work, and seconds spent searching."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from torchsplit_core.solver.highs import solver_name
from torchsplit_core.solver.pyomo_model import load_pyomo
from torchsplit_core.values import PlanStatistics

MIN_BUILD_S = 0.25
"""A program that is built within this many seconds is searched even after the deadline."""

BUILD_SHARE = 0.4
"""Part of the remaining time for building a program: passing it to the solver takes about as long again."""


class OutOfTime(Exception):
    """A program takes too long to build and is not searched."""


def check_deadline(deadline: float) -> None:
    """Raises OutOfTime after the deadline (time.perf_counter); called while building."""
    if time.perf_counter() > deadline:
        raise OutOfTime


def build_deadline(deadline: float) -> float:
    """When (time.perf_counter) building must end for a program that is searched until `deadline`."""
    return max(partial_deadline(deadline, BUILD_SHARE), time.perf_counter() + MIN_BUILD_S)


def partial_deadline(deadline: float, share: float) -> float:
    """A step's deadline (time.perf_counter): this part of the time left until `deadline`."""
    now = time.perf_counter()
    return now + share * (deadline - now)


@dataclass
class Stopwatch:
    """Splits the seconds since `begun` (time.perf_counter) into searching and building."""

    begun: float = field(default_factory=lambda: time.perf_counter())
    searched_s: float = 0.0

    @contextmanager
    def searching(self) -> Iterator[None]:
        """Count the time inside as searching. Nesting would count it twice."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.searched_s += time.perf_counter() - begun

    def load_solver(self) -> float:
        """Load the modules for writing programs, before the first one; returns the seconds, which are not counted."""
        spent = load_pyomo()
        self.begun += spent
        return spent

    def statistics(self, details: Mapping[str, str | int | float]) -> PlanStatistics:
        """The seconds so far, before verification."""
        build_s = time.perf_counter() - self.begun - self.searched_s
        return PlanStatistics(build_s, self.searched_s, 0.0, solver_name(), details)
