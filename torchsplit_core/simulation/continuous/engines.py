"""Engines of one model behind a router: a request goes to the one with the fewest requests waiting and running."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.simulation.continuous.engine import Engine, RequestLog
from torchsplit_core.simulation.continuous.gaps import TokenGaps, token_gaps
from torchsplit_core.simulation.continuous.ticks import tick_scale
from torchsplit_core.simulation.least_loaded import LeastLoaded
from torchsplit_core.values import EngineServer

Seconds = NDArray[np.float64]
Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EngineUse:
    """What one engine did; `entry` is the index of its server among those given."""

    entry: int
    busy_s: float
    steps: int
    sequences: int
    """Sequences in steps, summed over the steps."""
    kv_peak_blocks: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class EngineRun:
    """One replication: per request in order of arrival, seconds on the time axis of the arrivals.

    `wait_ms`, `ttft_ms` and `response_ms` are from arrival to the first step, the first and the last token: exact to
    the last digit, which differences of the seconds are not late on a long axis.
    `engines` has every engine that had requests, those of a server one after the other.
    """

    start_s: Seconds
    first_token_s: Seconds
    last_token_s: Seconds
    wait_ms: NDArray[np.float64]
    ttft_ms: NDArray[np.float64]
    response_ms: NDArray[np.float64]
    gaps: TokenGaps
    engines: tuple[EngineUse, ...]

    @property
    def preemptions(self) -> int:
        """Of all engines together."""
        return sum(engine.preemptions for engine in self.engines)

    @property
    def kv_peak_blocks(self) -> int:
        """The most of any engine."""
        return max(engine.kv_peak_blocks for engine in self.engines)


def run_engines(
    engines: EngineServer | Sequence[EngineServer],
    arrivals_s: Seconds,
    prompt_tokens: Tokens,
    output_tokens: Tokens,
    cached_tokens: Tokens,
    *,
    first_counted: int = 0,
) -> EngineRun:
    """Run requests that arrive at these seconds (non-decreasing), with these tokens each, to their last token.

    Every request fits into every engine: the blocks of `prompt + output - 1` tokens are there. The gaps are those of
    the requests from `first_counted` on.
    """
    servers = [engines] if isinstance(engines, EngineServer) else list(engines)
    scale = tick_scale([line for server in servers for line in server.step])
    requests = RequestLog(
        prompt_tokens.tolist(), output_tokens.tolist(), cached_tokens.tolist(), first_counted
    )
    lines = [scale.line_ticks(server.step) for server in servers]
    entries = [entry for entry, server in enumerate(servers) for _ in range(server.count)]
    arrivals = scale.from_seconds(arrivals_s)

    def make(number: int) -> Engine:
        return Engine(servers[entries[number]], lines[entries[number]], requests)

    if len(entries) == 1:
        used = [make(0)]
        _run_alone(used[0], arrivals, scale.same_instant)
    else:
        used = _run_routed(arrivals, len(entries), make, scale.same_instant)
    return EngineRun(
        # An arrival between two ticks is taken down to the lower one, and a start is not before it.
        np.maximum(scale.to_seconds(requests.starts), arrivals_s),
        scale.to_seconds(requests.first_tokens),
        scale.to_seconds(requests.last_tokens),
        scale.spans_ms(arrivals, requests.starts),
        scale.spans_ms(arrivals, requests.first_tokens),
        scale.spans_ms(arrivals, requests.last_tokens),
        token_gaps(requests.gaps, scale),
        tuple(
            EngineUse(
                entry,
                engine.busy / scale.per_s,
                engine.steps,
                engine.sequences,
                engine.kv_peak,
                engine.preemptions,
            )
            for entry, engine in zip(entries, used, strict=False)
        ),
    )


def _run_alone(engine: Engine, arrivals: Sequence[int], same_instant: int) -> None:
    """Run one engine; at one instant ends of steps come first, then arrivals, then starts."""
    arrived, coming = 0, len(arrivals)
    join = engine.join
    while True:
        end = engine.end
        if end is None:
            if arrived == coming:
                return
            end = arrivals[arrived]
        else:
            while arrived < coming and arrivals[arrived] + same_instant <= end:
                if join(arrived, arrivals[arrived], same_instant):
                    end = engine.end
                    assert end is not None
                arrived += 1
            engine.finish()
        while arrived < coming and arrivals[arrived] < end + same_instant:
            engine.waiting.append(arrived)
            arrived += 1
        engine.begin(end)


def _run_routed(
    arrivals: Sequence[int], count: int, make: Callable[[int], Engine], same_instant: int
) -> list[Engine]:
    """Run `count` engines by the same rule behind a router, and give those that had requests: the first ones."""
    engines: list[Engine] = []
    loads = LeastLoaded(count)
    ends: list[tuple[int, int]] = []
    arrived, coming = 0, len(arrivals)
    while True:
        while ends and engines[ends[0][1]].end != ends[0][0]:
            heappop(ends)
        if ends:
            now = ends[0][0]
            if arrived < coming:
                now = min(now, arrivals[arrived])
        elif arrived < coming:
            now = arrivals[arrived]
        else:
            return engines
        until = now + same_instant
        begins: dict[int, int] = {}
        while ends and ends[0][0] < until:
            end, number = heappop(ends)
            engine = engines[number]
            if engine.end == end:
                left = engine.finish()
                if left:
                    loads.add(number, -left)
                begins[number] = end
        while arrived < coming and arrivals[arrived] < until:
            number = loads.least()
            if number == len(engines):
                engines.append(make(number))
            engine = engines[number]
            if engine.join(arrived, arrivals[arrived], same_instant):
                assert engine.end is not None
                heappush(ends, (engine.end, number))
            loads.add(number, 1)
            begins.setdefault(number, arrivals[arrived])
            arrived += 1
        for number, begin in begins.items():
            engine = engines[number]
            if engine.end is None:
                engine.begin(begin)
                if engine.end is not None:
                    heappush(ends, (engine.end, number))
