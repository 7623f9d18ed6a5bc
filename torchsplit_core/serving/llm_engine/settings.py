"""What may be chosen of an engine that serves an LLM on this host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchsplit_core.values import InputFault
from torchsplit_core.values.errors import quoted
from torchsplit_core.values.limits import check_name, check_whole

LEAST_BLOCK_TOKENS = 4
"""transformers' continuous batching has no smaller pages."""
MOST_CACHE_TOKENS = 1 << 26


@dataclass(frozen=True, slots=True)
class LlmEngineSettings:
    """An engine of the decoder at `source`: a folder with config.json (weights as safetensors and tokenizer.json where
    it has them), or a config.json, whose weights are drawn by `seed`.

    `max_num_seqs`, `max_num_batched_tokens`: most sequences and tokens of a step. The KV cache has `kv_blocks` blocks
    of `block_tokens` tokens. `max_model_len`: longest prompt and output together, None: as the model and the cache
    allow. `threads`: of torch. `cores`: that the process is pinned to, empty: those it has. `port` 0 is any that is
    free.
    """

    source: str
    name: str
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    kv_blocks: int = 1024
    block_tokens: int = 16
    max_model_len: int | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: int = 1
    cores: tuple[int, ...] = ()
    seed: int = 0
    host: str = "127.0.0.1"
    port: int = 0

    @property
    def cache_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.kv_blocks * self.block_tokens


def check_engine_settings(settings: LlmEngineSettings) -> None:
    """Raises InputFault for settings of no engine."""
    check_name("name", settings.name)
    check_whole("max_num_seqs", settings.max_num_seqs, least=1, most=65_536)
    check_whole("max_num_batched_tokens", settings.max_num_batched_tokens, least=1, most=1 << 20)
    check_whole("block_tokens", settings.block_tokens, least=LEAST_BLOCK_TOKENS, most=4096)
    check_whole("kv_blocks", settings.kv_blocks, least=2)
    check_whole("threads", settings.threads, least=1, most=1024)
    check_whole("seed", settings.seed)
    if settings.max_model_len is not None:
        check_whole("max_model_len", settings.max_model_len, least=2)
    if settings.cache_tokens > MOST_CACHE_TOKENS:
        problem = f"is {settings.kv_blocks}, a cache of {settings.cache_tokens:,} tokens"
        raise InputFault("kv_blocks", problem, f"Give a cache of {MOST_CACHE_TOKENS:,} tokens at most.")
    if settings.dtype not in ("float32", "bfloat16"):
        raise InputFault("dtype", f"is {quoted(settings.dtype)}", "Write float32 or bfloat16.")
