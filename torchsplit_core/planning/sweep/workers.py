"""Many requests planned in parallel processes, each with a time limit.

A process that hangs or dies costs only its point; all of them end with the calling process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait

from torchsplit_core.isolation.fork_worker import ForkedWorker, WorkerEnded
from torchsplit_core.planning.outcome.build import no_plan
from torchsplit_core.planning.planner import plan
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import PlanOutcome, PlanRequest, PlanStatistics

WORKERS = 2
MIN_POINT_S = 0.5
"""Least seconds of a point: with less, building the model takes it all."""
OVERRUN_FACTOR, GRACE_S = 3.0, 30.0
"""A process hangs if it takes longer than the limit times this factor plus this many seconds."""
OutcomeCallback = Callable[[int, PlanOutcome], None]


@dataclass(frozen=True)
class _BusyWorker:
    worker: ForkedWorker[PlanOutcome]
    position: int
    deadline: float


def point_time_limit_s(
    request: PlanRequest, time_limit_s: float, count: int, workers: int = WORKERS
) -> float:
    """Search seconds of each of `count` points if the whole sweep may take `time_limit_s`."""
    return min(request.solver.time_limit_s, max(MIN_POINT_S, time_limit_s * workers / max(1, count)))


def plan_all(
    requests: Sequence[PlanRequest], limit_s: float, on_outcome: OutcomeCallback, *, workers: int = WORKERS
) -> None:
    """Plan every request within about `limit_s` seconds, `workers` at a time; `on_outcome` gets (position, outcome).

    Outcomes answer the requests with their own time limits. A process that hangs or dies makes its point a timeout with
    a warning. Raises InternalFault if a plan fails its verification. The processes end with this call.
    """
    left = list(enumerate(requests))[::-1]
    busy: list[_BusyWorker] = []
    idle: list[ForkedWorker[PlanOutcome]] = []
    try:
        while left or busy:
            while left and len(busy) < workers:
                position, request = left.pop()
                worker = idle.pop() if idle else ForkedWorker(_plan_request)
                busy.append(
                    _BusyWorker(worker, position, time.monotonic() + OVERRUN_FACTOR * limit_s + GRACE_S)
                )
                worker.submit(request, limit_s)
            soonest = min(busy_worker.deadline for busy_worker in busy)
            ready = wait(
                [busy_worker.worker.pipe for busy_worker in busy], max(0.0, soonest - time.monotonic())
            )
            for finished in list(busy):
                if finished.worker.pipe not in ready and time.monotonic() < finished.deadline:
                    continue
                outcome = _receive_outcome(finished.worker, requests[finished.position], idle)
                busy.remove(finished)
                on_outcome(finished.position, outcome)
    finally:
        for worker in [*idle, *(busy_worker.worker for busy_worker in busy)]:
            worker.kill()


def _receive_outcome(
    worker: ForkedWorker[PlanOutcome], request: PlanRequest, idle: list[ForkedWorker[PlanOutcome]]
) -> PlanOutcome:
    """The worker's outcome, after which it is idle. A worker that hangs or died is ended."""
    cause = "did not end in time"
    if worker.poll():
        try:
            outcome = worker.result()
        except WorkerEnded:
            cause = "ended without an answer (perhaps memory was short)"
        else:
            idle.append(worker)
            return outcome
    worker.kill()
    return no_plan(request, "timeout", PlanStatistics(0.0, 0.0, 0.0, "none"), (f"The search {cause}.",))


def _plan_request(request: PlanRequest, limit_s: float) -> PlanOutcome:
    outcome = plan(replace(request, solver=replace(request.solver, time_limit_s=limit_s)))
    return replace(outcome, request_sha256=request_hash(request))
