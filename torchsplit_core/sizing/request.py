"""What a sizing is asked: an LLM, its requests and limits, the GPU types that are offered, the engine's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torchsplit_core.llm.memory import UTILIZATION
from torchsplit_core.values import InputFault
from torchsplit_core.values.limits import check_number, check_whole
from torchsplit_core.values.llm.decoder import DecoderSizes

DEFAULT_TYPES = (
    "A30-24GB", "A100-80GB", "H100-SXM5-80GB", "H200-141GB", "B200-180GB", "L4-24GB", "L40S-48GB",
    "RTX-PRO-6000-Blackwell-96GB",
)  # fmt: skip
"""GPU types of data centres whose peaks are sourced: MIG-capable ones, then those without MIG, then the one of both."""
GROUPS = (1, 2, 4, 8)
"""GPUs of one node that share every layer."""
REQUESTS = 1000
MOST_REQUESTS = 1_000_000
MOST_TOKENS = 10_000_000
MOST_SEQUENCES = 65_536


@dataclass(frozen=True, slots=True)
class OfferedGpu:
    """A GPU type that may be taken, its price an hour (None: not given); `sliced`: also MIG slices of it."""

    type: str
    cost_per_hour: float | None = None
    sliced: bool = True


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """Milliseconds to the first token, and for each further one, that `percentile` of the requests keep; None: any."""

    max_ttft_ms: float | None = None
    max_tpot_ms: float | None = None
    percentile: float = 95.0

    @property
    def given(self) -> bool:
        """Whether there is any limit."""
        return self.max_ttft_ms is not None or self.max_tpot_ms is not None


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of vLLM under its names. max_model_len None: what the model and the KV cache take."""

    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    gpu_memory_utilization: float = UTILIZATION
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class SizingRequest:
    """`rate_rps` requests/s, Poisson, of `prompt_tokens` tokens (the first `cached_tokens` of them in the KV cache
    already) and `output_tokens`, which keep the `limits`. `length_cv`: standard deviation over mean of both lengths,
    which are log-normal then; 0: all alike. `known_factors`: by GPU type and GPUs of an engine, measured times of a
    step over those from sizes. Each trial has `requests` requests with the draws of `seed`.
    """

    model: str
    sizes: DecoderSizes
    gpus: Sequence[OfferedGpu]
    rate_rps: float = 1.0
    prompt_tokens: int = 1024
    output_tokens: int = 256
    cached_tokens: int = 0
    length_cv: float = 0.0
    limits: TokenLimits = field(default_factory=TokenLimits)
    settings: EngineSettings = field(default_factory=EngineSettings)
    requests: int = REQUESTS
    seed: int = 0
    known_factors: Mapping[tuple[str, int], float] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Prompt and output tokens of a request."""
        return self.prompt_tokens + self.output_tokens

    @property
    def most_tokens(self) -> int | None:
        """Most tokens of a request by the model and the settings; None where neither says."""
        known = [most for most in (self.sizes.max_model_len, self.settings.max_model_len) if most is not None]
        return min(known, default=None)


def check_request(request: SizingRequest) -> None:
    """Raises InputFault for a number that makes no sense, naming the option."""
    settings, limits = request.settings, request.limits
    check_number("--rate", request.rate_rps, positive=True)
    check_whole("--prompt", request.prompt_tokens, least=1, most=MOST_TOKENS)
    check_whole("--output", request.output_tokens, least=1, most=MOST_TOKENS)
    check_whole("--cached", request.cached_tokens, most=request.prompt_tokens - 1)
    if request.length_cv and not 0.001 <= request.length_cv <= 100:
        problem = f"is {request.length_cv:g}, neither 0 nor between 0.001 and 100"
        raise InputFault("--length-cv", problem, "Give for example 0.5.")
    check_whole("--max-num-seqs", settings.max_num_seqs, least=1, most=MOST_SEQUENCES)
    check_whole("--max-num-batched-tokens", settings.max_num_batched_tokens, least=1, most=MOST_TOKENS)
    check_whole("--requests", request.requests, least=1, most=MOST_REQUESTS)
    check_whole("--seed", request.seed)
    if settings.max_model_len is not None:
        check_whole("--max-model-len", settings.max_model_len, least=1, most=MOST_TOKENS)
    for option, limit in (("--max-ttft", limits.max_ttft_ms), ("--max-tpot", limits.max_tpot_ms)):
        if limit is not None:
            check_number(option, limit, positive=True)
    if not 0 < limits.percentile < 100:
        problem = f"is {limits.percentile:g}, not between 0 and 100"
        raise InputFault("--percentile", problem, "Give for example 95.")
    if not 0 < settings.gpu_memory_utilization <= 1:
        problem = f"is {settings.gpu_memory_utilization:g}, not a share above 0 and up to 1"
        raise InputFault("--gpu-memory-utilization", problem, "Give for example 0.9.")
    _check_context(request)
    if not request.gpus:
        raise InputFault("--gpus", "names no GPU type", "Give at least one, for example L40S-48GB.")


def _check_context(request: SizingRequest) -> None:
    model, given = request.sizes.max_model_len, request.settings.max_model_len
    if model is not None and given is not None and given > model:
        problem = f"is {given}, more than the {model} tokens of {request.model}'s context"
        raise InputFault("--max-model-len", problem, f"Give {model} or less.")
    most = request.most_tokens
    if most is not None and request.tokens > most:
        source = "--max-model-len" if most == given else f"{request.model}'s context"
        raise InputFault(
            "--prompt and --output",
            f"{request.prompt_tokens} + {request.output_tokens} tokens are more than the {most} of {source}",
            "Shorten them, or name another model.",
        )
