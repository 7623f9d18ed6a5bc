"""How many tokens each request has: constants, lists, and drawn lengths that are cut to what an engine takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.values import (
    ConstantTokens,
    EngineServer,
    ListedTokens,
    LognormalTokens,
    SimulatedModel,
    TokenCounts,
)

Lengths = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RequestTokens:
    """Tokens of each request in order of arrival, and how many requests were cut to fit into an engine."""

    prompts: Lengths
    outputs: Lengths
    cached: Lengths
    cut: int = 0


def are_drawn(model: SimulatedModel) -> bool:
    """Whether another seed gives other lengths."""
    counts = (model.prompt_tokens, model.output_tokens, model.cached_prompt_tokens)
    return any(isinstance(tokens, LognormalTokens) for tokens in counts)


def longest_request(engines: Sequence[EngineServer]) -> int:
    """Most tokens of a request that every engine takes, whichever the router chooses."""
    return min(engine.longest_request for engine in engines)


def request_tokens(
    model: SimulatedModel, engines: Sequence[EngineServer], requests: int, seed: Sequence[int]
) -> RequestTokens:
    """The lengths of so many requests of a valid model.

    Drawn lengths are cut to what the engines take: a prompt so that it leaves room for its output (for one token
    where that is drawn too), an output to the rest.
    """
    assert model.prompt_tokens is not None
    assert model.output_tokens is not None
    prompts = _counts(model.prompt_tokens, requests, [*seed, 0])
    outputs = _counts(model.output_tokens, requests, [*seed, 1])
    cached = _counts(model.cached_prompt_tokens or ConstantTokens(0), requests, [*seed, 2])
    longest = longest_request(engines)
    cut_prompts, cut_outputs = prompts, outputs
    output_drawn = isinstance(model.output_tokens, LognormalTokens)
    if isinstance(model.prompt_tokens, LognormalTokens):
        cut_prompts = np.minimum(prompts, longest - (1 if output_drawn else outputs))
    if output_drawn:
        cut_outputs = np.minimum(outputs, longest - cut_prompts)
    cut = np.count_nonzero((cut_prompts < prompts) | (cut_outputs < outputs))
    return RequestTokens(cut_prompts, cut_outputs, cached, int(cut))


def _counts(tokens: TokenCounts, requests: int, seed: Sequence[int]) -> Lengths:
    if isinstance(tokens, ConstantTokens):
        return np.full(requests, tokens.value, dtype=np.int64)
    if isinstance(tokens, ListedTokens):
        return np.resize(np.array(tokens.values, dtype=np.int64), requests)
    # σ² = ln(1 + cv²), μ = ln(mean) - σ² / 2.
    variance = math.log1p(tokens.cv**2)
    normal = np.random.default_rng(seed).standard_normal(requests)
    lengths = np.exp(math.log(tokens.mean) - variance / 2 + math.sqrt(variance) * normal)
    return np.ceil(lengths).clip(1, 2**53).astype(np.int64)
