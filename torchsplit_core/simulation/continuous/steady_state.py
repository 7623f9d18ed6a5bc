"""An engine under steady load, in closed form: where a search by simulation begins, and how figures scale.

With a requests a step, S = 1 + a · (output − 1) sequences decode as one of them sees it (the others by Little's law), a
step without a prompt takes T0 and one with prompts T1, and 1 − exp(−a k) of the steps have some, k the steps of one
prompt. So a step takes T on average, and the rate is a / T. Lengths count by their means.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from torchsplit_core.values import EngineServer

SPREAD = 1.35
"""Of √S: how many sequences more than the mean one request in twenty decodes beside. The number in an M/D/∞ system,
averaged over one service time, has two thirds of the Poisson variance; 1.645 · √(2/3)."""

LEAST_SHARE = 1e-6
"""Of the greatest rate: the least that a search tries."""
PRECISION = 1.002
"""Ratio of rates to which a search goes."""
MOST_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class MeanLengths:
    """Mean tokens of a request; `cached` of the prompt's are in the KV cache already."""

    prompt: float
    output: float
    cached: float = 0.0

    @property
    def processed(self) -> float:
        """Prompt tokens that are not cached: at least one is processed."""
        return max(self.prompt - self.cached, 1.0)


@dataclass(frozen=True, slots=True)
class SteadyState:
    """`rate_rps` requests/s with `sequences` decoding on average; times in ms, of one request in twenty longer ones."""

    rate_rps: float
    sequences: float
    ttft_ms: float
    tpot_ms: float


def steady_state(engine: EngineServer, lengths: MeanLengths, per_step: float) -> SteadyState:
    """The engine at `per_step` requests a step, above 0 and at most `most_per_step`."""
    sequences = 1.0 + per_step * (lengths.output - 1.0)
    plain, mixed, share, chunks = _steps(engine, lengths, per_step, sequences)
    step = plain + share * (mixed - plain)
    busy_sequences = sequences + SPREAD * math.sqrt(sequences - 1.0)
    busy_plain, busy_mixed, busy_share, _ = _steps(
        engine, lengths, per_step * busy_sequences / sequences, busy_sequences
    )
    in_use = 1.0 - math.exp(-per_step * (lengths.output - 1.0 + chunks))
    return SteadyState(
        rate_rps=1e3 * per_step / step,
        sequences=sequences,
        ttft_ms=chunks * busy_mixed + in_use * (busy_mixed if share > 0.1 else busy_plain),
        tpot_ms=busy_plain + busy_share * (busy_mixed - busy_plain),
    )


def most_per_step(engine: EngineServer, lengths: MeanLengths) -> float:
    """Requests a step with as many sequences as may run, as the KV cache holds, and as the budget of a step allows."""
    held = engine.cache_tokens / (lengths.prompt + lengths.output / 2.0 + engine.block_tokens / 2.0)
    by_sequences = max(min(engine.max_num_seqs, held), 1.0) / lengths.output
    by_budget = engine.max_num_batched_tokens / (lengths.processed + lengths.output - 1.0)
    return min(by_sequences, by_budget)


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """`steady_state` of an engine by its rate, with times multiplied by factors that a simulation gave."""

    engine: EngineServer
    lengths: MeanLengths
    ttft_factor: float = 1.0
    tpot_factor: float = 1.0

    def like(self, rate_rps: float, ttft_ms: float, tpot_ms: float | None) -> ClosedForm:
        """With the factors that give these times at this rate."""
        state = self.largest(lambda state: state.rate_rps <= rate_rps) or self._at(LEAST_SHARE)
        # Near the greatest rate requests wait for others to leave, which the closed form leaves out.
        ttft = min(ttft_ms / state.ttft_ms, MOST_FACTOR)
        return replace(
            self, ttft_factor=ttft, tpot_factor=1.0 if tpot_ms is None else tpot_ms / state.tpot_ms
        )

    def within(self, max_ttft_ms: float | None, max_tpot_ms: float | None) -> SteadyState | None:
        """At the largest rate that keeps these limits, those of None left out; None where no rate does."""

        def keeps(state: SteadyState) -> bool:
            first = max_ttft_ms is None or self.ttft_factor * state.ttft_ms <= max_ttft_ms
            further = max_tpot_ms is None or self.lengths.output <= 1.0
            return first and (further or self.tpot_factor * state.tpot_ms <= (max_tpot_ms or 0.0))

        return self.largest(keeps)

    def largest(self, keeps: Callable[[SteadyState], bool]) -> SteadyState | None:
        """The state of the largest rate of which `keeps` holds, as of all lower ones; None: not of the least."""
        low, high = LEAST_SHARE, 1.0
        if keeps(full := self._at(high)):
            return full
        if not keeps(self._at(low)):
            return None
        while high > low * PRECISION:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if keeps(self._at(middle)) else (low, middle)
        return self._at(low)

    def _at(self, share: float) -> SteadyState:
        return steady_state(self.engine, self.lengths, share * most_per_step(self.engine, self.lengths))


def _steps(
    engine: EngineServer, lengths: MeanLengths, per_step: float, sequences: float
) -> tuple[float, float, float, float]:
    """ms of a step without a prompt and with some, the share of the latter, and the steps of one prompt."""
    decoding = sequences if lengths.output > 1.0 else 0.0
    context = decoding * (lengths.prompt + lengths.output / 2.0)
    room = max(engine.max_num_batched_tokens - decoding, 1.0)
    chunks = max(math.ceil(lengths.processed / room), 1)
    share = 1.0 - math.exp(-per_step * chunks)
    tokens = lengths.processed * per_step / share if share > 0 else lengths.processed / chunks
    pairs = tokens * (lengths.cached + (lengths.processed + 1.0) / 2.0)
    plain = max(
        line.base_ms + line.sequence_ms * decoding + line.context_token_ms * context for line in engine.step
    )
    mixed = max(
        line.base_ms
        + line.prompt_token_ms * tokens
        + line.sequence_ms * decoding
        + line.context_token_ms * context
        + line.attention_ms * pairs
        for line in engine.step
    )
    return plain, mixed, share, float(chunks)
