"""Many requests planned side by side in processes of their own, each for a limited time.

A process that hangs or dies costs its point and no other; all of them end with the process that asked.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait

from torchsplit_core.isolation.kernel import die_with_parent
from torchsplit_core.planning.outcome import no_plan
from torchsplit_core.planning.planner import plan
from torchsplit_core.planning.request_hash import request_hash
from torchsplit_core.values import (
    InternalFault,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    SolverOptions,
)

WORKERS = 2
LEAST_S = 0.5
"""No point gets less than this: below, building the model takes it all."""
OVERRUN, GRACE_S = 3.0, 30.0
"""Searching, explaining and checking may take this many times the limit and so many seconds; then it hangs."""
Hear = Callable[[int, PlanOutcome], None]


@dataclass
class _Worker:
    process: multiprocessing.process.BaseProcess
    pipe: Connection
    position: int
    deadline: float


def share_s(request: PlanRequest, time_limit_s: float, count: int, workers: int = WORKERS) -> float:
    """The seconds one of `count` points may search for where the whole sweep may take `time_limit_s`."""
    return min(request.solver.time_limit_s, max(LEAST_S, time_limit_s * workers / max(1, count)))


def plan_each(requests: Sequence[PlanRequest], limit_s: float, hear: Hear, *, workers: int = WORKERS) -> None:
    """Plan every request within about `limit_s` seconds, `workers` at a time; `hear` gets (position, outcome).

    Outcomes answer the requests as given, whatever their own time limit. Where a process hangs or dies, its
    point is a timeout with a warning. Raises InternalFault where a plan fails its check. Whatever ends this
    call ends the processes.
    """
    # Forked, like the explanation's: a fresh interpreter spends longer on imports than most points take.
    context = multiprocessing.get_context("fork")
    left = list(enumerate(requests))[::-1]
    busy: list[_Worker] = []
    idle: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
    try:
        while left or busy:
            while left and len(busy) < workers:
                position, request = left.pop()
                process, pipe = idle.pop() if idle else _begin(context)
                pipe.send((request, limit_s))
                deadline = time.monotonic() + OVERRUN * limit_s + GRACE_S
                busy.append(_Worker(process, pipe, position, deadline))
            soonest = min(worker.deadline for worker in busy)
            ready = wait([worker.pipe for worker in busy], max(0.0, soonest - time.monotonic()))
            for worker in list(busy):
                if worker.pipe not in ready and time.monotonic() < worker.deadline:
                    continue
                busy.remove(worker)
                outcome = _heard(worker, requests[worker.position], idle)
                hear(worker.position, outcome)
    finally:
        for process, pipe in [*idle, *((worker.process, worker.pipe) for worker in busy)]:
            _end(process, pipe)


def _begin(
    context: multiprocessing.context.ForkContext,
) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, ours), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _end(process: multiprocessing.process.BaseProcess, pipe: Connection) -> None:
    process.kill()
    process.join()
    pipe.close()


def _heard(
    worker: _Worker,
    request: PlanRequest,
    idle: list[tuple[multiprocessing.process.BaseProcess, Connection]],
) -> PlanOutcome:
    """The worker's answer; it is free again. One that hangs or died is ended."""
    why = "did not end in time"
    if worker.pipe.poll():
        try:
            answer = worker.pipe.recv()
        except (EOFError, OSError):
            why = "ended without an answer (perhaps memory was short)"
        else:
            idle.append((worker.process, worker.pipe))
            if isinstance(answer, str):
                raise InternalFault(answer)
            assert isinstance(answer, PlanOutcome)
            return answer
    _end(worker.process, worker.pipe)
    return no_plan(request, "timeout", PlanStatistics(0.0, 0.0, 0.0, "none"), (f"The search {why}.",))


def _serve(pipe: Connection, parents_end: Connection) -> None:
    """The child's side: until the parent's end of the pipe is gone."""
    die_with_parent()
    parents_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        try:
            request, limit_s = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: PlanOutcome | str = _planned(request, limit_s)
        except Exception as error:  # noqa: BLE001 - the boundary of the process: its parent says it
            answer = f"{type(error).__name__}: {error}"
        pipe.send(answer)


def _planned(request: PlanRequest, limit_s: float) -> PlanOutcome:
    outcome = plan(replace(request, solver=SolverOptions(limit_s)))
    return replace(outcome, request_sha256=request_hash(request))
