"""Engines of one model that come and go behind a router; advanced from instant to instant, they keep their state.

The router is that of `continuous.engines`: a request goes to the open engine with the fewest requests waiting and
running, of equal ones to the first; while none is open it waits at the router. An engine that closes gives back what
has not begun, works on what has, and after `drain_ms` cuts off the rest, which is lost.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from torchsplit_core.simulation.changing.stage_queue import ServedRequests
from torchsplit_core.simulation.continuous.engine import Engine, RequestLog
from torchsplit_core.simulation.continuous.request_tokens import RequestTokens
from torchsplit_core.simulation.continuous.ticks import tick_scale
from torchsplit_core.values import EngineServer

DrawTokens = Callable[[int], RequestTokens]
"""The lengths of a further block of requests, the first, second, …"""


@dataclass(frozen=True, slots=True)
class OpenEngine:
    """An engine that takes requests from one instant up to another, ms."""

    server: EngineServer
    open_ms: float = -math.inf
    close_ms: float = math.inf
    drain_ms: float = math.inf


@dataclass(slots=True)
class _Running:
    engine: Engine
    open_tick: float
    close_tick: float
    cut_tick: float
    joined: set[int] = field(default_factory=set)


class ChangingEngines:
    """All engines of a model; requests have numbers, and lengths in the order in which they first come."""

    stages = 1

    def __init__(self, engines: Sequence[OpenEngine], draw: DrawTokens) -> None:
        servers = [item.server for item in engines for _ in range(item.server.count)]
        self._scale = tick_scale([line for server in servers for line in server.step])
        self._log = RequestLog([], [], [], 2**62)
        self._draw, self._blocks = draw, 0
        self._numbers: list[int] = []
        self._engines: list[_Running] = []
        for item in engines:
            lines = self._scale.line_ticks(item.server.step)
            for _ in range(item.server.count):
                begin, end = self._tick(item.open_ms), self._tick(item.close_ms)
                engine = Engine(item.server, lines, self._log)
                self._engines.append(_Running(engine, begin, end, end + self._tick(item.drain_ms)))
        moments = {
            tick
            for item in self._engines
            for tick in (item.open_tick, item.close_tick, item.cut_tick)
            if math.isfinite(tick)
        }
        self._changes: deque[float] = deque(sorted(moments))
        # By number, in order: a router goes through those that are open, of the many of a day.
        self._open = [number for number, item in enumerate(self._engines) if item.open_tick == -math.inf]
        self._coming: deque[tuple[int, int]] = deque()
        self._router: deque[int] = deque()
        self._ends: list[tuple[int, int]] = []
        self._done: list[int] = []
        self._cut: list[int] = []
        self._busy = 0

    def _tick(self, moment_ms: float) -> float:
        return round(moment_ms * self._scale.per_ms) if math.isfinite(moment_ms) else moment_ms

    def waiting_in(self, stage: int) -> int:
        """Requests that no engine has begun."""
        assert not stage
        held = sum(len(self._unbegun(item)) for item in self._engines if item.engine.waiting)
        return len(self._coming) + len(self._router) + held

    def _unbegun(self, item: _Running) -> list[int]:
        return [place for place in item.engine.waiting if self._log.starts[place] < 0]

    def join_stage(self, stage: int, times_ms: Sequence[float], requests: Sequence[int]) -> None:
        """Requests come at these instants: never falling, none before those that have come."""
        assert not stage
        first = len(self._numbers)
        self._numbers += requests
        log = self._log
        while len(log.prompts) < len(self._numbers):
            tokens = self._draw(self._blocks)
            self._blocks += 1
            log.prompts += tokens.prompts.tolist()
            log.outputs += tokens.outputs.tolist()
            log.cached += tokens.cached.tolist()
            fresh = [-1] * len(tokens.prompts)
            for times in (log.starts, log.first_tokens, log.last_tokens):
                times += fresh
        self._coming.extend(
            (round(moment * self._scale.per_ms), first + place) for place, moment in enumerate(times_ms)
        )

    def take_waiting(self) -> list[int]:
        """All requests that no engine has begun; they leave."""
        places = [place for _, place in self._coming] + list(self._router)
        self._coming.clear()
        self._router.clear()
        for item in self._engines:
            places += self._take_unbegun(item)
        return [self._numbers[place] for place in sorted(places)]

    def _take_unbegun(self, item: _Running) -> list[int]:
        left = self._unbegun(item)
        if left:
            item.joined.difference_update(left)
            begun = [place for place in item.engine.waiting if self._log.starts[place] >= 0]
            item.engine.waiting = deque(begun)
        return left

    def take_cut(self) -> list[int]:
        """Requests that were cut off since this was last asked for."""
        cut, self._cut = [self._numbers[place] for place in self._cut], []
        return cut

    def advance(self, until_ms: float) -> ServedRequests:
        """The requests whose last token comes before an instant; all that come before it have joined."""
        until = self._tick(until_ms)
        while True:
            while self._ends and self._engines[self._ends[0][1]].engine.end != self._ends[0][0]:
                heappop(self._ends)
            now = min(
                self._ends[0][0] if self._ends else math.inf,
                self._coming[0][0] if self._coming else math.inf,
                self._changes[0] if self._changes else math.inf,
            )
            if now >= until:
                break
            self._go(now)
        return self._answered()

    def _go(self, now: float) -> None:
        """Everything at one instant: ends of steps, then engines that open and close, then requests."""
        last = now + self._scale.same_instant
        begins: dict[int, int] = {}
        while self._ends and self._ends[0][0] < last:
            end, number = heappop(self._ends)
            item = self._engines[number]
            if item.engine.end == end:
                busy = item.engine.busy
                if item.engine.finish():
                    self._leave(item)
                self._busy += item.engine.busy - busy
                begins[number] = end
        while self._changes and self._changes[0] < last:
            self._change(self._changes.popleft())
        if self._router:
            waiting, self._router = self._router, deque()
            for place in waiting:
                self._route(place, int(now), begins)
        while self._coming and self._coming[0][0] < last:
            moment, place = self._coming.popleft()
            self._route(place, moment, begins)
        for number, begin in begins.items():
            engine = self._engines[number].engine
            if engine.end is None:
                engine.begin(begin)
                if engine.end is not None:
                    heappush(self._ends, (engine.end, number))

    def _leave(self, item: _Running) -> None:
        log = self._log
        done = [place for place in item.joined if log.last_tokens[place] >= 0]
        item.joined.difference_update(done)
        self._done += done

    def _change(self, moment: float) -> None:
        for number, item in enumerate(self._engines):
            if item.open_tick == moment:
                insort(self._open, number)
            if item.close_tick == moment:
                self._open.remove(number)
                self._router.extend(self._take_unbegun(item))
            if item.cut_tick == moment and item.joined:
                self._cut += sorted(item.joined)
                item.joined.clear()
                item.engine.waiting.clear()
                item.engine.end = None

    def _route(self, place: int, moment: int, begins: dict[int, int]) -> None:
        chosen = -1
        least = math.inf
        for number in self._open:
            load = self._engines[number].engine.load
            if load < least:
                chosen, least = number, load
        if chosen < 0:
            self._router.append(place)
            return
        item = self._engines[chosen]
        item.joined.add(place)
        if item.engine.join(place, moment, self._scale.same_instant):
            assert item.engine.end is not None
            heappush(self._ends, (item.engine.end, chosen))
        begins.setdefault(chosen, moment)

    def _answered(self) -> ServedRequests:
        places, self._done = self._done, []
        busy, self._busy = self._busy, 0
        log, scale = self._log, self._scale
        if not places:
            return ServedRequests([], np.empty(0), busy / scale.per_ms)
        first = scale.to_ms(log.first_tokens[place] for place in places)
        last = scale.to_ms(log.last_tokens[place] for place in places)
        steps = np.array([log.outputs[place] - 1 for place in places])
        tpot = np.where(steps > 0, (last - first) / np.maximum(steps, 1), 0.0)
        return ServedRequests(
            [self._numbers[place] for place in places], last, busy / scale.per_ms, first, tpot
        )
