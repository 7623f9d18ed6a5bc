"""A transformer's sizes, from the name of a published one or from its config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from torchsplit_core.files import parse_json
from torchsplit_core.strategy.table_input.models import gated_name
from torchsplit_core.values.errors import InputFault, quoted, suggestion
from torchsplit_core.values.strategy.request import TransformerSizes

LARGEST_CONFIG = 2**20
"""Most characters of a config.json; published ones have a few thousand."""
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "num_heads")
KEY_HEADS = ("num_key_value_heads", "n_head_kv")
INNER = ("intermediate_size", "n_inner", "ffn_dim", "d_ff")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
CHOSEN = ("num_experts_per_tok", "num_experts_per_token")
UNGATED = (
    "gpt2",
    "gpt_neox",
    "gpt_neo",
    "opt",
    "bloom",
    "bert",
    "falcon",
    "phi",
    "gptj",
    "mpt",
    "starcoder2",
)
"""model_type of families whose feed-forward has two matrices."""


def preset_names() -> tuple[str, ...]:
    """Names of the published transformers."""
    return tuple(_published())


def preset(name: str, sequence: int) -> TransformerSizes:
    """The sizes of a published transformer. Raises InputFault with the known names for any other name."""
    known = _published()
    if name not in known:
        raise InputFault(
            "model", f"unknown transformer {quoted(name)}", suggestion(name, known, "transformers")
        )
    sizes = known[name]
    gated = gated_name(name)
    transformer = TransformerSizes(
        layers=int(sizes["layers"]),
        hidden=int(sizes["hidden"]),
        heads=int(sizes["heads"]),
        kv_heads=int(sizes["kv_heads"]),
        ffn=int(sizes["ffn"]),
        vocab=int(sizes["vocab"]),
        sequence=sequence,
        gated=gated,
        experts=int(sizes.get("experts", 1)),
        experts_per_token=int(sizes.get("experts_per_token", 1)),
        tied_embeddings=not gated,
    )
    transformer.transformer()
    return transformer


def read_config(text: str, origin: str, sequence: int) -> TransformerSizes:
    """The sizes in a Hugging Face config.json. Raises InputFault if it is none, or lacks a size."""
    if len(text) > LARGEST_CONFIG:
        raise InputFault(
            origin,
            f"has {len(text)} characters, more than the {LARGEST_CONFIG} of any config.json",
            "Choose the model's config.json.",
        )
    config = parse_json(text, origin, what="a config.json")
    if not isinstance(config, dict):
        raise InputFault(
            origin, f"holds {quoted(config)}, not a JSON object", "Choose the model's config.json."
        )
    if config.get("quantization_config"):
        raise InputFault(
            f"{origin}: quantization_config",
            "says that the weights are quantized; only whole weights are trained",
            "Remove it, or choose the unquantized model.",
        )
    hidden, heads = _size(config, HIDDEN, origin), _size(config, HEADS, origin)
    experts = _size(config, EXPERTS, origin, 1)
    inner = config.get("moe_intermediate_size") if experts > 1 else None
    kind = str(config.get("model_type", ""))
    gated = kind not in UNGATED
    transformer = TransformerSizes(
        layers=_size(config, LAYERS, origin),
        hidden=hidden,
        heads=heads,
        kv_heads=_size(config, KEY_HEADS, origin, 1 if config.get("multi_query") else heads),
        ffn=_size({"ffn": inner}, ("ffn",), origin) if inner else _size(config, INNER, origin, 4 * hidden),
        vocab=_size(config, ("vocab_size",), origin),
        sequence=sequence,
        gated=gated,
        experts=experts,
        experts_per_token=_size(config, CHOSEN, origin, 1) if experts > 1 else 1,
        tied_embeddings=bool(config.get("tie_word_embeddings", not gated)),
    )
    try:
        transformer.transformer()
    except InputFault as fault:
        raise fault.within(origin) from None
    return transformer


def _size(config: Mapping[str, Any], names: tuple[str, ...], origin: str, default: int | None = None) -> int:
    """An integer from 1, under the first of these names that the config has."""
    name = next((key for key in names if config.get(key) is not None), None)
    if name is None:
        if default is not None:
            return default
        raise InputFault(
            f"{origin}: {names[0]}",
            "is missing",
            "Choose a transformer's config.json, or write the sizes yourself.",
        )
    value = config[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**31:
        raise InputFault(
            f"{origin}: {name}", f"is {quoted(value)}, not a whole number of at least 1", "Correct the file."
        )
    return value


def _published() -> dict[str, dict[str, float]]:
    path = files("torchsplit_core.strategy").joinpath("data/models.json")
    return dict(json.loads(path.read_text(encoding="utf-8"))["models"])
