"""The decoder of a config.json, with its weights or random ones, and its text as tokens. Loads torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from torchsplit_core.files import parse_json
from torchsplit_core.llm.config import LARGEST_CONFIG
from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings
from torchsplit_core.values import InputFault, system_reason
from torchsplit_core.values.errors import json_words, last_cause, quoted

BYTES = 256
TOKENIZER = "tokenizer.json"


class TextTokens(Protocol):
    """Text to tokens and back."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        ...

    def writer(self) -> TokenWriter:
        """What turns an answer's tokens into text, one after the other."""
        ...


class TokenWriter(Protocol):
    """The text of an answer as its tokens come."""

    def write(self, token: int) -> str:
        """The text that this token completes; may be empty."""
        ...


class ByteTokens:
    """A token is a byte of UTF-8; for a model without a tokenizer of its own, whose vocabulary has 256 or more."""

    def encode(self, text: str) -> list[int]:
        """The bytes of a text."""
        return list(text.encode())

    def writer(self) -> TokenWriter:
        """Tokens beyond the bytes are shown by their last one, control characters as dots."""
        return ByteWriter()


class ByteWriter:
    """Each token is a letter, so that every event of a stream has text."""

    def write(self, token: int) -> str:
        """A letter."""
        letter = chr(token % BYTES)
        return letter if letter.isprintable() else "."


class FileTokens:
    """The tokens of a tokenizer.json."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, with those that the tokenizer puts around it."""
        return list(self._tokenizer.encode(text).ids)

    def writer(self) -> TokenWriter:
        """Writes whole letters: a token may be a part of one."""
        return FileWriter(self._tokenizer)


class FileWriter:
    """The text of an answer by the tokenizer's own stream."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._stream = tokenizer, DecodeStream(skip_special_tokens=True)

    def write(self, token: int) -> str:
        """The letters that this token completes."""
        return self._stream.step(self._tokenizer, token) or ""


def load_decoder(settings: LlmEngineSettings) -> tuple[Any, TextTokens]:
    """The model, ready to run on this CPU, and its tokens. Nothing is downloaded. Raises InputFault."""
    source = Path(settings.source)
    config = _config(source)
    folder = source if source.is_dir() else source.parent
    dtype = getattr(torch, settings.dtype)
    has_weights = source.is_dir() and any(folder.glob("*.safetensors"))
    torch.manual_seed(settings.seed)
    try:
        if has_weights:
            model = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                attn_implementation="sdpa",
            )
        else:
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    except (ValueError, OSError, RuntimeError, KeyError, AttributeError, TypeError, ImportError) as error:
        raise _no_decoder(settings.source, f"makes no decoder: {last_cause(error)}") from error
    model = model.eval().requires_grad_(False)
    # Random weights know no end of a text.
    if not has_weights:
        model.generation_config.eos_token_id = None
    return model, _tokens(
        source if source.is_dir() else None, int(config.get_text_config().vocab_size), settings.source
    )


def _config(source: Path) -> PreTrainedConfig:
    path = source
    try:
        path = source / "config.json" if source.is_dir() else source
        with path.open("rb") as file:
            data = file.read(LARGEST_CONFIG + 1)
    except OSError as error:
        problem = f"cannot be read: {system_reason(error)}"
        raise InputFault(str(path), problem, "Name a config.json, or the folder of a model.") from error
    if len(data) > LARGEST_CONFIG:
        raise _no_decoder(str(path), f"has more than the {LARGEST_CONFIG} bytes of a config.json")
    try:
        content = parse_json(data.decode(), str(path), what="a config.json")
    except UnicodeDecodeError as error:
        raise _no_decoder(str(path), "is not text in UTF-8") from error
    if not isinstance(content, dict):
        raise _no_decoder(str(path), f"is no config.json of a decoder: it holds {json_words(content)}")
    if not isinstance(content.get("model_type"), str):
        kind = json_words(content["model_type"]) if "model_type" in content else "missing"
        raise _no_decoder(str(path), f"is no config.json of a decoder: its model_type is {kind}")
    try:
        return AutoConfig.for_model(**content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _no_decoder(str(path), f"is no config.json of a decoder: {last_cause(error)}") from error


def _no_decoder(where: str, problem: str) -> InputFault:
    line = " ".join(problem.split())
    return InputFault(where, line[:300], "Name the config.json of a decoder that transformers has.")


def _tokens(folder: Path | None, vocabulary: int, where: str) -> TextTokens:
    if folder is not None and (folder / TOKENIZER).is_file():
        try:
            return FileTokens(Tokenizer.from_file(str(folder / TOKENIZER)))
        except Exception as error:  # tokenizers raises Exception itself
            problem = f"{TOKENIZER} cannot be read: {error}"
            raise InputFault(where, problem, "Take it from the model's owner.") from error
    if vocabulary < BYTES:
        problem = f"has no {TOKENIZER}, and its vocabulary of {vocabulary} has no room for bytes"
        raise InputFault(where, problem, f"Add its {TOKENIZER}.")
    return ByteTokens()


def context_length(model: Any, settings: LlmEngineSettings) -> int:
    """Longest prompt and output together: as was chosen, as the model allows, as the cache holds. Raises InputFault."""
    config = model.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", None) or settings.cache_tokens + 1
    chosen = settings.max_model_len
    if chosen is not None and chosen > longest:
        problem = f"is {chosen}, more than the {longest} positions of {quoted(settings.name)}"
        raise InputFault("max_model_len", problem, f"Give {longest} or less.")
    # The last token of a request takes no block.
    return min(chosen or longest, settings.cache_tokens + 1)
