"""LLMs of a plan request, and the engines that a plan gives them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from torchsplit_core.values.fields import (
    Added,
    Amount,
    Count,
    Divisor,
    Efficiency,
    FileField,
    Length,
    Name,
    NonNegative,
    PercentileRank,
    Text,
)
from torchsplit_core.values.hardware import WHOLE_GPU
from torchsplit_core.values.llm.decoder import DecoderSizes
from torchsplit_core.values.profile import Basis
from torchsplit_core.values.simulation.engine import StepLine, TokenCounts
from torchsplit_core.values.simulation.request import Arrivals

GROUP_SIZES = (1, 2, 4, 8)
"""GPUs of one node that an engine may take."""


@dataclass(frozen=True, slots=True)
class LlmPoint:
    """What an engine on a slice, or on `tensor_parallel` GPUs without MIG (`profile` WHOLE_GPU), was measured to give.

    `ttft_ms` and `tpot_ms`: the limited percentile at `throughput_rps`; None: not measured. `engine`: its settings and
    the step line fitted to its steps; None: those of the LLM, and steps not known.
    """

    gpu_type: Name
    profile: Annotated[Name, FileField(null=WHOLE_GPU)]
    throughput_rps: Annotated[Amount, FileField(after="tensor_parallel")]
    tensor_parallel: Count = 1
    ttft_ms: Annotated[NonNegative | None, FileField(after="throughput_rps")] = None
    tpot_ms: Annotated[NonNegative | None, FileField(after="ttft_ms")] = None
    basis: Basis = "measured"
    engine: Added[PlannedEngine | None] = None


@dataclass(frozen=True, slots=True)
class LlmEngineOptions:
    """Settings of vLLM under its names. `max_model_len` None: the model's, or what the KV cache holds."""

    max_num_seqs: Count = 128
    max_num_batched_tokens: Count = 2048
    gpu_memory_utilization: Efficiency = 0.9
    max_model_len: Added[Count | None] = None


@dataclass(frozen=True, slots=True)
class LlmModel:
    """What an LLM of a plan is, what its requests are like, and the limits that `percentile` of them keep.

    `config` None: only the `points` count, and stand for the simulation. Token counts as in a simulation request, None
    only without a config. `arrivals` None: Poisson at the model's demand. `tensor_parallel`: GPUs of an engine to
    choose among. `points` go before what is estimated from sizes.
    """

    config: DecoderSizes | None
    prompt_tokens: TokenCounts | None = None
    output_tokens: TokenCounts | None = None
    cached_prompt_tokens: TokenCounts | None = None
    max_ttft_ms: Divisor | None = None
    max_tpot_ms: Divisor | None = None
    percentile: PercentileRank = 95.0
    arrivals: Arrivals | None = None
    engine: LlmEngineOptions = field(default_factory=LlmEngineOptions)
    tensor_parallel: Annotated[tuple[Count, ...], Length(min_length=1)] = GROUP_SIZES
    points: tuple[LlmPoint, ...] = ()

    @property
    def has_limit(self) -> bool:
        """Whether a time to a token is limited."""
        return self.max_ttft_ms is not None or self.max_tpot_ms is not None


@dataclass(frozen=True, slots=True)
class PlannedEngine:
    """An engine of a plan, with all that its simulation takes.

    `group` names the GPUs of an engine on several; None for one on a slice or a single GPU. kv_blocks, max_model_len
    and `step` are None where only measured points are known.
    """

    tensor_parallel: Count
    group: Name | None
    kv_blocks: Count | None
    block_tokens: Count
    max_num_seqs: Count
    max_num_batched_tokens: Count
    max_model_len: Count | None
    reserve_full_prompt: bool
    step: tuple[StepLine, ...] | None


@dataclass(frozen=True, slots=True)
class LlmPoints:
    """What `profile-llm` measured of the decoder at `source` on numbers of cores of `host`: a point for each.

    The lengths are those of the requests that were sent; `percentile` of them kept the limits at each point's rate.
    """

    source: Text
    host: str
    prompt_tokens: TokenCounts
    output_tokens: TokenCounts
    points: Annotated[tuple[LlmPoint, ...], Length(min_length=1)]
    max_ttft_ms: Divisor | None = None
    max_tpot_ms: Divisor | None = None
    percentile: PercentileRank = 95.0


@dataclass(frozen=True, slots=True)
class TokenFigure:
    """Milliseconds that the limited percentile of a model's requests takes, and its 95 % interval.

    Of a simulation; of measured points alone: the largest of those in use, without interval and percentiles.
    """

    value: NonNegative
    low: NonNegative | None = None
    high: NonNegative | None = None
    p50: NonNegative | None = None
    p95: NonNegative | None = None
    p99: NonNegative | None = None
