"""A variant's queues through the day: simulated request by request, and a flow where time is left out.

What waits at a moment are the requests that came last, since each queue is first in, first out. So a backlog that grew
or shrank while time was left out is a number, from which its requests follow: those at the head are made anew with the
moments at which they came, as many as can be served before time is left out again; the rest stays a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torchsplit_core.simulation.changing.stage_queue import ServedRequests

ROOM = 1.1
"""Times what the servers can take: so many requests of a backlog are made."""
LEAST_MADE = 64


class QueuesOfVariant(Protocol):
    """What runs a variant's requests, stage by stage."""

    @property
    def stages(self) -> int: ...

    def waiting_in(self, stage: int) -> int: ...

    def join_stage(self, stage: int, times_ms: Sequence[float], requests: Sequence[int]) -> None: ...

    def advance(self, until_ms: float) -> ServedRequests: ...

    def take_waiting(self) -> list[int]: ...

    def take_cut(self) -> list[int]: ...


class VariantFlow:
    """The queues of a variant, and of each the requests behind those that are there one by one."""

    def __init__(self, queues: QueuesOfVariant) -> None:
        self.queues = queues
        self.behind = [0.0] * queues.stages
        self.changed = False
        self._grew = False

    @property
    def backlog(self) -> float:
        """Requests that wait, in all stages."""
        return sum(self._counts())

    def _counts(self) -> list[float]:
        return [self.queues.waiting_in(stage) + more for stage, more in enumerate(self.behind)]

    def grows(self) -> None:
        """More arrive now than its servers carry."""
        self._grew = True

    def pass_time(self, rate_rps: float, capacities: Sequence[float], seconds: float) -> float:
        """Leave out so many seconds at this rate; requests served meanwhile.

        A queue in balance stays as it is. One that came of an overload shrinks by what its servers carry beyond what
        arrives; at its end it is empty.
        """
        arriving = rate_rps
        for stage, (count, capacity) in enumerate(zip(self._counts(), capacities, strict=True)):
            net = (arriving - capacity) * seconds
            after = count
            if net > 0:
                after, self._grew = float(round(count + net)), True
            elif count and (self._grew or count + net > 0):
                after = float(max(0, round(count + net)))
                self._grew = self._grew and after > 0
            if after != count:
                self.behind[stage] += after - count
                self.changed = True
            arriving += (count - after) / seconds
        return arriving * seconds

    def make(
        self,
        capacities: Sequence[float],
        seconds: float,
        now_ms: float,
        arrivals: Callable[[float, int], list[int]],
    ) -> None:
        """Make the requests at the heads of queues that a flow changed, enough for the seconds to come.

        `arrivals(newer, made)`: so many new requests, which came before the last `newer` ones. Those that waited give
        way.
        """
        if not self.changed and not any(self.behind):
            return
        counts = self._counts()
        self.queues.take_waiting()
        newer = sum(counts)
        for stage in reversed(range(len(counts))):
            newer -= counts[stage]
            made = min(int(counts[stage]), int(ROOM * capacities[stage] * seconds) + LEAST_MADE)
            if made:
                requests = arrivals(newer + counts[stage] - made, made)
                self.queues.join_stage(stage, [now_ms] * made, requests)
            self.behind[stage] = counts[stage] - made
        self.changed = False

    def empty(self) -> tuple[list[int], float]:
        """All that waits: requests, and how many behind them."""
        more = sum(self.behind)
        self.behind, self.changed = [0.0] * len(self.behind), False
        return self.queues.take_waiting(), more
