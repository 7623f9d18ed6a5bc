"""An engine as a row: whether the engine fits, its largest rate within the limits, how many reach the rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.llm.constants import EngineConstants
from torchsplit_core.llm.device import EngineDevice
from torchsplit_core.llm.memory import BLOCK_TOKENS, EngineMemory, engine_memory
from torchsplit_core.llm.step_times import EngineStepEstimate, step_estimate
from torchsplit_core.simulation.continuous.largest_rate import LoadedEngines, largest_rate, loaded_engines
from torchsplit_core.simulation.continuous.steady_state import ClosedForm, MeanLengths
from torchsplit_core.sizing.places import SizedPlace
from torchsplit_core.sizing.request import SizingRequest, TokenLimits
from torchsplit_core.values import (
    ConstantTokens,
    EngineServer,
    LognormalTokens,
    SimulatedModel,
    SimulationRequest,
    TraceArrivals,
)
from torchsplit_core.values.llm.decoder import DecoderSizes

SAME = 1e-9
"""Relative: rates that differ by less are equal."""
EXPERT_ROUNDS = 3
"""How often the sequences of a step and the experts that they choose are reckoned from each other."""
WARMUP_SHARE = 0.15
"""Of a trial's requests: those that fill the engine."""
MOST_SEQUENCES = 512
"""Beyond as many, more requests would take longer than they make the rate more exact."""
REQUESTS_A_SEQUENCE = 12
"""Least requests of a trial for each sequence that decodes, so that filling and emptying the engine count little."""


@dataclass(frozen=True, slots=True)
class SizingRow:
    """An engine on a slice (`profile`), a GPU or `tensor_parallel` of them.

    GiB and kv_blocks are of one GPU; max_context: most tokens of a request. rate_rps: of one engine within the limits,
    with its 90 % interval for the error of the step times. ttft_ms, tpot_ms (the percentile of the limits) and goodput
    are at that rate, without limits at the engine's share of the rate asked for. gpus: with as many engines on each as
    fit. `engine` is what was simulated, in trials of so many `requests`. None: not known, or there is none.
    """

    gpu_type: str
    profile: str | None
    tensor_parallel: int
    fits: bool
    weights_gib: float
    kv_gib: float | None
    kv_blocks: int
    max_context: int | None
    rate_rps: float | None = None
    low_rps: float | None = None
    high_rps: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    goodput: float | None = None
    engines: int | None = None
    gpus: int | None = None
    cost: float | None = None
    binds: str = ""
    basis: str = "estimated"
    note: str = ""
    engine: EngineServer | None = None
    requests: int | None = None

    @property
    def reaches(self) -> bool:
        """Whether so many of it that are counted reach the rate within the limits."""
        return self.gpus is not None


def excess(row: SizingRow, limits: TokenLimits) -> float:
    """The larger ratio of TTFT and TPOT to their limits; infinite where the times are not known."""
    if row.ttft_ms is None:
        return math.inf
    ttft = row.ttft_ms / limits.max_ttft_ms if limits.max_ttft_ms else 0.0
    return max(ttft, (row.tpot_ms or 0.0) / limits.max_tpot_ms if limits.max_tpot_ms else 0.0)


@dataclass(frozen=True, slots=True)
class PreparedEngine:
    """An engine that fits. Its row has the closed form's rate until `simulated_row` makes another."""

    place: SizedPlace
    row: SizingRow
    engine: EngineServer
    steps: EngineStepEstimate
    sequences: float


def prepare(request: SizingRequest, place: SizedPlace) -> PreparedEngine | SizingRow:
    """The engine on a place, or the row of one that does not fit and says why."""
    device, settings = place.device, request.settings
    memory = engine_memory(
        request.sizes,
        device,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        gpu_memory_utilization=settings.gpu_memory_utilization,
    )
    longest = memory.kv_blocks * BLOCK_TOKENS + 1
    is_known = (device.gpu_type, device.tensor_parallel) in request.known_factors
    row = SizingRow(
        device.gpu_type,
        device.profile,
        device.tensor_parallel,
        fits=True,
        weights_gib=memory.weights_gib,
        kv_gib=memory.kv_gib if memory.fits else None,
        kv_blocks=memory.kv_blocks,
        max_context=min(longest, request.most_tokens or longest) if memory.fits else None,
        basis="estimated, beside known rows" if is_known else "estimated",
    )
    if not memory.fits:
        return replace(row, fits=False, binds="memory", note=_describe_shortage(memory))
    if (needed := settings.max_model_len or request.tokens) > longest:
        whose = "--max-model-len" if settings.max_model_len else "a request"
        note = f"the KV cache holds {longest - 1:,} tokens, and {whose} has {needed:,}"
        return replace(row, fits=False, binds="KV", note=note)
    return _with_steps(request, place, row)


def simulated_row(request: SizingRequest, prepared: PreparedEngine) -> SizingRow:
    """The row with the rate and the times of its simulation."""
    limits = request.limits
    count = request_count(request, prepared.sequences)
    simulation = simulation_request(request, prepared.engine, 1.0, count)
    result = largest_rate(simulation, limits.percentile)
    loaded = result.low or result.alone
    low_rps, high_rps = _interval(request, prepared, loaded)
    row = replace(
        prepared.row, rate_rps=loaded.rate_rps, low_rps=low_rps, high_rps=high_rps, binds=result.binds,
        engine=prepared.engine, requests=count, engines=None, gpus=None, cost=None,
    )  # fmt: skip
    if result.low is None:
        row = replace(row, note="a request alone exceeds the limit; the times are those of requests alone")
    row = with_counts(request, prepared.place, row)
    if not limits.given:
        share = request.rate_rps / (row.engines or 1)
        loaded = loaded_engines(simulation, share, limits.percentile)
    goodput = loaded.goodput if limits.given else None
    if math.isinf(loaded.ttft_ms):
        return row
    return replace(row, ttft_ms=loaded.ttft_ms, tpot_ms=loaded.tpot_ms, goodput=goodput)


def simulation_request(
    request: SizingRequest, engine: EngineServer, rate_rps: float, requests: int
) -> SimulationRequest:
    """One engine at this rate with so many requests."""
    cv = request.length_cv

    def tokens(mean: int) -> ConstantTokens | LognormalTokens:
        return LognormalTokens(float(mean), cv) if cv else ConstantTokens(mean)

    model = SimulatedModel(
        request.model,
        ("whole",),
        TraceArrivals(tuple((stratified_arrivals_s(requests, request.seed) / rate_rps).tolist())),
        prompt_tokens=tokens(request.prompt_tokens),
        output_tokens=tokens(request.output_tokens),
        cached_prompt_tokens=ConstantTokens(request.cached_tokens) if request.cached_tokens else None,
        max_ttft_ms=request.limits.max_ttft_ms,
        max_tpot_ms=request.limits.max_tpot_ms,
    )
    return SimulationRequest(
        (model,),
        (engine,),
        requests_per_model=requests,
        warmup_share=WARMUP_SHARE,
        replications=1,
        seed=request.seed,
    )


def stratified_arrivals_s(requests: int, seed: int) -> NDArray[np.float64]:
    """Arrivals of a Poisson process of 1 request/s, from 0, of which so many came in so many seconds.

    The times between them are the quantiles of their distribution in random order (a Latin hypercube sample): drawn
    ones are together some per cent too long or too short, and a rate found with them would be as wrong.
    """
    if requests == 1:
        return np.zeros(1)
    shares = (np.arange(requests - 1) + 0.5) / (requests - 1)
    between = np.random.default_rng(seed).permutation(-np.log1p(-shares))
    return np.concatenate([np.zeros(1), np.cumsum(between / between.mean())])


def request_count(request: SizingRequest, sequences: float) -> int:
    """Requests of a trial in which so many sequences decode at once."""
    return max(request.requests, math.ceil(REQUESTS_A_SEQUENCE * min(sequences, MOST_SEQUENCES)))


def with_counts(request: SizingRequest, place: SizedPlace, row: SizingRow) -> SizingRow:
    """The row with how many engines and GPUs reach the rate asked for, and their cost an hour."""
    if not row.rate_rps:
        return row
    engines = max(math.ceil(request.rate_rps / row.rate_rps * (1 - SAME)), 1)
    gpus = math.ceil(engines / place.instances) * row.tensor_parallel
    price = place.gpu.cost_per_hour
    return replace(row, engines=engines, gpus=gpus, cost=None if price is None else price * gpus)


@dataclass(frozen=True, slots=True)
class EngineEstimate:
    """An engine with the interval of its steps, and in closed form its largest rate and the sequences of a step."""

    engine: EngineServer
    steps: EngineStepEstimate
    rate_rps: float
    sequences: float


def estimate_engine(
    engine: EngineServer,
    sizes: DecoderSizes,
    device: EngineDevice,
    lengths: MeanLengths,
    limits: tuple[float | None, float | None],
    *,
    factor: float = 1.0,
    spread: float | None = None,
) -> EngineEstimate:
    """The engine with the steps of its device in place of its own, for requests of these lengths and limits of TTFT
    and TPOT in ms.
    """
    sequences, rate = 1.0, 0.0
    for _ in range(EXPERT_ROUNDS if sizes.layers_with_experts else 1):
        chunk = min(lengths.processed, engine.max_num_batched_tokens)
        steps = step_estimate(
            sizes, device, sequences=sequences, chunk_tokens=chunk, factor=factor, spread=spread
        )
        engine = replace(engine, step=steps.step)
        state = ClosedForm(engine, lengths).within(*limits)
        sequences, rate = (1.0, 0.0) if state is None else (state.sequences, state.rate_rps)
    return EngineEstimate(engine, steps, rate, sequences)


def _with_steps(request: SizingRequest, place: SizedPlace, row: SizingRow) -> PreparedEngine:
    device, settings, limits = place.device, request.settings, request.limits
    factor, spread = _calibration(request, device)
    engine = EngineServer(
        id=" ".join(filter(None, (device.gpu_type, device.profile, f"x{device.tensor_parallel}"))),
        model=request.model,
        stage="whole",
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        kv_blocks=row.kv_blocks,
        step=(),
        block_tokens=BLOCK_TOKENS,
        max_model_len=request.most_tokens,
    )
    estimate = estimate_engine(
        engine, request.sizes, device, _mean_lengths(request), (limits.max_ttft_ms, limits.max_tpot_ms),
        factor=factor, spread=spread,
    )  # fmt: skip
    row = with_counts(request, place, replace(row, rate_rps=estimate.rate_rps))
    return PreparedEngine(place, row, estimate.engine, estimate.steps, estimate.sequences)


def _calibration(request: SizingRequest, device: EngineDevice) -> tuple[float, float | None]:
    """The factor of known rows on a device's steps, and the standard deviation that is left. A slice takes the factor
    of its GPU, and the deviation of engines without a known row.
    """
    factor = request.known_factors.get((device.gpu_type, device.tensor_parallel))
    if factor is None:
        return 1.0, None
    return factor, EngineConstants().calibrated_spread if device.profile is None else None


def _interval(request: SizingRequest, prepared: PreparedEngine, loaded: LoadedEngines) -> tuple[float, float]:
    limits = request.limits
    return rate_interval(
        prepared.engine,
        prepared.steps,
        _mean_lengths(request),
        (limits.max_ttft_ms, limits.max_tpot_ms),
        loaded,
    )


def rate_interval(
    engine: EngineServer,
    steps: EngineStepEstimate,
    lengths: MeanLengths,
    limits: tuple[float | None, float | None],
    loaded: LoadedEngines,
) -> tuple[float, float]:
    """The 90 % interval of an engine's simulated rate within limits of TTFT and TPOT in ms, for the error of its steps:
    the rate times the ratio of the closed forms, which are scaled to give the simulated times.
    """
    rate, middle = loaded.rate_rps, ClosedForm(engine, lengths)
    if limits != (None, None):
        middle = middle.like(rate, loaded.ttft_ms, loaded.tpot_ms)
    ends = []
    for step in (steps.step, steps.high, steps.low):
        form = replace(middle, engine=replace(engine, step=step))
        state = form.within(*limits)
        ends.append(0.0 if state is None else state.rate_rps)
    if not rate:
        return 0.0, ends[2]
    scale = rate / ends[0] if ends[0] else 1.0
    return min(ends[1] * scale, rate), max(ends[2] * scale, rate)


def _mean_lengths(request: SizingRequest) -> MeanLengths:
    return MeanLengths(request.prompt_tokens, request.output_tokens, request.cached_tokens)


def _describe_shortage(memory: EngineMemory) -> str:
    taken = memory.weights_gib + memory.activations_gib + memory.engine_gib
    return (
        f"weights {memory.weights_gib:.3g} GiB, activations {memory.activations_gib:.2g} and the engine's own "
        f"{memory.engine_gib:.2g}: {taken:.3g} of the {memory.total_gib:.3g} GiB that it may take"
    )
