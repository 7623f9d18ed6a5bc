"""Engines that batch continuously: an LLM's requests take part in steps, and their lengths count in tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torchsplit_core.values.fields import Added, Count, Divisor, Name, NonEmpty, Range, Whole
from torchsplit_core.values.limits import LARGEST_MAGNITUDE

Spread = Annotated[float, Range(ge=1e-3, le=100)]
Coefficient = Annotated[float, Range(ge=0, le=LARGEST_MAGNITUDE)]
"""Milliseconds of one unit of work; no least value, since a pair of tokens takes next to nothing."""


@dataclass(frozen=True, slots=True)
class ConstantTokens:
    """Every request has `value` tokens."""

    value: Whole
    kind: Literal["constant"] = "constant"


@dataclass(frozen=True, slots=True)
class LognormalTokens:
    """Log-normal with this mean before rounding up; `cv` is the standard deviation over the mean. At least 1."""

    mean: Divisor
    cv: Spread
    kind: Literal["lognormal"] = "lognormal"


@dataclass(frozen=True, slots=True)
class ListedTokens:
    """Request i, from 0 in order of arrival, has `values[i]` tokens, modulo their number."""

    values: NonEmpty[tuple[Whole, ...]]
    kind: Literal["list"] = "list"


TokenCounts = ConstantTokens | LognormalTokens | ListedTokens


def mean_tokens(tokens: TokenCounts) -> float:
    """Tokens of a request on average; of a log-normal before it is rounded up."""
    if isinstance(tokens, LognormalTokens):
        return tokens.mean
    return (
        sum(tokens.values) / len(tokens.values) if isinstance(tokens, ListedTokens) else float(tokens.value)
    )


@dataclass(frozen=True, slots=True)
class StepLine:
    """Milliseconds of a step if this is what limits it; the step takes the largest of its lines.

    base_ms + prompt_token_ms · P + sequence_ms · S + context_token_ms · K + attention_ms · A, with P the prompt
    tokens processed, S the sequences that decode, K the sum of their processed tokens with this one, and A the sum
    over the prompt chunks of c · (h + (c + 1) / 2), c the chunk and h what was processed before it.
    """

    base_ms: Coefficient
    prompt_token_ms: Coefficient = 0.0
    sequence_ms: Coefficient = 0.0
    context_token_ms: Coefficient = 0.0
    attention_ms: Coefficient = 0.0


@dataclass(frozen=True, slots=True)
class EngineServer:
    """`count` equal engines of a model, each with a KV cache of `kv_blocks` blocks of `block_tokens` tokens.

    A step processes at most `max_num_batched_tokens` tokens of at most `max_num_seqs` sequences.
    `reserve_full_prompt`: a request is admitted only if all its tokens so far fit into free blocks, else if its
    first chunk does. `max_model_len`: most prompt and output tokens of a request together; None: what the cache holds.
    """

    id: Name
    model: Name
    stage: Name
    max_num_seqs: Count
    max_num_batched_tokens: Count
    kv_blocks: Count
    step: NonEmpty[tuple[StepLine, ...]]
    count: Count = 1
    block_tokens: Count = 16
    reserve_full_prompt: bool = True
    max_model_len: Added[Count | None] = None
    kind: Literal["continuous"] = "continuous"

    @property
    def cache_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.kv_blocks * self.block_tokens

    @property
    def longest_request(self) -> int:
        """Most prompt and output tokens of a request together. The last token of a request takes no block."""
        if self.max_model_len is None:
            return self.cache_tokens
        return min(self.max_model_len, self.cache_tokens + 1)
