"""Changed requests planned in a child process, which a deadline ends whatever it is doing.

The planner bounds its search, not the building of a model or what it does after a timeout; an
explanation must never take longer than it was given, so the process is killed then, and what has
not been answered stays open.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from types import TracebackType

from torchsplit_core.planning.feasible import is_feasible
from torchsplit_core.planning.insight_compare import NO_PLAN, Levels, levels_of
from torchsplit_core.planning.planner import plan
from torchsplit_core.values import PlanRequest, SolverOptions

LEAST_S = 0.02
"""No question is begun with less time than this."""

OVERRUN, GRACE_S = 2.0, 0.3
"""A question may take this much longer than its share, and so many seconds more, before it is given up."""


class Planner:
    """Answers one changed request after the other until `deadline` (time.perf_counter)."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        # Forked: a fresh interpreter would spend a third of a short budget on its imports.
        self._context = multiprocessing.get_context("fork")
        self._child: tuple[multiprocessing.process.BaseProcess, Connection] | None = None

    def __enter__(self) -> Planner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def left(self) -> float:
        """Seconds until the deadline, 0 where they are too few for a question."""
        left = self._deadline - time.perf_counter()
        return left if left >= LEAST_S else 0.0

    def levels(self, request: PlanRequest, seconds: float, *, eases: bool) -> Levels | None:
        """The levels of the best plan found within about `seconds`; None where none was found in time.

        A request that `eases` one with a plan has a plan too; others are tested first, because
        the planner would go on to explain why there is none.
        """
        left = self.left
        if not left:
            return None
        pipe = self._pipe()
        try:
            pipe.send((request, min(seconds, left), eases))
            if pipe.poll(min(left, OVERRUN * seconds + GRACE_S)):
                answer: Levels | None = pipe.recv()
                return answer
        except (OSError, EOFError):
            pass
        # It does more than search, or it died: the next question gets a child of its own.
        self._stop()
        return None

    def _pipe(self) -> Connection:
        if self._child is None:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs, ours), daemon=True)
            process.start()
            theirs.close()
            self._child = process, ours
        return self._child[1]

    def _stop(self) -> None:
        if self._child is not None:
            process, pipe = self._child
            self._child = None
            process.kill()
            process.join()
            pipe.close()


def _serve(pipe: Connection, parents_end: Connection) -> None:
    """The child's side: until the parent's end of the pipe is gone."""
    parents_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        try:
            request, seconds, eases = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = _answer(request, seconds, eases)
        except Exception:  # noqa: BLE001 - an unanswered question is reported as open, never as a fault
            answer = None
        pipe.send(answer)


def _answer(request: PlanRequest, seconds: float, eases: bool) -> Levels | None:
    begun = time.perf_counter()
    if not eases:
        possible = is_feasible(request, begun + seconds)
        if possible is not True:
            return NO_PLAN if possible is False else None
    left = max(LEAST_S, seconds - (time.perf_counter() - begun))
    return levels_of(plan(replace(request, solver=SolverOptions(left))))
