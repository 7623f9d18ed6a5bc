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
from torchsplit_core.values.decoder import DecoderSizes, WeightType

_VARIANTS = re.compile(
    r"[-_.](hf|instruct|chat|it|base|v0\.[123]|dynamic|block|original|python|thinking|\d{4})(?=$|[-_.])"
)
"""Parts of a repository's name that change its training or its form, not its sizes."""
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
    found = _by_key().get(_key(name)) or _by_key().get(_key(_plain(name)))
    if found is None:
        raise InputFault("", f"unknown decoder {quoted(name)}", suggestion(name, _all_names(), "decoders"))
    return _rows()[found]


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


def _plain(name: str) -> str:
    """The name without what says its training, form or type; its version stays where sizes depend on it."""
    text = name.rpartition("/")[2].lower()
    text = re.sub(rf"[-_.]({'|'.join(_TYPES)})(?=$|[-_.])", "", text)
    previous = None
    while previous != text:
        previous, text = text, _VARIANTS.sub("", text)
    return text


def _key(name: str) -> str:
    return name.rpartition("/")[2].lower()


@cache
def _by_key() -> Mapping[str, str]:
    """Names and repositories, as they are and without variants, in lower case; the first row keeps a shared one."""
    keys: dict[str, str] = {}
    for row in _read():
        for name in (row["name"], *row["repositories"]):
            keys.setdefault(_key(name), row["name"])
    for row in _read():
        for name in (row["name"], *row["repositories"]):
            keys.setdefault(_plain(name), row["name"])
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
