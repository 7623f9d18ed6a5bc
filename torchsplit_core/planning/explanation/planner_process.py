"""Changed requests planned in a child process that is killed at a deadline.

The planner limits its search, but not the building of a model or the work after a timeout; an explanation must keep its
time limit, so the process is killed and its unanswered requests stay open.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

from torchsplit_core.isolation.fork_worker import ForkedWorker, WorkerEnded
from torchsplit_core.planning.infeasibility.feasibility_check import is_feasible
from torchsplit_core.planning.outcome.levels import NO_PLAN, Levels, outcome_levels
from torchsplit_core.planning.planner import plan
from torchsplit_core.values import InternalFault, PlanOutcome, PlanRequest

MIN_QUESTION_S = 0.02
"""Least time for which a request is begun."""

OVERRUN_FACTOR, GRACE_S = 2.0, 0.3
"""A request is abandoned after its share times this factor plus this many seconds."""


OutcomeCallback = Callable[[PlanRequest, PlanOutcome], None]


def ignore_outcome(request: PlanRequest, outcome: PlanOutcome) -> None:
    """Ignore plans of changed requests."""


class PlannerProcess:
    """Answers changed requests one by one until `deadline` (time.perf_counter).

    Each verified plan goes to `on_outcome` with its request.
    """

    def __init__(self, deadline: float, on_outcome: OutcomeCallback = ignore_outcome) -> None:
        self._deadline, self._on_outcome = deadline, on_outcome
        self._worker: ForkedWorker[PlanOutcome | bool | None] | None = None

    def __enter__(self) -> PlannerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline, 0 if too few for a request."""
        left = self._deadline - time.perf_counter()
        return left if left >= MIN_QUESTION_S else 0.0

    def levels(self, request: PlanRequest, seconds: float, *, relaxes: bool) -> Levels | None:
        """The levels of the best plan found within about `seconds`; None if none was found in time.

        A request that `relaxes` a feasible one is feasible; others are tested first, because the planner would go on to
        explain why there is no plan.
        """
        left = self.remaining_s
        if not left:
            return None
        if self._worker is None:
            self._worker = ForkedWorker(_plan_request)
        self._worker.submit(request, min(seconds, left), relaxes)
        if self._worker.poll(min(left, OVERRUN_FACTOR * seconds + GRACE_S)):
            try:
                return self._levels(request, self._worker.result())
            except InternalFault:
                # An unanswered request is reported as open, never as a fault.
                return None
            except WorkerEnded:
                pass
        # It is past its search, or it died: the next request gets a new process.
        self._stop()
        return None

    def _levels(self, request: PlanRequest, result: PlanOutcome | bool | None) -> Levels | None:
        if isinstance(result, PlanOutcome):
            self._on_outcome(request, result)
            return outcome_levels(result)
        return NO_PLAN if result is False else None

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


def _plan_request(request: PlanRequest, seconds: float, relaxes: bool) -> PlanOutcome | bool | None:
    """The outcome; False if infeasibility is proven, None if neither is known in time."""
    begun = time.perf_counter()
    if not relaxes:
        possible = is_feasible(request, begun + seconds)
        if possible is not True:
            return possible
    left = max(MIN_QUESTION_S, seconds - (time.perf_counter() - begun))
    return plan(replace(request, solver=replace(request.solver, time_limit_s=left)))
