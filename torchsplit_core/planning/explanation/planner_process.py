"""Changed requests planned in a child process, which a deadline ends whatever it is doing.

The planner bounds its search, not the building of a model or what it does after a timeout; an
explanation must never take longer than it was given, so the process is killed then, and what has
not been answered stays open.
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
"""No question is begun with less time than this."""

OVERRUN_FACTOR, GRACE_S = 2.0, 0.3
"""A question may take this much longer than its share, and so many seconds more, before it is given up."""


OutcomeCallback = Callable[[PlanRequest, PlanOutcome], None]


def ignore_outcome(request: PlanRequest, outcome: PlanOutcome) -> None:
    """For those who want no plan of a changed request."""


class PlannerProcess:
    """Answers one changed request after the other until `deadline` (time.perf_counter).

    Each verified plan goes to `on_outcome` with the request that it answers.
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
        """Seconds until the deadline, 0 where they are too few for a question."""
        left = self._deadline - time.perf_counter()
        return left if left >= MIN_QUESTION_S else 0.0

    def levels(self, request: PlanRequest, seconds: float, *, relaxes: bool) -> Levels | None:
        """The levels of the best plan found within about `seconds`; None where none was found in time.

        A request that `relaxes` one with a plan has a plan too; others are tested first, because
        the planner would go on to explain why there is none.
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
                # An unanswered question is reported as open, never as a fault.
                return None
            except WorkerEnded:
                pass
        # It does more than search, or it died: the next question gets a process of its own.
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
    """The outcome; False where it is proven that there is no plan, None where neither is known in time."""
    begun = time.perf_counter()
    if not relaxes:
        possible = is_feasible(request, begun + seconds)
        if possible is not True:
            return possible
    left = max(MIN_QUESTION_S, seconds - (time.perf_counter() - begun))
    return plan(replace(request, solver=replace(request.solver, time_limit_s=left)))
