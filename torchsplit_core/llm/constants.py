"""Constants of an engine that batches continuously (vLLM 0.15 to 0.19), with the source of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineConstants:
    """Efficiencies are shares of a datasheet's peak; times are of one step.

    From kernels: microsoft/vidur data/profiling (MIT), matrix products of Llama-2-7B to 70B on A40, A100 and H100 in
    tensor-parallel parts, and all-reduces over NVLink. From engines: fitted by benchmarks/llm_serving_estimates.py.
    """

    weight_bandwidth: float = 0.89
    """Kernels: 0.81 to 0.92 of the peak, beside a constant time of each product."""
    kv_bandwidth: float = 0.89
    matrix_compute: float = 0.67
    """Kernels: 0.72 of the peak for 1,000 tokens and more; engines under load, at lower clocks, 0.6 to 0.7."""
    attention_compute: float = 0.3
    expert_compute: float = 0.45
    """Products of experts are filled up to whole tiles."""
    few_tokens: float = 0.2
    """Of the time in which weights are read, what a step that computes takes longer: products of 100 to 500 tokens
    reach neither peak."""
    step_ms: float = 0.3
    """Sampling, and what of the host's work is not hidden behind the GPU's."""
    layer_ms: float = 0.045
    """Kernels: four products begin in 20 microseconds, norms, rotations, activation and attention take 25 more."""
    expert_layer_ms: float = 0.085
    """Router, sorting of tokens, and two further products of experts."""
    sequence_ms: float = 0.01
    nvlink_reduce_ms: float = 0.015
    """An all-reduce of few tokens over NVLink."""
    pcie_reduce_ms: float = 0.08
    nvlink_share: float = 0.75
    pcie_share: float = 0.31
    """Of a link's bandwidth in one direction, what all-reduces reach."""
    uneven_experts: float = 0.9
    """Coefficient of variation of how often experts are chosen."""
    front_ms: float = 4.0
    """From the client's request to the engine and from its first token back: HTTP, tokenizer."""
    steps_ahead: float = 1.0
    """Asynchronous scheduling: a step is composed while the one before it runs, so a request waits for one more."""
    visible_memory: float = 0.99
    """Of a GPU's nominal memory, what CUDA reports: 79.2 GiB of an H100's 80."""
    engine_gib: float = 0.3
    """What a process holds beside weights, activations and keys: CUDA context, kernels."""
    group_gib: float = 0.5
    """Buffers of all-reduces, where several GPUs share layers."""
    image_gib: float = 4.5
    """What the profiling step of a decoder with an image encoder holds for images; from one engine (Llama 4 Scout)."""
    logit_bytes: float = 22.0
    """Bytes of an entry of the logits while tokens are drawn: values, sorted ones, indices, sums."""
    spread: float = 0.08
    """Standard deviation of the logarithm of an engine's step times about those from sizes."""
