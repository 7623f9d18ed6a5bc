"""How long a step of an engine takes, from a decoder's sizes and a GPU's peaks.

A step reads its weights once, and the keys and values of every context; it multiplies each token by the weights. The
first two limit steps that decode, the third one those with prompts, so a step takes the larger of two lines in
prompt tokens P, sequences S, context tokens K and pairs of attention A (see StepLine):

- memory: o + W / b + (k / b_k) K + c (P + S) + s S + a A,
- compute: o + f W / b + (k / b_k) K + (c + m) (P + S) + s S + a A,

o what kernels, host and the start of 2 all-reduces a layer take, W bytes of the weights read, b the bandwidth, k bytes
of a token's keys and values, c a token's part of the all-reduces, m its products, s of a sequence the logits, a of a
pair two products of attention, f what products of few tokens take longer. W has the experts that a step's tokens
choose: the number of different ones grows less and less with the tokens, and a line can only take its slope at the
`sequences` expected; the experts that only prompts choose count by their tokens, for chunks of `chunk_tokens`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torchsplit_core.llm.constants import EngineConstants
from torchsplit_core.llm.device import EngineDevice, check_parallel
from torchsplit_core.llm.memory import kv_bytes
from torchsplit_core.values import StepLine
from torchsplit_core.values.llm.decoder import BYTES_OF_TYPE, DecoderSizes, WeightType

Z90 = 1.6448536269514722
"""Standard deviations to either side of a normal distribution that hold 90 %."""
_DIGITS = 6
"""Significant digits of a coefficient: far beyond what is known of it, and quick to sum exactly."""


@dataclass(frozen=True, slots=True)
class EngineStepEstimate:
    """The lines of a step, and those of its 90 % interval."""

    step: tuple[StepLine, ...]
    low: tuple[StepLine, ...]
    high: tuple[StepLine, ...]


def step_estimate(
    sizes: DecoderSizes,
    device: EngineDevice,
    *,
    sequences: float = 16.0,
    chunk_tokens: float = 512.0,
    expert_gpus: int | None = None,
    factor: float = 1.0,
    spread: float | None = None,
    constants: EngineConstants | None = None,
) -> EngineStepEstimate:
    """`step_lines`, multiplied by `factor` (of rows that are known), with the interval of a log-normal error of
    standard deviation `spread` (default: what engines without a known row showed).
    """
    lines = step_lines(
        sizes,
        device,
        sequences=sequences,
        chunk_tokens=chunk_tokens,
        expert_gpus=expert_gpus,
        constants=constants,
    )
    sigma = Z90 * ((constants or EngineConstants()).spread if spread is None else spread)
    low, middle, high = (scaled(lines, factor * math.exp(shift)) for shift in (-sigma, 0.0, sigma))
    return EngineStepEstimate(middle, low, high)


def step_lines(
    sizes: DecoderSizes,
    device: EngineDevice,
    *,
    sequences: float = 16.0,
    chunk_tokens: float = 512.0,
    expert_gpus: int | None = None,
    constants: EngineConstants | None = None,
) -> tuple[StepLine, ...]:
    """The two lines of a step in ms. `sequences` that decode in a step and `chunk_tokens` of a prompt in one are
    those expected; they matter to decoders with experts alone. `expert_gpus`: GPUs over which experts are spread
    (default: the device's), which then work for all their engines' tokens.

    Raises InputFault where the GPUs can not share the heads, or have no such precision.
    """
    check_parallel(sizes, device.tensor_parallel)
    known = constants or EngineConstants()
    group = expert_gpus or device.tensor_parallel
    engines = group / device.tensor_parallel
    bandwidth = device.memory_gb_per_s * 1e6 * known.weight_bandwidth
    tokens = max(sequences, 1.0) * engines
    expert_ms = _expert_bytes(sizes) / group / bandwidth
    chosen, slope = chosen_experts(sizes, tokens, known)
    begun, _ = chosen_experts(sizes, tokens + chunk_tokens * engines, known)
    weights = _shared_bytes(sizes) / device.tensor_parallel / bandwidth
    overhead = (
        known.step_ms + sizes.layers * known.layer_ms + sizes.layers_with_experts * known.expert_layer_ms
    )
    start, each = _all_reduce_ms(sizes, device, engines, known)
    head = sizes.vocabulary_parameters * _plain_bytes(sizes) / device.tensor_parallel / bandwidth
    base = overhead + start + head
    context = (
        kv_bytes(sizes, device.tensor_parallel)
        * _attended(sizes)
        / (device.memory_gb_per_s * 1e6 * known.kv_bandwidth)
    )
    plain = device.compute(_plain_type(sizes)) * 1e9
    attention = 4.0 * sizes.layers * sizes.heads * sizes.head_dim * _attended(sizes) / device.tensor_parallel
    attention /= plain * known.attention_compute
    product = product_ms(sizes, device, known, group)
    logits = 2.0 * sizes.vocabulary_parameters / device.tensor_parallel / (plain * known.matrix_compute)
    of_sequence = known.sequence_ms + logits
    read = weights + expert_ms * (chosen - slope * tokens)
    memory = StepLine(
        base + read,
        each + expert_ms * max(begun - chosen, 0.0) / max(chunk_tokens, 1.0),
        each + of_sequence + expert_ms * slope * engines,
        context,
        attention,
    )
    compute = StepLine(
        base + known.few_tokens * (weights + expert_ms * begun), each + product, each + product + of_sequence, context,
        attention,
    )  # fmt: skip
    return scaled((memory, compute), 1.0)


def scaled(lines: Sequence[StepLine], factor: float) -> tuple[StepLine, ...]:
    """The lines with every coefficient multiplied."""
    return tuple(
        StepLine(
            _rounded(line.base_ms * factor),
            _rounded(line.prompt_token_ms * factor),
            _rounded(line.sequence_ms * factor),
            _rounded(line.context_token_ms * factor),
            _rounded(line.attention_ms * factor),
        )
        for line in lines
    )


def chosen_experts(sizes: DecoderSizes, tokens: float, constants: EngineConstants) -> tuple[float, float]:
    """How many different experts of a layer `tokens` choose on average, and by how many one token more raises that.

    Experts are chosen unevenly: the rate of each is gamma distributed with the coefficient of variation v, so one is
    left out by n tokens that choose k of E each with probability (1 + v² n k / E)^(-1/v²).
    """
    if sizes.layers_with_experts == 0:
        return 0.0, 0.0
    v2 = constants.uneven_experts**2
    rate = sizes.experts_per_token / sizes.experts
    missed = (1 + v2 * tokens * rate) ** (-1 / v2)
    slope = sizes.experts * rate * missed / (1 + v2 * tokens * rate)
    return sizes.experts * (1 - missed), slope


def product_ms(sizes: DecoderSizes, device: EngineDevice, constants: EngineConstants, group: int) -> float:
    """Milliseconds of one token's products with the weights, at the speed of many tokens."""
    experts = sizes.layers_with_experts
    attention = sizes.layers * sizes.attention_parameters
    dense = (sizes.layers - experts) * sizes.dense_parameters + experts * sizes.shared_parameters
    routed = experts * sizes.experts_per_token * sizes.expert_parameters
    kind = sizes.dtype
    quick = device.compute(kind) * 1e9
    slow = device.compute(sizes.attention_dtype or kind) * 1e9
    parts = device.tensor_parallel
    return 2.0 * (
        attention / slow / constants.matrix_compute / parts
        + dense / quick / constants.matrix_compute / parts
        + routed / quick / constants.expert_compute / parts
    )


def _all_reduce_ms(
    sizes: DecoderSizes, device: EngineDevice, engines: float, constants: EngineConstants
) -> tuple[float, float]:
    """What two all-reduces a layer take however few tokens there are, and for each token: 2 (n - 1) / n of its hidden
    values go over the link of each GPU.
    """
    gpus = device.tensor_parallel * engines
    if gpus == 1:
        return 0.0, 0.0
    link = device.link_gb_per_s
    start = constants.nvlink_reduce_ms if device.nvlink else constants.pcie_reduce_ms
    share = constants.nvlink_share if device.nvlink else constants.pcie_share
    moved = 2 * sizes.hidden_size * 2.0 * (gpus - 1) / gpus
    each = 0.0 if link is None else moved / (link * 1e6 * share)
    return 2 * sizes.layers * start, 2 * sizes.layers * each


def _attended(sizes: DecoderSizes) -> float:
    """Share of the context that layers attend to at the longest context; less of it is attended to in full."""
    if (
        sizes.sliding_window is None
        or sizes.max_model_len is None
        or sizes.max_model_len <= sizes.sliding_window
    ):
        return 1.0
    share = (sizes.layers if sizes.windowed_layers is None else sizes.windowed_layers) / sizes.layers
    return 1 - share + share * sizes.sliding_window / sizes.max_model_len


def _shared_bytes(sizes: DecoderSizes) -> float:
    """Bytes of the products that every step reads, the head left out."""
    experts = sizes.layers_with_experts
    attention = (
        sizes.layers * sizes.attention_parameters * BYTES_OF_TYPE[sizes.attention_dtype or sizes.dtype]
    )
    dense = (sizes.layers - experts) * sizes.dense_parameters + experts * sizes.shared_parameters
    return attention + dense * BYTES_OF_TYPE[sizes.dtype]


def _expert_bytes(sizes: DecoderSizes) -> float:
    """Bytes of one expert of every layer that has some."""
    return sizes.layers_with_experts * sizes.expert_parameters * BYTES_OF_TYPE[sizes.dtype]


def _plain_type(sizes: DecoderSizes) -> WeightType:
    """The type in which attention and head are multiplied."""
    return sizes.dtype if sizes.dtype in ("fp32", "bf16", "fp16") else "bf16"


def _plain_bytes(sizes: DecoderSizes) -> float:
    return BYTES_OF_TYPE[_plain_type(sizes)]


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
