"""What each step of an engine processed and how long it took, read off transformers' scheduler."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

MOST_STEPS = 200_000
"""Steps that are kept until they are read; older ones are dropped."""


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One step, in the terms of `StepLine`; seconds by time.perf_counter, of one clock for all processes of a host.

    `prompt_tokens`: P. `sequences`: S, those that decode. `context_tokens`: K. `attention_pairs`: A. `running` counts
    all sequences in it, `waiting` those that it left out.
    """

    start_s: float
    end_s: float
    prompt_tokens: int
    sequences: int
    context_tokens: int
    attention_pairs: float
    running: int
    waiting: int


class StepLog:
    """Watches a batch processor of transformers from its own thread; `take` is called from any."""

    def __init__(self) -> None:
        self._steps: deque[LoggedStep] = deque(maxlen=MOST_STEPS)
        self._lock = threading.Lock()
        self._began_s = 0.0
        self._work: tuple[int, int, int, float, int, int] | None = None

    def take(self) -> list[LoggedStep]:
        """The steps since they were last taken."""
        with self._lock:
            steps, self._steps = list(self._steps), deque(maxlen=MOST_STEPS)
        return steps

    def watch(self, processor: Any) -> None:
        """Log the steps of a ContinuousBatchProcessor: from before it is scheduled to when its tokens are handed on."""
        prepare, schedule, update = (
            processor.prepare_next_batch,
            processor.scheduler.schedule_batch,
            processor.update_batch,
        )

        def prepare_next_batch() -> Any:
            self._began_s, self._work = time.perf_counter(), None
            return prepare()

        def schedule_batch(*budgets: int) -> Any:
            scheduled = schedule(*budgets)
            if scheduled[0]:
                self._work = _work_of(scheduled[0], len(processor.scheduler.waiting_requests))
            return scheduled

        def update_batch() -> None:
            update()
            if self._work is not None:
                step = LoggedStep(self._began_s, time.perf_counter(), *self._work)
                with self._lock:
                    self._steps.append(step)

        processor.prepare_next_batch = prepare_next_batch
        processor.scheduler.schedule_batch = schedule_batch
        processor.update_batch = update_batch


def _work_of(requests: list[Any], waiting: int) -> tuple[int, int, int, float, int, int]:
    """P, S, K, A, running and waiting of a batch of FutureRequestState, before it is processed."""
    prompt = sequences = context = 0
    pairs = 0.0
    for request in requests:
        state, tokens = request.state, request.query_length
        before = state.position_offset
        # After a preemption the tokens given before are part of what is processed anew.
        if tokens == 1 and state.generated_len():
            sequences += 1
            context += before + 1
        else:
            prompt += tokens
            pairs += tokens * (before + (tokens + 1) / 2)
    return prompt, sequences, context, pairs, len(requests), waiting
