"""The largest load at which a model's engines keep its limits on TTFT and TPOT, by simulations.

All trials have the same draws, those of `simulate`, so a higher load only moves requests closer together. The search
begins where the closed form (`steady_state`), scaled by the last trial's times, meets the limits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torchsplit_core.simulation.arrivals import offered_rps
from torchsplit_core.simulation.continuous.engine_model import (
    EngineModel,
    EngineReplication,
    prepare_engine_model,
)
from torchsplit_core.simulation.continuous.request_tokens import are_drawn
from torchsplit_core.simulation.continuous.steady_state import LEAST_SHARE, ClosedForm, MeanLengths
from torchsplit_core.simulation.output_statistics import mean, percentile, upper_end
from torchsplit_core.values import DeterministicArrivals, SimulationRequest

WITHIN = 1.01
"""Most ratio between the ends of the final interval."""
BEYOND = 1.02
"""Times the lower end: there a limit fails too."""
MOST_TRIALS = 40
MOST_STEP = 1.5
"""Ratio between a trial and the next, as long as none has exceeded a limit, or none has kept them."""
NEAR_CAPACITY = 0.7
"""From this share of the closed form's greatest rate on, a trial may exceed the capacity, which is simulated then."""
BUSY = 0.98
"""Of the capacity: from here on no limit is surely kept. Runs begin empty, and end before their queues have grown."""
OVERLOAD = 1.05
"""Times the capacity: a load at which blocks run short, if they are what limits it."""
APART_RPS = 1e-5
"""Rate of requests that are alone: no response takes so long."""


@dataclass(frozen=True, slots=True)
class LoadedEngines:
    """A model's engines at `factor` times its rate, `rate_rps` in all: the percentile of TTFT and TPOT in ms (tpot_ms
    None: no request has two tokens), the share of requests that keep both limits, and whether blocks of the KV cache
    ran short. Times are infinite at a load that is not stable.
    """

    factor: float
    rate_rps: float
    ttft_ms: float
    tpot_ms: float | None
    goodput: float
    short_of_blocks: bool


@dataclass(frozen=True, slots=True)
class LargestRate:
    """`low` keeps every limit, and at `high_rps` one fails, for the reason `binds`: TTFT, TPOT, KV (blocks run short)
    or rate (no more requests are completed in a second).

    low None: not even a request `alone` keeps them. high_rps None: no limit is given, and low's rate is the capacity.
    """

    low: LoadedEngines | None
    high_rps: float | None
    binds: str
    alone: LoadedEngines


def largest_rate(
    request: SimulationRequest, percent: float = 95.0, *, within: float = WITHIN, surely: bool = False
) -> LargestRate:
    """Of the request's first model, which has engines and arrivals with a rate: to `within`, the lower end, at which
    `percent` of its requests keep max_ttft_ms, and as many max_tpot_ms. The request is not validated.

    `surely`: at which the upper end of the 95 % interval over replications keeps them; times are these ends.
    """
    trials = _Trials(request, percent, surely=surely)
    alone = trials.alone()
    if trials.excess(alone) > 1:
        return LargestRate(None, None, trials.binding(alone), alone)
    if not trials.limited:
        full = trials.at_capacity()
        return LargestRate(full, None, "KV" if full.short_of_blocks else "rate", alone)
    low: LoadedEngines | None = None
    high: LoadedEngines | None = None
    factor = trials.met_like(alone)
    for number in range(MOST_TRIALS):
        trial = trials.at(factor)
        low, high = (trial, high) if trials.excess(trial) <= 1 else (low, trial)
        if low is not None and high is not None and high.factor <= low.factor * within:
            # Of few requests a percentile may fall while the load rises: a little further the limits may hold again.
            beyond = trials.at(low.factor * BEYOND)
            if trials.excess(beyond) > 1:
                break
            low, high = beyond, None
        factor = trials.next_factor(low, high, within, number)
    if high is None:
        return LargestRate(low, None, "rate", alone)
    return LargestRate(low, high.rate_rps, trials.binding(high, low), alone)


def loaded_engines(request: SimulationRequest, factor: float, percent: float = 95.0) -> LoadedEngines:
    """The engines of the request's first model at `factor` times its rate."""
    return _Trials(request, percent).at(factor)


class _Trials:
    def __init__(self, request: SimulationRequest, percent: float, *, surely: bool = False) -> None:
        self.request, self.percent, self.surely = request, percent, surely
        self.prepared = prepare_engine_model(request, 0)
        self.model = self.prepared.model
        rate = offered_rps(self.model.arrivals)
        assert rate is not None
        self.rate_rps = rate
        self._closed_form = closed_form(self.prepared)
        full = self._closed_form.within(None, None)
        assert full is not None
        self._full = full.rate_rps * self._engines / rate

    @property
    def limited(self) -> bool:
        return self.model.max_ttft_ms is not None or self.model.max_tpot_ms is not None

    @property
    def _most_rps(self) -> float:
        """From here on a load counts as not stable."""
        return self.prepared.capacity_rps * (BUSY if self.surely and self.limited else 1.0)

    @property
    def _engines(self) -> int:
        return sum(server.count for server in self.prepared.servers)

    def at(self, factor: float) -> LoadedEngines:
        """The engines at this load."""
        if factor >= NEAR_CAPACITY * self._full and factor * self.rate_rps >= self._most_rps:
            return LoadedEngines(factor, factor * self.rate_rps, math.inf, None, 0.0, short_of_blocks=False)
        runs = [self.prepared.run(number, factor) for number in range(self.prepared.replications)]
        return self._loaded(factor, runs)

    def alone(self) -> LoadedEngines:
        """Requests so far apart that none meets another; one is enough where all are alike."""
        apart = replace(self.model, arrivals=DeterministicArrivals(APART_RPS))
        count = self.request.requests_per_model if are_drawn(self.model) else 1
        prepared = prepare_engine_model(replace(self.request, models=(apart,), requests_per_model=count), 0)
        return self._loaded(0.0, [prepared.run(number) for number in range(prepared.replications)])

    def at_capacity(self) -> LoadedEngines:
        """The capacity, where times grow without end, and whether blocks run short just above it."""
        capacity = self.prepared.capacity_rps / self.rate_rps
        beyond = self._loaded(capacity, [self.prepared.run(0, OVERLOAD * capacity)])
        return replace(beyond, ttft_ms=math.inf, tpot_ms=None, goodput=0.0)

    def excess(self, trial: LoadedEngines) -> float:
        """The largest ratio of a time to its limit: above 1 a limit is exceeded."""
        return max(self._ratios(trial))

    def binding(self, trial: LoadedEngines, low: LoadedEngines | None = None) -> str:
        """Why the trial exceeds a limit, where `low` does not."""
        ttft, tpot = self._ratios(trial)
        short = low.short_of_blocks if low is not None and math.isinf(ttft) else trial.short_of_blocks
        if tpot > ttft:
            return "TPOT"
        if short:
            return "KV"
        return "rate" if math.isinf(ttft) else "TTFT"

    def next_factor(
        self, low: LoadedEngines | None, high: LoadedEngines | None, within: float, trials: int
    ) -> float:
        """Where the limits are met by the closed form through the only end, from which each trial may go twice as far,
        or by the power law through both; just inside an end, to close the interval, if they are met near it.
        """
        if low is None or high is None:
            known = low or high
            assert known is not None
            wanted = self.met_like(known)
            least = min(math.pow(within, 2 ** min(trials, 10)), MOST_STEP)
            if low is not None:
                return min(max(wanted, low.factor * least), low.factor * MOST_STEP)
            return max(min(wanted or math.inf, known.factor / least), known.factor / MOST_STEP)
        first, last = low.factor, high.factor
        below, above = math.log(self.excess(low)), self.excess(high)
        share = 0.5
        if not math.isinf(above) and math.log(above) > below:
            share = -below / (math.log(above) - below)
        wanted = first * math.pow(last / first, min(max(share, 0.1), 0.9))
        middle, step = math.sqrt(first * last), math.pow(within, 0.98)
        if wanted < first * within:
            return min(first * step, middle)
        if wanted > last / within:
            return max(last / step, middle)
        return wanted

    def met_like(self, known: LoadedEngines) -> float:
        """Where the closed form meets the limits, scaled to give the known times at their load."""
        if math.isinf(known.ttft_ms):
            # Just below the capacity, which is known then.
            return self._most_rps / self.rate_rps / math.sqrt(WITHIN)
        scaled = self._closed_form.like(known.rate_rps / self._engines, known.ttft_ms, known.tpot_ms)
        state = scaled.within(self.model.max_ttft_ms, self.model.max_tpot_ms)
        return LEAST_SHARE * self._full if state is None else state.rate_rps * self._engines / self.rate_rps

    def _ratios(self, trial: LoadedEngines) -> tuple[float, float]:
        if math.isinf(trial.ttft_ms):
            return math.inf, 0.0
        ttft, tpot = self.model.max_ttft_ms, self.model.max_tpot_ms
        return (
            0.0 if ttft is None else trial.ttft_ms / ttft,
            0.0 if tpot is None or trial.tpot_ms is None else trial.tpot_ms / tpot,
        )

    def _loaded(self, factor: float, runs: list[EngineReplication]) -> LoadedEngines:
        model = self.model
        per_token = [run.tpot_ms for run in runs if len(run.tpot_ms)]
        longest = max(int((run.tokens.prompts + run.tokens.outputs).max()) for run in runs)
        blocks = min(server.kv_blocks - longest // server.block_tokens for server in self.prepared.servers)
        return LoadedEngines(
            factor,
            factor * self.rate_rps,
            self._over_runs([percentile(run.ttft_ms, self.percent) for run in runs]),
            self._over_runs([percentile(times, self.percent) for times in per_token]) if per_token else None,
            mean([float(run.is_good(model.max_ttft_ms, model.max_tpot_ms).mean()) for run in runs]),
            any(run.run.preemptions > 0 or run.run.kv_peak_blocks > blocks for run in runs),
        )

    def _over_runs(self, times_ms: list[float]) -> float:
        return upper_end(times_ms) if self.surely else mean(times_ms)


def closed_form(prepared: EngineModel) -> ClosedForm:
    """The closed form of the first engine, with the mean lengths of the first replication."""
    tokens = prepared.tokens(0)
    lengths = (float(counts.mean()) for counts in (tokens.prompts, tokens.outputs, tokens.cached))
    return ClosedForm(prepared.servers[0], MeanLengths(*lengths))
