"""The largest rate at which an engine keeps limits on TTFT and TPOT, by simulations of Poisson arrivals.

All trials of an engine have the same draws, those of `simulate` for one replication of the same seed, so a higher rate
only moves requests closer together. The search begins where the closed form (`steady_state`), scaled by the last
trial's times, meets the limits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.simulation.continuous.engines import run_engines
from torchsplit_core.simulation.continuous.steady_state import LEAST_SHARE, ClosedForm, MeanLengths
from torchsplit_core.simulation.output_statistics import percentile, without_warmup
from torchsplit_core.values import EngineServer

WITHIN = 1.01
"""Most ratio between the ends of the final interval."""
WARMUP_SHARE = 0.1
"""Of a simulation request that gives none."""
MOST_TRIALS = 40
MOST_STEP = 1.5
"""Ratio between a trial and the next, as long as none has exceeded a limit, or none has kept them."""
NEAR_CAPACITY = 0.7
"""From this share of the closed form's greatest rate on, the capacity is simulated: a trial may exceed it."""
APART_S = 1e5
"""Between requests that are alone: no response takes so long."""

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """Milliseconds to the first token, and for each further one, that `percentile` of the requests keep; None: any."""

    max_ttft_ms: float | None = None
    max_tpot_ms: float | None = None
    percentile: float = 95.0

    @property
    def given(self) -> bool:
        return self.max_ttft_ms is not None or self.max_tpot_ms is not None


@dataclass(frozen=True, slots=True)
class RequestDraws:
    """Requests of one replication: the times between them at 1 request/s, and their tokens."""

    between_s: NDArray[np.float64]
    prompt_tokens: Tokens
    output_tokens: Tokens
    cached_tokens: Tokens

    @property
    def lengths(self) -> MeanLengths:
        prompt, output, cached = (
            float(tokens.mean()) for tokens in (self.prompt_tokens, self.output_tokens, self.cached_tokens)
        )
        return MeanLengths(prompt, output, cached)

    def first(self, count: int) -> RequestDraws:
        """The first requests alone."""
        return RequestDraws(
            self.between_s[:count], self.prompt_tokens[:count], self.output_tokens[:count], self.cached_tokens[:count]
        )


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine at a rate, after the warm-up: percentiles in ms (tpot_ms None: no request has two tokens), the share of
    requests that keep both limits, and whether the blocks of the KV cache ran short.
    """

    rate_rps: float
    ttft_ms: float
    tpot_ms: float | None
    goodput: float
    short_of_blocks: bool


@dataclass(frozen=True, slots=True)
class LargestRate:
    """`low` keeps every limit, and at `high_rps` one fails, for the reason `binds`: TTFT, TPOT, KV (blocks run short) or
    rate (no more requests are completed in a second).

    low None: not even a request `alone` keeps them. high_rps None: no limit is given, and low's rate is the capacity.
    """

    low: LoadedEngine | None
    high_rps: float | None
    binds: str
    alone: LoadedEngine


def largest_rate(
    engine: EngineServer,
    draws: RequestDraws,
    limits: TokenLimits,
    *,
    within: float = WITHIN,
) -> LargestRate:
    """To `within`, the lower end. Every request fits into the engine."""
    trials = _Trials(engine, draws, limits)
    alone = trials.alone()
    if trials.excess(alone) > 1:
        return LargestRate(None, None, trials.binding(alone), alone)
    if not limits.given:
        full = trials.capacity()
        return LargestRate(full, None, "KV" if full.short_of_blocks else "rate", alone)
    low: LoadedEngine | None = None
    high: LoadedEngine | None = None
    rate = trials.met_like(alone)
    for number in range(MOST_TRIALS):
        trial = trials.at(rate)
        low, high = (trial, high) if trials.excess(trial) <= 1 else (low, trial)
        if low is not None and high is not None and high.rate_rps <= low.rate_rps * within:
            break
        rate = trials.next_rate(low, high, within, number)
    return LargestRate(low, high and high.rate_rps, trials.binding(high) if high else "rate", alone)


def loaded_engine(
    engine: EngineServer, draws: RequestDraws, limits: TokenLimits, rate_rps: float
) -> LoadedEngine:
    """The engine at this rate, above 0 and at most its capacity."""
    return _Trials(engine, draws, limits).at(rate_rps)


class _Trials:
    def __init__(self, engine: EngineServer, draws: RequestDraws, limits: TokenLimits) -> None:
        self.engine, self.draws, self.limits = engine, draws, limits
        self._times = np.cumsum(draws.between_s)
        self._capacity: LoadedEngine | None = None
        self._closed_form = ClosedForm(engine, draws.lengths)
        full = self._closed_form.within(None, None)
        assert full is not None
        self._full_rps = full.rate_rps

    def at(self, rate_rps: float) -> LoadedEngine:
        """The engine at this rate; with infinite times above its capacity, where they grow without end."""
        if rate_rps >= NEAR_CAPACITY * self._full_rps and rate_rps >= self.capacity().rate_rps:
            return LoadedEngine(rate_rps, math.inf, None, 0.0, self.capacity().short_of_blocks)
        return self._run(self.draws, self._times / rate_rps, rate_rps, WARMUP_SHARE)

    def alone(self) -> LoadedEngine:
        """Requests so far apart that none meets another; one is enough where all are alike."""
        draws = self.draws
        lengths = (draws.prompt_tokens, draws.output_tokens, draws.cached_tokens)
        if all(int(tokens.min()) == int(tokens.max()) for tokens in lengths):
            draws = draws.first(1)
        return self._run(draws, np.arange(len(draws.between_s)) * APART_S, 0.0, 0.0)

    def capacity(self) -> LoadedEngine:
        """All requests there at time 0: completed requests/s until the last token."""
        if self._capacity is None:
            count = len(self.draws.between_s)
            full = self._run(self.draws, np.zeros(count), 0.0, WARMUP_SHARE)
            self._capacity = replace(full, rate_rps=count / self._last_s)
        return self._capacity

    def excess(self, trial: LoadedEngine) -> float:
        """The largest ratio of a time to its limit: above 1 a limit is exceeded."""
        return max(self._ratios(trial))

    def binding(self, trial: LoadedEngine) -> str:
        """Why the trial exceeds a limit."""
        if math.isinf(trial.ttft_ms):
            return "KV" if trial.short_of_blocks else "rate"
        ttft, tpot = self._ratios(trial)
        if tpot > ttft:
            return "TPOT"
        return "KV" if trial.short_of_blocks else "TTFT"

    def next_rate(
        self, low: LoadedEngine | None, high: LoadedEngine | None, within: float, trials: int
    ) -> float:
        """Where the limits are met by the closed form through the only end, from which each trial may go twice as far,
        or by the power law through both; just inside an end, to close the interval, if they are met near it.
        """
        if low is None or high is None:
            known = low or high
            assert known is not None
            wanted = 0.0 if math.isinf(known.ttft_ms) else self.met_like(known)
            least = min(within ** (2**trials), MOST_STEP)
            if low is not None:
                return min(max(wanted, low.rate_rps * least), low.rate_rps * MOST_STEP)
            return max(min(wanted or math.inf, known.rate_rps / least), known.rate_rps / MOST_STEP)
        first, last = low.rate_rps, high.rate_rps
        below, above = math.log(self.excess(low)), self.excess(high)
        share = 0.5
        if not math.isinf(above) and math.log(above) > below:
            share = -below / (math.log(above) - below)
        wanted = first * (last / first) ** min(max(share, 0.1), 0.9)
        middle, step = math.sqrt(first * last), within**0.98
        if wanted < first * within:
            return min(first * step, middle)
        if wanted > last / within:
            return max(last / step, middle)
        return wanted

    def met_like(self, known: LoadedEngine) -> float:
        """Where the closed form meets the limits, scaled to give the known times at their rate."""
        scaled = self._closed_form.like(known.rate_rps, known.ttft_ms, known.tpot_ms)
        state = scaled.within(self.limits.max_ttft_ms, self.limits.max_tpot_ms)
        return LEAST_SHARE * self._full_rps if state is None else state.rate_rps

    def _ratios(self, trial: LoadedEngine) -> tuple[float, float]:
        limits = self.limits
        ttft = trial.ttft_ms / limits.max_ttft_ms if limits.max_ttft_ms is not None else 0.0
        tpot = (trial.tpot_ms or 0.0) / limits.max_tpot_ms if limits.max_tpot_ms is not None else 0.0
        if math.isinf(trial.ttft_ms):
            ttft = math.inf
        return ttft, tpot

    def _run(
        self, draws: RequestDraws, times_s: NDArray[np.float64], rate_rps: float, warmup_share: float
    ) -> LoadedEngine:
        run = run_engines(self.engine, times_s, draws.prompt_tokens, draws.output_tokens, draws.cached_tokens)
        self._last_s = float(run.last_token_s.max())
        ttft = without_warmup((run.first_token_s - times_s) * 1e3, warmup_share)
        several = without_warmup(draws.output_tokens, warmup_share) > 1
        further = np.maximum(without_warmup(draws.output_tokens, warmup_share) - 1, 1)
        tpot = without_warmup((run.last_token_s - run.first_token_s) * 1e3, warmup_share) / further
        limits = self.limits
        good = ttft <= (limits.max_ttft_ms or math.inf)
        good &= ~several | (tpot <= (limits.max_tpot_ms or math.inf))
        longest = int((draws.prompt_tokens + draws.output_tokens).max())
        return LoadedEngine(
            rate_rps=rate_rps,
            ttft_ms=percentile(ttft, limits.percentile),
            tpot_ms=percentile(tpot[several], limits.percentile) if several.any() else None,
            goodput=float(np.count_nonzero(good)) / len(good),
            short_of_blocks=run.preemptions > 0
            or run.kv_peak_blocks > self.engine.kv_blocks - longest // self.engine.block_tokens,
        )
