"""Time in the planner: deadlines for parts of the work, and the seconds of searching among all."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from torchsplit_core.solver.highs import solver_name
from torchsplit_core.solver.pyomo_model import load_pyomo
from torchsplit_core.values import PlanStatistics

MIN_BUILD_S = 0.25
"""What is built within this many seconds is built and searched even when time is up."""

BUILD_SHARE = 0.4
"""Part of the time that is left for building a program: handing it to the solver takes about as long again."""


class OutOfTime(Exception):
    """A program takes too long to build: none of it is searched."""


def check_deadline(deadline: float) -> None:
    """Look at the clock (time.perf_counter) while building. Raises OutOfTime."""
    if time.perf_counter() > deadline:
        raise OutOfTime


def build_deadline(deadline: float) -> float:
    """When (time.perf_counter) the building of a program has to end that is searched until `deadline`."""
    return max(partial_deadline(deadline, BUILD_SHARE), time.perf_counter() + MIN_BUILD_S)


def partial_deadline(deadline: float, share: float) -> float:
    """A deadline (time.perf_counter) of its own for a step: this part of what is left until `deadline`."""
    now = time.perf_counter()
    return now + share * (deadline - now)


@dataclass
class Stopwatch:
    """Of the seconds since `begun` (time.perf_counter) those spent searching; all others went into building."""

    begun: float = field(default_factory=lambda: time.perf_counter())
    searched_s: float = 0.0

    @contextmanager
    def searching(self) -> Iterator[None]:
        """What runs inside is searching. Not to be nested: it would count twice."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.searched_s += time.perf_counter() - begun

    def load_solver(self) -> float:
        """Load what programs are written with, before the first one; the seconds, which count for nothing."""
        spent = load_pyomo()
        self.begun += spent
        return spent

    def statistics(self, details: Mapping[str, str | int | float]) -> PlanStatistics:
        """The seconds by now, before anything is verified."""
        build_s = time.perf_counter() - self.begun - self.searched_s
        return PlanStatistics(build_s, self.searched_s, 0.0, solver_name(), details)
