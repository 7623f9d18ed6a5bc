"""Engines of one model behind a router: a request goes to the one with the fewest requests waiting and running."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.simulation.continuous.engine import Engine, RequestLog
from torchsplit_core.simulation.continuous.ticks import TickScale, tick_scale
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
class TokenGaps:
    """Times between neighbouring tokens of a request, as stretches of steps, in no order.

    Stretch i has `steps[i]` lengths, `first_ms[i]` and each further one longer by `growth_ms[i]`; each of them is the
    gap of `sequences[i]` requests.
    """

    first_ms: NDArray[np.float64]
    growth_ms: NDArray[np.float64]
    steps: NDArray[np.int64]
    sequences: NDArray[np.int64]

    def sample(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Every length in milliseconds, and how many gaps have it."""
        places = np.arange(self.steps.sum()) - np.repeat(np.cumsum(self.steps) - self.steps, self.steps)
        lengths = np.repeat(self.first_ms, self.steps) + np.repeat(self.growth_ms, self.steps) * places
        return lengths, np.repeat(self.sequences, self.steps)


@dataclass(frozen=True, slots=True)
class EngineRun:
    """One replication: per request in order of arrival, seconds on the time axis of the arrivals.

    `engines` has every engine, those of a server one after the other.
    """

    start_s: Seconds
    first_token_s: Seconds
    last_token_s: Seconds
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
    entries = [entry for entry, server in enumerate(servers) for _ in range(server.count)]
    lines = [scale.line_ticks(server.step) for server in servers]
    engine_of = [Engine(servers[entry], lines[entry], requests) for entry in entries]
    _run(engine_of, scale.from_seconds(arrivals_s), scale.same_instant)
    return EngineRun(
        scale.to_seconds(requests.starts),
        scale.to_seconds(requests.first_tokens),
        scale.to_seconds(requests.last_tokens),
        _token_gaps(requests.gaps, scale),
        tuple(
            EngineUse(
                entry,
                engine.busy / scale.per_s,
                engine.steps,
                engine.sequences,
                engine.kv_peak,
                engine.preemptions,
            )
            for entry, engine in zip(entries, engine_of, strict=True)
        ),
    )


def _run(engines: Sequence[Engine], arrivals: Sequence[int], same_instant: int) -> None:
    """At one instant ends of steps come first, then arrivals, then starts."""
    loads = LeastLoaded(len(engines))
    ends: list[tuple[int, int]] = []
    arrived, count = 0, len(arrivals)
    while True:
        while ends and engines[ends[0][1]].end != ends[0][0]:
            heappop(ends)
        if ends:
            now = ends[0][0]
            if arrived < count:
                now = min(now, arrivals[arrived])
        elif arrived < count:
            now = arrivals[arrived]
        else:
            return
        until = now + same_instant
        changed = set()
        while ends and ends[0][0] < until:
            end, number = heappop(ends)
            engine = engines[number]
            if engine.end == end:
                left = engine.finish()
                if left:
                    loads.add(number, -left)
                changed.add(number)
        while arrived < count and arrivals[arrived] < until:
            number = loads.least()
            engine = engines[number]
            if engine.join(arrived, arrivals[arrived], same_instant):
                assert engine.end is not None
                heappush(ends, (engine.end, number))
            loads.add(number, 1)
            changed.add(number)
            arrived += 1
        for number in changed:
            engine = engines[number]
            if engine.end is None:
                engine.begin(now)
                if engine.end is not None:
                    heappush(ends, (engine.end, number))


def _token_gaps(gaps: Sequence[tuple[int, int, int, int]], scale: TickScale) -> TokenGaps:
    lengths, growths, steps, sequences = zip(*gaps, strict=True) if gaps else ((), (), (), ())
    return TokenGaps(
        scale.to_seconds(lengths) * 1e3,
        scale.to_seconds(growths) * 1e3,
        np.array(steps, dtype=np.int64),
        np.array(sequences, dtype=np.int64),
    )
