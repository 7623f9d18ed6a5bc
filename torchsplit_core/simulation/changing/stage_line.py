"""The stages of one variant of a model in a row, each with a queue whose servers come and go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchsplit_core.simulation.changing.stage_queue import ServedRequests, StageQueue


class StageLine:
    """Requests go through the queues in order; from queue i to i + 1 takes `transfers_ms[i]`."""

    def __init__(self, queues: Sequence[StageQueue], transfers_ms: Sequence[float] = ()) -> None:
        self.queues = tuple(queues)
        self._transfers = tuple(transfers_ms) or (0.0,) * (len(self.queues) - 1)
        self._coming: list[tuple[list[float], list[int]]] = [([], []) for _ in self._transfers]
        """Of each queue after the first: when requests join it that are still served or carried, and which."""

    @property
    def stages(self) -> int:
        """Queues in the row."""
        return len(self.queues)

    def waiting_in(self, stage: int) -> int:
        """Requests in a queue, or on the way to it."""
        coming = len(self._coming[stage - 1][0]) if stage else 0
        return self.queues[stage].waiting + coming

    def join_stage(self, stage: int, times_ms: Sequence[float], requests: Sequence[int]) -> None:
        """Requests join a queue, as `StageQueue.join` has it."""
        self.queues[stage].join(times_ms, requests)

    def advance(self, until_ms: float) -> ServedRequests:
        """The requests whose last batch begins before an instant; all that join before it have joined."""
        busy = 0.0
        for number, queue in enumerate(self.queues):
            if number:
                self._arrive(number, until_ms)
            served = queue.advance(until_ms)
            busy += served.busy_ms
            if number < len(self._transfers) and served.requests:
                times, requests = self._coming[number]
                times += (served.ends_ms + self._transfers[number]).tolist()
                requests += served.requests
        return ServedRequests(served.requests, served.ends_ms, busy)

    def _arrive(self, number: int, until_ms: float) -> None:
        times, requests = self._coming[number - 1]
        if not times:
            return
        # Stable: requests that arrive together stay in the order in which their batches began.
        order = np.argsort(np.array(times), kind="stable").tolist()
        times, requests = [times[place] for place in order], [requests[place] for place in order]
        arrived = int(np.searchsorted(times, until_ms))
        self.queues[number].join(times[:arrived], requests[:arrived])
        self._coming[number - 1] = (times[arrived:], requests[arrived:])

    def take_waiting(self) -> list[int]:
        """All requests in queues or between them, those furthest on first; they leave the line."""
        left: list[int] = []
        for number in reversed(range(len(self.queues))):
            left += self.queues[number].take_waiting()
            if number:
                left += self._coming[number - 1][1]
                self._coming[number - 1] = ([], [])
        return left

    def take_cut(self) -> list[int]:
        """None: a batch that has begun ends."""
        return []
