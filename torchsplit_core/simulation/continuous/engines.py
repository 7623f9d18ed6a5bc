"""Engines of one model behind a router: a request goes to the one with the fewest requests waiting and running."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.simulation.continuous.engine import Engine
from torchsplit_core.simulation.continuous.ticks import tick_scale
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

    `gaps_ms` are the times between neighbouring tokens of a request, each `gap_counts` times, in no order.
    """

    start_s: Seconds
    first_token_s: Seconds
    last_token_s: Seconds
    gaps_ms: NDArray[np.float64]
    gap_counts: NDArray[np.int64]
    engines: tuple[EngineUse, ...]

    @property
    def preemptions(self) -> int:
        return sum(engine.preemptions for engine in self.engines)

    @property
    def kv_peak_blocks(self) -> int:
        return max(engine.kv_peak_blocks for engine in self.engines)


def run_engines(
    engines: EngineServer | Sequence[EngineServer],
    arrivals_s: Seconds,
    prompt_tokens: Tokens,
    output_tokens: Tokens,
    cached_tokens: Tokens,
) -> EngineRun:
    """Run requests that arrive at these seconds (non-decreasing), with these tokens each, to their last token.

    Every request fits into the cache of every engine: `prompt + output - 1` tokens.
    """
    servers = [engines] if isinstance(engines, EngineServer) else list(engines)
    scale = tick_scale([line for server in servers for line in server.step])
    times = [scale.ticks(time * 1e3) for time in arrivals_s.tolist()]
    lengths = (prompt_tokens.tolist(), output_tokens.tolist(), cached_tokens.tolist())
    entries = [entry for entry, server in enumerate(servers) for _ in range(server.count)]
    lines = [scale.line_ticks(server.step) for server in servers]
    engine_of = [Engine(servers[entry], lines[entry], *lengths) for entry in entries]
    arrived = 0
    while arrived < len(times) or any(engine.end is not None for engine in engine_of):
        instants = [engine.end for engine in engine_of if engine.end is not None]
        now = min([*instants, *times[arrived : arrived + 1]])
        changed = set()
        for number, engine in enumerate(engine_of):
            if engine.end is not None and engine.end < now + scale.same_instant:
                engine.finish()
                changed.add(number)
        while arrived < len(times) and times[arrived] < now + scale.same_instant:
            number = min(range(len(engine_of)), key=lambda number: engine_of[number].load)
            engine_of[number].waiting.append(arrived)
            changed.add(number)
            arrived += 1
        for number in sorted(changed):
            if engine_of[number].end is None:
                engine_of[number].begin(now)
    columns = []
    for name in ("starts", "first_tokens", "last_tokens"):
        column = np.empty(len(times))
        for engine in engine_of:
            for request, tick in getattr(engine, name).items():
                column[request] = tick / scale.per_ms / 1e3
        columns.append(column)
    gaps = np.array([gap / scale.per_ms for engine in engine_of for gap in engine.gaps])
    return EngineRun(
        columns[0],
        columns[1],
        columns[2],
        gaps,
        np.ones(len(gaps), dtype=np.int64),
        tuple(
            EngineUse(
                entry,
                engine.busy / scale.per_ms / 1e3,
                engine.steps,
                engine.sequences,
                engine.kv_peak,
                engine.preemptions,
            )
            for entry, engine in zip(entries, engine_of, strict=True)
        ),
    )
