"""One model through a day, request by request: arrivals by the trace, servers that come and go, and what is lost.

A request waits in the queue of a variant that has servers for all its stages. Where a variant ends and another runs,
its queue moves over. Where none runs, whatever waits is lost, and so is what arrives until one does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.day_plans.replay.time_sample import (
    PieceGroup,
    RateOverDay,
    ReplayPiece,
    SampledStretch,
    SimulatedAxis,
    sample_stretches,
)
from torchsplit_core.day_plans.replay.variant_flow import QueuesOfVariant, VariantFlow
from torchsplit_core.simulation.changing.stage_queue import ServedRequests
from torchsplit_core.tables.demand_trace.trace_csv import DAY_S

Floats = NDArray[np.float64]
MOST_PARTS = 200
"""A backlog that waits at the end of the day is put to the hours in which it came in so many parts."""

MakeQueues = Callable[[SimulatedAxis, np.random.Generator], Mapping[str, QueuesOfVariant]]
"""The queues of each variant, whose servers come and go on an axis."""


@dataclass(frozen=True, slots=True)
class DayRequests:
    """What became of a model's requests in one replication.

    Of each answered one: when it arrived (seconds of the trace), its response in ms, and how many it stands for;
    of an LLM also the times of its tokens. `missing_s`, `missing_weights`: those without an answer. The counts are of
    all requests, left out or not: arrived = served + lost + waiting. `busy_s` of `open_s` server-seconds were worked.
    """

    arrivals_s: Floats
    response_ms: Floats
    weights: Floats
    ttft_ms: Floats | None
    tpot_ms: Floats | None
    missing_s: Floats
    missing_weights: Floats
    arrived: float
    served: float
    lost: float
    waiting: float
    simulated: int
    busy_s: float
    open_s: float


def run_model_day(
    groups: Sequence[PieceGroup], level: float, make_queues: MakeQueues, seed: Sequence[int], step_s: int
) -> DayRequests:
    """The requests of one replication, `level` as `sample_level` gives it.

    `seed`: of the run, the model and the replication; `step_s`: of the trace. Arrivals are Poisson within each value
    of the trace; where all are simulated they are the same for every side.
    """
    pieces = [piece for group in groups for piece in group]
    stretches = sample_stretches(groups, level, np.random.default_rng([*seed, 0]))
    axis = SimulatedAxis(stretches)
    queues = make_queues(axis, np.random.default_rng([*seed, 1]))
    run = _ModelDay(queues, pieces, seed, step_s, math.isinf(level))
    for stretch in stretches:
        run.go(stretch)
    return run.finish()


class _ModelDay:
    def __init__(
        self, queues: Mapping[str, QueuesOfVariant], pieces: Sequence[ReplayPiece], seed: Sequence[int],
        step_s: int, full: bool,
    ) -> None:  # fmt: skip
        self.flows = {name: VariantFlow(line) for name, line in queues.items()}
        self.rates, self.seed = RateOverDay(pieces), seed
        self.step_s, self.full = step_s, full
        self.now_ms = 0.0
        self.arrived = self.served = self.lost = self.busy_s = self.open_s = 0.0
        self.simulated = 0
        # By the number of a request: when it came in the day, and on the axis.
        self.came_s: list[float] = []
        self.came_ms: list[float] = []
        self.answered: list[tuple[ServedRequests, float]] = []
        self.missing: list[tuple[Sequence[float], float]] = []
        self.drawn: tuple[int, Floats] = (-1, np.empty(0))

    def go(self, stretch: SampledStretch) -> None:
        """One stretch, whether simulated or left out."""
        piece = stretch.piece
        if piece.rate_rps is None:
            return
        self._switch(piece, stretch.begin_s)
        if not stretch.simulated:
            self._leave_out(piece, stretch.length_s)
            return
        times_s = self._arrivals(stretch)
        self.arrived += len(times_s)
        self.simulated += len(times_s)
        self.open_s += stretch.weight * stretch.length_s * piece.open_servers
        until_ms = self.now_ms + 1e3 * stretch.length_s
        if not piece.capacities:
            self.lost += len(times_s)
            self.missing.append((times_s.tolist(), stretch.weight))
        else:
            self._make_backlog(stretch)
            self._join(piece, times_s, self.now_ms + 1e3 * (times_s - stretch.begin_s))
        for name, flow in self.flows.items():
            if name in piece.capacities and piece.rate_rps >= piece.capacity_rps:
                flow.grows()
            self._take(flow.queues, until_ms, stretch.weight)
        self.now_ms = until_ms

    def _switch(self, piece: ReplayPiece, begin_s: float) -> None:
        """Requests of a variant that no longer runs move to another, and are lost where there is none."""
        running = piece.capacities
        stopped = [flow for name, flow in self.flows.items() if name not in running]
        for flow in stopped:
            if not flow.backlog:
                continue
            requests, more = flow.empty()
            if running:
                target = self.flows[max(running, key=lambda name: min(running[name]))]
                target.queues.join_stage(0, [self.now_ms] * len(requests), sorted(requests))
                target.behind[0] += more
            else:
                self.lost += len(requests) + more
                self.missing.append(([self.came_s[request] for request in requests], 1.0))
                self._miss(begin_s, more)

    def _miss(self, moment_s: float, count: float) -> None:
        """The last so many requests before a moment get no answer."""
        if count:
            parts = min(MOST_PARTS, max(1, round(count)))
            self.missing.append((self.rates.last_arrivals_s(moment_s, count, parts).tolist(), count / parts))

    def _leave_out(self, piece: ReplayPiece, seconds: float) -> None:
        rate = piece.rate_rps or 0.0
        self.arrived += rate * seconds
        if not piece.capacities:
            self.lost += rate * seconds
            return
        for name, stages in piece.capacities.items():
            share = min(stages) / piece.capacity_rps
            self.served += self.flows[name].pass_time(rate * share, stages, seconds)

    def _make_backlog(self, stretch: SampledStretch) -> None:
        piece = stretch.piece
        for name, stages in piece.capacities.items():
            share = min(stages) / piece.capacity_rps

            def arrivals(newer: float, made: int, share: float = share) -> list[int]:
                before = np.asarray((newer + made - np.arange(made) - 0.5) / share, dtype=np.float64)
                moments = self.rates.arrival_s(stretch.begin_s, before)
                return self._number(moments, self.now_ms - 1e3 * (stretch.begin_s - moments))

            self.flows[name].make(stages, stretch.length_s, self.now_ms, arrivals)

    def _arrivals(self, stretch: SampledStretch) -> Floats:
        """Moments of the day at which requests arrive in the stretch, in order."""
        piece = stretch.piece
        rate = piece.rate_rps or 0.0
        if not self.full:
            place = [piece.step, stretch.number, int(1e3 * piece.begin_s)]
            rng = np.random.default_rng([*self.seed, 2, *place])
            count = int(rng.poisson(rate * stretch.length_s))
            return np.asarray(np.sort(stretch.begin_s + stretch.length_s * rng.random(count)))
        # The whole of a value of the trace is drawn at once, so that every side has the same requests.
        if self.drawn[0] != piece.step:
            rng = np.random.default_rng([*self.seed, 2, piece.step])
            count = int(rng.poisson(rate * self.step_s))
            self.drawn = (piece.step, np.sort(self.step_s * (piece.step + rng.random(count))))
        begin, end = np.searchsorted(self.drawn[1], (stretch.begin_s, stretch.end_s))
        return self.drawn[1][begin:end]

    def _number(self, moments_s: Floats, times_ms: Floats) -> list[int]:
        first = len(self.came_s)
        self.came_s += moments_s.tolist()
        self.came_ms += times_ms.tolist()
        return list(range(first, len(self.came_s)))

    def _join(self, piece: ReplayPiece, moments_s: Floats, times_ms: Floats) -> None:
        """Arrivals join the variants that run, each with the chance of its share of what is carried."""
        requests = self._number(moments_s, times_ms)
        names = sorted(piece.capacities)
        if len(names) == 1:
            self.flows[names[0]].queues.join_stage(0, times_ms.tolist(), requests)
            return
        shares = np.cumsum([min(piece.capacities[name]) for name in names]) / piece.capacity_rps
        rng = np.random.default_rng([*self.seed, 3, int(piece.begin_s)])
        chosen = np.searchsorted(shares, rng.random(len(requests)))
        for number, name in enumerate(names):
            mine = np.flatnonzero(chosen == number)
            self.flows[name].queues.join_stage(
                0, times_ms[mine].tolist(), [requests[place] for place in mine.tolist()]
            )

    def _take(self, queues: QueuesOfVariant, until_ms: float, weight: float) -> None:
        answered = queues.advance(until_ms)
        self.busy_s += weight * answered.busy_ms / 1e3
        if answered.requests:
            self.served += len(answered.requests)
            self.answered.append((answered, weight))
        if cut := queues.take_cut():
            self.lost += len(cut)
            self.missing.append(([self.came_s[request] for request in cut], weight))

    def finish(self) -> DayRequests:
        """What became of all; those that wait at the end of the day get no answer in it, those begun get theirs."""
        waiting = 0.0
        for flow in self.flows.values():
            requests, more = flow.empty()
            waiting += len(requests) + more
            self.missing.append(([self.came_s[request] for request in requests], 1.0))
            self._miss(float(DAY_S), more)
            self._take(flow.queues, math.inf, 1.0)
        requests_of = [np.array(item.requests, dtype=np.int64) for item, _ in self.answered]
        numbers = np.concatenate([np.empty(0, dtype=np.int64), *requests_of])
        came_s, came_ms = np.array(self.came_s, dtype=np.float64), np.array(self.came_ms, dtype=np.float64)
        firsts = [item.first_ms for item, _ in self.answered if item.first_ms is not None]
        tpots = [item.tpot_ms for item, _ in self.answered if item.tpot_ms is not None]
        return DayRequests(
            came_s[numbers],
            _joined([item.ends_ms for item, _ in self.answered]) - came_ms[numbers],
            _joined([np.full(len(item.requests), weight) for item, weight in self.answered]),
            _joined(firsts) - came_ms[numbers] if firsts else None,
            _joined(tpots) if tpots else None,
            _joined([np.array(moments, dtype=np.float64) for moments, _ in self.missing]),
            _joined([np.full(len(moments), weight) for moments, weight in self.missing]),
            self.arrived,
            self.served,
            self.lost,
            waiting,
            self.simulated,
            self.busy_s,
            self.open_s,
        )


def _joined(parts: Sequence[Floats]) -> Floats:
    return np.concatenate([np.empty(0), *parts])
