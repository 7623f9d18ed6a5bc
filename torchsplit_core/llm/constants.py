"""Constants of an engine that batches continuously (vLLM 0.15 to 0.19), with the source of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineConstants:
    """Efficiencies are shares of a datasheet's peak; times are of one step.

    "Kernels" are those of microsoft/vidur data/profiling (MIT): matrix products of Llama-2-7B to 70B on A40, A100 and
    H100 in tensor-parallel parts, and all-reduces over NVLink. "Rows" are those of benchmarks/llm_serving_estimates.py,
    whose errors chose a constant within what kernels show, by hand and in round figures; what neither showed is
    said to be chosen.
    """

    weight_bandwidth: float = 0.89
    """Kernels: 0.81 to 0.92 of the peak, beside a constant time of each product; rows 0.85 to 0.92."""
    kv_bandwidth: float = 0.89
    """As weights; rows of Llama-2-7B, whose keys are as much as its weights, agree."""
    matrix_compute: float = 0.67
    """Kernels: 0.72 of the peak for 1,000 tokens and more; rows, at the clocks of engines under load, 0.6 to 0.75."""
    attention_compute: float = 0.3
    """Chosen: prompts of the rows are short, and attention is a tenth of their products at most."""
    expert_compute: float = 0.45
    """Chosen: products of experts are filled up to whole tiles."""
    few_tokens: float = 0.2
    """Of the time in which weights are read, what a step that computes takes longer: products of 100 to 500 tokens
    reach neither peak. Kernels: 0.2 to 0.4."""
    step_ms: float = 0.3
    """Chosen: drawing tokens, and what of the host's work is not hidden behind the GPU's."""
    layer_ms: float = 0.045
    """Kernels: four products begin in 20 microseconds, norms, rotations, activation and attention take 25 more."""
    expert_layer_ms: float = 0.085
    """Rows of Llama 4 Scout: router, sorting of tokens, two further products of experts, their scales."""
    sequence_ms: float = 0.01
    """Chosen: a row of logits is read and written a few times."""
    nvlink_reduce_ms: float = 0.015
    """An all-reduce of few tokens over NVLink; kernels of NCCL: 0.007 to 0.04."""
    pcie_reduce_ms: float = 0.08
    """The same over PCIe: rows of Qwen3-32B on two cards, with pcie_share."""
    nvlink_share: float = 0.75
    """Kernels: 0.6 to 0.9 of a link's bandwidth in one direction, as the groups grow."""
    pcie_share: float = 0.31
    uneven_experts: float = 0.9
    """Coefficient of variation of how often experts are chosen; rows of Llama 4 Scout."""
    front_ms: float = 4.0
    """From the client's request to the engine and from its first token back: HTTP, tokenizer. Rows."""
    steps_ahead: float = 1.0
    """Asynchronous scheduling: a step is composed while the one before it runs, so a request waits for one more."""
    visible_memory: float = 0.99
    """Of a GPU's nominal memory, what CUDA reports: 79.2 GiB of an H100's 80."""
    engine_gib: float = 0.3
    """What a process holds beside weights, activations and keys: CUDA context, kernels. As logit_bytes from the KV
    blocks that four engines reported."""
    group_gib: float = 0.5
    """Chosen: buffers of all-reduces, where several GPUs share layers."""
    image_gib: float = 4.5
    """What the profiling step of a decoder with an image encoder holds for images; from one engine (Llama 4 Scout)."""
    logit_bytes: float = 22.0
    """Bytes of an entry of the logits while tokens are drawn: values, sorted ones, indices, sums."""
    cached_questions: float = 0.6
    """Share of the chats' questions that the cache holds already. Rows; see serving_estimates/trace.py."""
    text_pieces: float = 0.78
    """Pieces of text that a client receives for each token of a SentencePiece vocabulary, from three rows of
    Llama-2-7b-hf (0.77 to 0.79): a token that is a part of a character gives none. Other decoders: 1."""
    spread: float = 0.1
    """Standard deviation of the logarithm of an engine's step times about those from sizes."""
    calibrated_spread: float = 0.05
    """The same beside a row of its kind that is known."""
    first_token_spread: float = 0.15
    """Of the logarithm of the time to the first token, beside that of the steps."""
