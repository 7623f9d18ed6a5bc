"""What an engine of an LLM gives on a slice, a GPU or a group of GPUs: estimated from sizes, simulated, remembered.

The rate is the largest at which the upper end of the 95 % interval over replications of its simulation keeps both
limits. A plan's engines are checked by the same rule with the same draws (`check`), so an engine alone passes at its
rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from torchsplit_core.engine_plans import remembered
from torchsplit_core.llm.device import engine_device
from torchsplit_core.llm.memory import BLOCK_TOKENS, engine_memory
from torchsplit_core.llm.step_times import scaled
from torchsplit_core.simulation.continuous.largest_rate import LargestRate, largest_rate
from torchsplit_core.simulation.continuous.steady_state import ClosedForm, MeanLengths
from torchsplit_core.sizing.engine_row import (
    MOST_SEQUENCES,
    REQUESTS_A_SEQUENCE,
    WARMUP_SHARE,
    EngineEstimate,
    estimate_engine,
    rate_interval,
)
from torchsplit_core.values import (
    CPU,
    WHOLE_GPU,
    ConstantTokens,
    EnginePoint,
    EngineServer,
    InputFault,
    ListedTokens,
    LlmEngineOptions,
    LlmModel,
    PlannedEngine,
    PoissonArrivals,
    SimulatedModel,
    SimulationRequest,
    TokenCounts,
    point_type,
)
from torchsplit_core.values.llm.decoder import DecoderSizes
from torchsplit_core.values.simulation.engine import mean_tokens
from torchsplit_core.values.simulation.request import Arrivals

REPLICATIONS, LEAST_REQUESTS = 5, 1000
"""Replications of a simulation, and least requests of each for one engine: with fewer an engine that waits for blocks
seems to carry rates at which its queue grows in a longer run."""
MOST_REMEMBERED = 4096
ROUNDS, CLOSE = 8, 1.02
"""Most searches for the steps with which an engine gives a measured rate, and how far above it they may end."""


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """Where an engine stands: `profile` of a slice, or WHOLE_GPU and so many GPUs without MIG."""

    gpu_type: str
    profile: str
    tensor_parallel: int = 1

    @property
    def words(self) -> str:
        if self.tensor_parallel > 1:
            return f"{self.tensor_parallel} × {self.gpu_type}"
        if point_type(self.gpu_type) == CPU:
            return f"{self.gpu_type} {self.profile}".rstrip()
        return f"{self.gpu_type} {self.profile}" if self.profile else f"a whole {self.gpu_type}"


@dataclass(frozen=True, slots=True)
class EngineRequests:
    """The requests that an engine gets, the limits that `percentile` of them keep, and the seed of their draws.

    `arrivals` give the shape alone: rates are found by scaling them.
    """

    prompt_tokens: TokenCounts
    output_tokens: TokenCounts
    cached_prompt_tokens: TokenCounts | None
    max_ttft_ms: float | None
    max_tpot_ms: float | None
    percentile: float
    arrivals: Arrivals
    seed: int

    @property
    def limits(self) -> tuple[float | None, float | None]:
        return self.max_ttft_ms, self.max_tpot_ms

    def simulation(self, name: str, engines: tuple[EngineServer, ...], requests: int) -> SimulationRequest:
        """The model on these engines at its arrivals."""
        model = SimulatedModel(
            name, ("whole",), self.arrivals,
            prompt_tokens=self.prompt_tokens, output_tokens=self.output_tokens,
            cached_prompt_tokens=self.cached_prompt_tokens,
            max_ttft_ms=self.max_ttft_ms, max_tpot_ms=self.max_tpot_ms,
        )  # fmt: skip
        return SimulationRequest(
            (model,), engines, requests_per_model=requests, warmup_share=WARMUP_SHARE,
            replications=REPLICATIONS, seed=self.seed,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class NoEngine:
    """Why no engine of an LLM is on a place. `alone_ms`: TTFT and TPOT of a request alone, where a limit is too low."""

    place: EnginePlace
    reason: str
    alone_ms: tuple[float, float | None] | None = None


def engine_requests(llm: LlmModel, seed: int) -> EngineRequests:
    """The requests of an LLM with a config."""
    assert llm.prompt_tokens is not None
    assert llm.output_tokens is not None
    return EngineRequests(
        llm.prompt_tokens, llm.output_tokens, llm.cached_prompt_tokens, llm.max_ttft_ms, llm.max_tpot_ms,
        llm.percentile, llm.arrivals or PoissonArrivals(1.0), seed,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FittingEngine:
    """An engine that fits on its place: its estimate, and GiB of each of its GPUs."""

    estimate: EngineEstimate
    memory_gib: float


@lru_cache(maxsize=MOST_REMEMBERED)
def fitting_engine(
    sizes: DecoderSizes, options: LlmEngineOptions, requests: EngineRequests, place: EnginePlace
) -> FittingEngine | NoEngine:
    """The engine of these sizes on a place, or why it does not fit."""
    try:
        device = engine_device(
            place.gpu_type, profile=place.profile or None, tensor_parallel=place.tensor_parallel
        )
        memory = engine_memory(
            sizes, device,
            max_num_seqs=options.max_num_seqs, max_num_batched_tokens=options.max_num_batched_tokens,
            gpu_memory_utilization=options.gpu_memory_utilization,
        )  # fmt: skip
        if not memory.fits:
            return NoEngine(place, f"weights of {memory.weights_gib:.3g} GiB a GPU leave no room for keys")
        engine = EngineServer(
            place.words, "llm", "whole", options.max_num_seqs, options.max_num_batched_tokens,
            memory.kv_blocks, (), block_tokens=BLOCK_TOKENS,
            max_model_len=_longest(sizes, options, memory.kv_blocks),
        )  # fmt: skip
        needed = _longest_given(requests)
        if needed > engine.longest_request:
            return NoEngine(
                place, f"a request has {needed:,} tokens, and the engine takes {engine.longest_request:,}"
            )
        estimate = estimate_engine(engine, sizes, device, _mean_lengths(requests), requests.limits)
    except InputFault as fault:
        return NoEngine(place, fault.problem)
    return FittingEngine(estimate, memory.total_gib)


def closed_form_rate(
    sizes: DecoderSizes, options: LlmEngineOptions, requests: EngineRequests, place: EnginePlace
) -> float:
    """About the engine's largest rate within the limits, requests/s; 0 where it does not fit."""
    fitting = fitting_engine(sizes, options, requests, place)
    return fitting.estimate.rate_rps if isinstance(fitting, FittingEngine) else 0.0


@lru_cache(maxsize=MOST_REMEMBERED)
def estimated_point(
    sizes: DecoderSizes, options: LlmEngineOptions, requests: EngineRequests, place: EnginePlace
) -> EnginePoint | NoEngine:
    """The engine of these sizes on a place as a point, or why there is none."""
    name = remembered.name_of(sizes, options, requests, place)
    known: EnginePoint | NoEngine | None = remembered.load(name, (EnginePoint, NoEngine))
    if known is None:
        known = _simulated_point(sizes, options, requests, place)
        remembered.keep(name, known)
    return known


def _simulated_point(
    sizes: DecoderSizes, options: LlmEngineOptions, requests: EngineRequests, place: EnginePlace
) -> EnginePoint | NoEngine:
    fitting = fitting_engine(sizes, options, requests, place)
    if isinstance(fitting, NoEngine):
        return fitting
    estimate, engine = fitting.estimate, fitting.estimate.engine
    largest = engine_rate(engine, requests)
    if largest.low is None or not largest.low.rate_rps:
        alone = largest.alone
        return NoEngine(place, _limit_words(requests, largest), (alone.ttft_ms, alone.tpot_ms))
    low, high = rate_interval(engine, estimate.steps, _mean_lengths(requests), requests.limits, largest.low)
    rate, ttft = largest.low.rate_rps, largest.low.ttft_ms
    return EnginePoint(
        place.gpu_type, place.profile, options.max_num_seqs, rate, ttft if math.isfinite(ttft) else 0.0,
        memory_gib=fitting.memory_gib, basis="estimated", low_rps=low, high_rps=high,
        engine=planned_engine(engine, place.tensor_parallel),
        ttft_ms=ttft if math.isfinite(ttft) else None, tpot_ms=largest.low.tpot_ms, binds=largest.binds,
    )  # fmt: skip


def engine_rate(engine: EngineServer, requests: EngineRequests) -> LargestRate:
    """The largest rate of one engine."""
    simulation = requests.simulation("llm", (engine,), request_count(engine, requests))
    return largest_rate(simulation, requests.percentile, surely=True)


def request_count(engine: EngineServer, requests: EngineRequests) -> int:
    """Requests of a replication for an engine: more, where more sequences decode at once at its largest rate."""
    state = ClosedForm(engine, _mean_lengths(requests)).within(*requests.limits)
    sequences = 1.0 if state is None else min(state.sequences, MOST_SEQUENCES)
    return max(LEAST_REQUESTS, math.ceil(REQUESTS_A_SEQUENCE * sequences))


@lru_cache(maxsize=MOST_REMEMBERED)
def steps_of_rate(point: EnginePoint, requests: EngineRequests, rate_rps: float) -> PlannedEngine:
    """The engine of an estimated point with its steps scaled so that it gives a measured rate within the limits."""
    assert point.engine is not None
    factor, below, above = point.throughput_rps / rate_rps, 0.0, math.inf
    for _ in range(ROUNDS):
        engine = _scaled(point.engine, factor)
        low = engine_rate(engine_server("llm", engine), requests).low
        reached = 0.0 if low is None else low.rate_rps
        if rate_rps <= reached <= rate_rps * CLOSE:
            return engine
        # Steps of half the time give about twice the rate, but for limits that only small batches keep.
        if reached >= rate_rps:
            below = max(below, factor)
        else:
            above = min(above, factor)
        guess = factor * (reached or rate_rps / 2) / rate_rps / math.sqrt(CLOSE)
        is_between = below < guess < above
        factor = guess if is_between else (below + above) / 2 if math.isfinite(above) else 2 * factor
    return _scaled(point.engine, below or factor)


@lru_cache(maxsize=MOST_REMEMBERED)
def quick_enough(engine: PlannedEngine, requests: EngineRequests, rate_rps: float) -> PlannedEngine:
    """An engine whose steps were measured, which are scaled only where their simulation does not keep this rate."""
    low = engine_rate(engine_server("llm", engine), requests).low
    reached = 0.0 if low is None else low.rate_rps
    if reached >= rate_rps:
        return engine
    point = EnginePoint("", WHOLE_GPU, engine.max_num_seqs, reached or rate_rps / 2, 0.0, engine=engine)
    return steps_of_rate(point, requests, rate_rps)


def _scaled(engine: PlannedEngine, factor: float) -> PlannedEngine:
    return replace(engine, step=scaled(engine.step or (), factor))


def planned_engine(engine: EngineServer, tensor_parallel: int) -> PlannedEngine:
    """An engine as a plan writes it."""
    return PlannedEngine(
        tensor_parallel, None, engine.kv_blocks, engine.block_tokens, engine.max_num_seqs,
        engine.max_num_batched_tokens, engine.max_model_len, engine.reserve_full_prompt, engine.step,
    )  # fmt: skip


def engine_server(model: str, engine: PlannedEngine, id: str = "engine") -> EngineServer:
    """An engine of a plan as a simulation takes it; it has steps."""
    assert engine.step is not None
    assert engine.kv_blocks is not None
    return EngineServer(
        id, model, "whole", engine.max_num_seqs, engine.max_num_batched_tokens, engine.kv_blocks, engine.step,
        block_tokens=engine.block_tokens, reserve_full_prompt=engine.reserve_full_prompt,
        max_model_len=engine.max_model_len,
    )  # fmt: skip


def measured_only(llm: LlmModel, place: EnginePlace) -> PlannedEngine:
    """An engine of which no more is known than its measured point."""
    options = llm.engine
    return PlannedEngine(
        place.tensor_parallel, None, None, BLOCK_TOKENS, options.max_num_seqs, options.max_num_batched_tokens,
        options.max_model_len, True, None,
    )  # fmt: skip


def _longest(sizes: DecoderSizes, options: LlmEngineOptions, kv_blocks: int) -> int:
    known = [most for most in (sizes.max_model_len, options.max_model_len) if most is not None]
    return min([kv_blocks * BLOCK_TOKENS + 1, *known])


def _longest_given(requests: EngineRequests) -> int:
    """Tokens of the longest request that is not drawn, and so cannot be cut."""
    prompt, output = (_most(tokens) for tokens in (requests.prompt_tokens, requests.output_tokens))
    return prompt + output


def _most(tokens: TokenCounts) -> int:
    if isinstance(tokens, ConstantTokens):
        return tokens.value
    return max(tokens.values) if isinstance(tokens, ListedTokens) else 1


def _mean_lengths(requests: EngineRequests) -> MeanLengths:
    return MeanLengths(
        max(mean_tokens(requests.prompt_tokens), 1.0),
        max(mean_tokens(requests.output_tokens), 1.0),
        0.0 if requests.cached_prompt_tokens is None else mean_tokens(requests.cached_prompt_tokens),
    )


def _limit_words(requests: EngineRequests, largest: LargestRate) -> str:
    alone = largest.alone
    if requests.max_ttft_ms is not None and alone.ttft_ms > requests.max_ttft_ms:
        return f"a request alone has its first token after {alone.ttft_ms:.4g} ms"
    if (
        requests.max_tpot_ms is not None
        and alone.tpot_ms is not None
        and alone.tpot_ms > requests.max_tpot_ms
    ):
        return f"a request alone takes {alone.tpot_ms:.4g} ms a token"
    return "no rate keeps the limits"
