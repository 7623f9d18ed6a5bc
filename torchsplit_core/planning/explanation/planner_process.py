"""Changed requests planned in child processes that are killed at a deadline.

The planner limits its search, but not the building of a model or the work after a timeout; an explanation must keep its
time limit, so a process is killed and its unanswered request stays open.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from types import TracebackType
from typing import Generic, TypeVar

from torchsplit_core.isolation.fork_worker import ForkedWorker, WorkerEnded
from torchsplit_core.planning.infeasibility.feasibility_check import is_feasible
from torchsplit_core.planning.outcome.build import no_plan
from torchsplit_core.planning.planner import plan
from torchsplit_core.values import InternalFault, PlanOutcome, PlanRequest, PlanStatistics

WORKERS = 2

MIN_QUESTION_S = 0.02
"""Least time for which a request is begun."""

OVERRUN_FACTOR, GRACE_S = 2.0, 0.3
"""A request is abandoned after its share times this factor plus this many seconds."""

SubjectT = TypeVar("SubjectT")

_Worker = ForkedWorker[PlanOutcome | None]


@dataclass
class _Busy(Generic[SubjectT]):
    worker: _Worker
    subject: SubjectT
    request: PlanRequest
    until: float


class PlannerProcesses(Generic[SubjectT]):
    """Answers changed requests until `deadline` (time.perf_counter), WORKERS at a time."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._idle: list[_Worker] = []
        self._busy: list[_Busy[SubjectT]] = []

    def __enter__(self) -> PlannerProcesses[SubjectT]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in (*self._idle, *(busy.worker for busy in self._busy)):
            worker.kill()

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline, 0 if too few for a request."""
        left = self._deadline - time.perf_counter()
        return left if left >= MIN_QUESTION_S else 0.0

    @property
    def free(self) -> bool:
        """Whether another request can be submitted."""
        return len(self._busy) < WORKERS

    @property
    def subjects(self) -> list[SubjectT]:
        """What the requests being planned are about."""
        return [busy.subject for busy in self._busy]

    def submit(self, subject: SubjectT, request: PlanRequest, seconds: float, *, relaxes: bool) -> None:
        """Plan a request in about `seconds`.

        One that `relaxes` a feasible one is feasible; others are tested first, because the planner would go on to
        explain why there is no plan.
        """
        worker = self._idle.pop() if self._idle else ForkedWorker(_plan_request)
        seconds = min(seconds, self.remaining_s)
        until = min(self._deadline, time.perf_counter() + OVERRUN_FACTOR * seconds + GRACE_S)
        self._busy.append(_Busy(worker, subject, request, until))
        worker.submit(request, seconds, relaxes)

    def answers(self, *, block: bool) -> Iterator[tuple[SubjectT, PlanRequest, PlanOutcome | None]]:
        """What has been answered; if `block`, wait until something is or its time is over.

        None for a request without an answer: neither a plan is known in time, nor that there is none.
        """
        if not self._busy:
            return
        soonest = min(busy.until for busy in self._busy)
        ready = wait(
            [busy.worker.pipe for busy in self._busy],
            max(0.0, soonest - time.perf_counter()) if block else 0.0,
        )
        for busy in list(self._busy):
            if busy.worker.pipe not in ready and time.perf_counter() < busy.until:
                continue
            self._busy.remove(busy)
            yield busy.subject, busy.request, self._result(busy.worker)

    def _result(self, worker: _Worker) -> PlanOutcome | None:
        if worker.poll():
            try:
                outcome = worker.result()
            except InternalFault:
                # An unanswered request is reported as open, never as a fault.
                outcome = None
            except WorkerEnded:
                worker.kill()
                return None
            self._idle.append(worker)
            return outcome
        # It is past its search: the next request gets a new process.
        worker.kill()
        return None


def _plan_request(request: PlanRequest, seconds: float, relaxes: bool) -> PlanOutcome | None:
    """The outcome, which is infeasible only if that is proven; None if neither is known in time."""
    begun = time.perf_counter()
    if not relaxes:
        possible = is_feasible(request, begun + seconds)
        if possible is None:
            return None
        if not possible:
            return no_plan(request, "infeasible", PlanStatistics(0.0, 0.0, 0.0, "none"))
    left = max(MIN_QUESTION_S, seconds - (time.perf_counter() - begun))
    return plan(replace(request, solver=replace(request.solver, time_limit_s=left)), reasons=False)
