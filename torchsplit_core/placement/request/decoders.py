"""A decoder's sizes from a Hugging Face config.json, and those of published ones by name.

A layer of these families has query, key, value and output products, a gated feed-forward network of three products (for
each expert, after a router), and two norms. Embeddings and the head are outside the layers and not counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from torchsplit_core.files import parse_json
from torchsplit_core.values import InputFault, PlacementModel, quoted, suggestion
from torchsplit_core.values.units import GIB

FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3")
"""model_type of the families with such layers."""

LARGEST_CONFIG = 2**20
"""Characters; published ones have a few thousand."""

BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
"""Bytes of an element, by the type's name in a config.json."""


def decoder_names() -> tuple[str, ...]:
    """Names of the published decoders."""
    return tuple(_published())


def decoder(name: str, *, sequence_length: int, batch_size: int) -> PlacementModel:
    """A published decoder. Raises InputFault for an unknown name, with the known ones."""
    if name not in _published():
        raise InputFault("", f"unknown decoder {quoted(name)}", suggestion(name, decoder_names(), "decoders"))
    return of_config(_published()[name], name, sequence_length=sequence_length, batch_size=batch_size)


def read_config(text: str, origin: str, *, sequence_length: int, batch_size: int) -> PlacementModel:
    """The decoder of a config.json. Raises InputFault if it is none, or of another family."""
    if len(text) > LARGEST_CONFIG:
        raise InputFault(
            origin,
            f"has {len(text)} characters, more than the {LARGEST_CONFIG} of a config.json",
            "Choose the model's config.json.",
        )
    config = parse_json(text, origin, what="a config.json")
    if not isinstance(config, dict):
        raise InputFault(origin, "is not a JSON object", "Choose the model's config.json.")
    return of_config(config, origin, sequence_length=sequence_length, batch_size=batch_size)


def of_config(
    config: Mapping[str, Any], origin: str, *, sequence_length: int, batch_size: int
) -> PlacementModel:
    """The decoder of these sizes. ffn_size counts the experts that a token passes."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise InputFault(
            f"{origin}: model_type",
            f"{quoted(family)} is none of {', '.join(FAMILIES)}",
            "Write the sizes in a request.",
        )
    if config.get("quantization_config"):
        raise InputFault(
            f"{origin}: quantization_config",
            "weights are quantized, and their size can not be read from torch_dtype",
            "Write layer_weight_gb in a request.",
        )
    parameters, active = layer_parameters(config, origin)
    heads = _size(config, "num_attention_heads", origin)
    hidden = _size(config, "hidden_size", origin)
    size = _bytes(config, origin)
    chosen = _size(config, "num_experts_per_tok", origin) if _experts(config, origin) > 1 else 1
    return PlacementModel(
        layers=_size(config, "num_hidden_layers", origin),
        hidden_size=hidden,
        ffn_size=chosen * _size(config, "intermediate_size", origin),
        layer_weight_gib=parameters * size / GIB,
        sequence_length=sequence_length,
        batch_size=batch_size,
        bytes_per_element=size,
        key_value_size=_size(config, "num_key_value_heads", origin, heads) * _head(config, origin),
        active_layer_weight_gib=active * size / GIB if active < parameters else None,
    )


def layer_parameters(config: Mapping[str, Any], origin: str) -> tuple[int, int]:
    """Parameters of one layer, and how many of them a token passes."""
    hidden, ffn = _size(config, "hidden_size", origin), _size(config, "intermediate_size", origin)
    heads, head = _size(config, "num_attention_heads", origin), _head(config, origin)
    keys = _size(config, "num_key_value_heads", origin, heads) * head
    attention = 2 * hidden * heads * head + 2 * hidden * keys
    if config["model_type"] == "qwen2":
        # Its query, key and value products have a bias.
        attention += heads * head + 2 * keys
    if config["model_type"] == "qwen3":
        # It normalises queries and keys per head.
        attention += 2 * head
    rest = attention + 2 * hidden
    experts = _experts(config, origin)
    if experts == 1:
        return rest + 3 * hidden * ffn, rest + 3 * hidden * ffn
    rest += hidden * experts
    chosen = _size(config, "num_experts_per_tok", origin)
    return rest + experts * 3 * hidden * ffn, rest + chosen * 3 * hidden * ffn


def _experts(config: Mapping[str, Any], origin: str) -> int:
    return _size(config, "num_local_experts", origin, 1) if config["model_type"] == "mixtral" else 1


def _head(config: Mapping[str, Any], origin: str) -> int:
    """Width of one head: its own field if given, else the hidden size divided by the heads."""
    heads = _size(config, "num_attention_heads", origin)
    return _size(config, "head_dim", origin, _size(config, "hidden_size", origin) // heads)


def _bytes(config: Mapping[str, Any], origin: str) -> float:
    name = config.get("torch_dtype") or config.get("dtype")
    if not isinstance(name, str) or name not in BYTES:
        raise InputFault(
            f"{origin}: torch_dtype",
            f"{quoted(name)} is none of {', '.join(BYTES)}" if name else "is missing",
            "Write the sizes in a request.",
        )
    return BYTES[name]


def _size(config: Mapping[str, Any], name: str, origin: str, otherwise: int | None = None) -> int:
    value = config.get(name)
    if value is None and otherwise is not None:
        return otherwise
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**9:
        problem = "is missing" if value is None else f"is {quoted(value)}, not a whole number of 1 or more"
        raise InputFault(f"{origin}: {name}", problem, "Check the config.json.")
    return value


@cache
def _published() -> Mapping[str, Mapping[str, Any]]:
    text = files("torchsplit_core.placement").joinpath("data/decoders.json").read_text(encoding="utf-8")
    return {row["name"]: row["config"] for row in json.loads(text)["decoders"]}
