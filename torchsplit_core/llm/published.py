"""Sizes of published decoders by name, from data/decoders.json (a source per row)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from torchsplit_core.llm.config import sizes_of_config
from torchsplit_core.values import InputFault, quoted, suggestion
from torchsplit_core.values.llm.decoder import DecoderSizes, WeightType

_VARIANTS = re.compile(r"[-_.](hf|instruct|chat|it|base|dynamic|block|original|python|thinking)(?=$|[-_.])")
"""Parts of a repository's name that change its training or its form, not its sizes."""
_VERSIONS = re.compile(r"[-_.](v0\.[123]|\d{4})(?=$|[-_.])")
"""Parts that may change sizes: names are compared with them first."""
_TYPES: Mapping[str, WeightType] = {
    "fp8": "fp8", "w8a8": "int8", "int8": "int8", "w4a16": "int4", "int4": "int4", "awq": "int4", "gptq": "int4",
}  # fmt: skip
"""Parts of a repository's name that say how its weights are quantised."""


def decoder_names() -> tuple[str, ...]:
    """Names of the published decoders."""
    return tuple(_rows())


def decoder_config(name: str) -> Mapping[str, Any]:
    """The config.json of a published decoder, by one of `decoder_names`, or its repository's name with or without
    the owner. Raises InputFault for an unknown name, with the known ones.
    """
    row = next((_by_key()[key] for key in _keys(name) if key in _by_key()), None)
    if row is None:
        raise InputFault("", f"unknown decoder {quoted(name)}", suggestion(name, _all_names(), "decoders"))
    return _rows()[row]


def published_decoder(name: str) -> DecoderSizes:
    """A published decoder; a name such as Llama-3.1-8B-Instruct-FP8 also says the type of the weights.

    Raises InputFault for an unknown name, with the known ones.
    """
    sizes = sizes_of_config(decoder_config(name), name)
    kind = next((kind for part, kind in _TYPES.items() if part in re.split(r"[-_.]", name.lower())), None)
    return sizes if kind is None else quantized(sizes, kind)


def quantized(sizes: DecoderSizes, kind: WeightType) -> DecoderSizes:
    """The decoder with weights of that type; attention stays in 16 bits where published checkpoints leave it so."""
    if kind == sizes.dtype:
        return sizes
    if kind in ("fp32", "bf16", "fp16"):
        return replace(sizes, dtype=kind, attention_dtype=None)
    attention: WeightType | None = "bf16" if sizes.other_parameters or sizes.attention_dtype else None
    return replace(sizes, dtype=kind, attention_dtype=attention)


def _keys(name: str) -> tuple[str, str, str]:
    """The name without its owner, without what says its training, form or type, and without its version too."""
    whole = name.rpartition("/")[2].lower()
    text = re.sub(rf"[-_.]({'|'.join(_TYPES)})(?=$|[-_.])", "", whole)
    plain = _VARIANTS.sub("", text)
    return whole, plain, _VERSIONS.sub("", plain)


@cache
def _by_key() -> Mapping[str, str]:
    """Rows by their names and repositories: whole names first, and the first row keeps a shared one."""
    keys: dict[str, str] = {}
    for place in range(3):
        for row in _read():
            for name in (row["name"], *row["repositories"]):
                keys.setdefault(_keys(name)[place], row["name"])
    return keys


def _all_names() -> tuple[str, ...]:
    return (*_rows(), *(name for row in _read() for name in row["repositories"]))


@cache
def _rows() -> Mapping[str, Mapping[str, Any]]:
    return {row["name"]: row["config"] for row in _read()}


@cache
def _read() -> tuple[Mapping[str, Any], ...]:
    text = files("torchsplit_core.llm").joinpath("data/decoders.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)["decoders"])
