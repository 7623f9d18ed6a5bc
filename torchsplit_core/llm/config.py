"""A decoder's sizes from a Hugging Face config.json: the one reader of these files.

Families differ in names of fields and in what a missing field means; `FAMILIES` says how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchsplit_core.files import parse_json
from torchsplit_core.llm.quantization import weight_types
from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.llm.decoder import DecoderSizes

LARGEST_CONFIG = 2**20
"""Characters; published ones have a few thousand."""

_ENCODERS = (
    "bert",
    "roberta",
    "electra",
    "distilbert",
    "xlm",
    "deberta",
    "vit",
    "clip",
    "siglip",
    "albert",
    "mpnet",
)
_BOTH = ("t5", "mt5", "bart", "mbart", "pegasus", "whisper", "marian")
_CHECK = "Check the config.json."
_OTHER = "Name a model of a known family, or write its sizes as `llm.config` of a plan request."


@dataclass(frozen=True, slots=True)
class Family:
    """`names`: our field's name in a config.json where it is another; `tied`: what a missing tie_word_embeddings
    means; `window_every`: of so many layers one attends to everything (0: every layer is alike).
    """

    gated: bool = True
    tied: bool = False
    biases: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    experts: str | None = None
    expert_size: str | None = None
    window_every: int = 0
    plain_attention: bool = False


_GPT2 = {
    "num_hidden_layers": "n_layer", "hidden_size": "n_embd", "num_attention_heads": "n_head",
    "intermediate_size": "n_inner", "max_position_embeddings": "n_positions",
}  # fmt: skip
FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(biases=True),
    "qwen3": Family(),
    "phi3": Family(),
    "granite": Family(),
    "gemma": Family(tied=True),
    "gemma2": Family(tied=True, window_every=2),
    "gemma3": Family(tied=True, window_every=6),
    "gemma3_text": Family(tied=True, window_every=6),
    "mixtral": Family(experts="num_local_experts", expert_size="intermediate_size"),
    "qwen2_moe": Family(biases=True, experts="num_experts", expert_size="moe_intermediate_size"),
    "qwen3_moe": Family(experts="num_experts", expert_size="moe_intermediate_size"),
    # Published FP8 checkpoints of this family leave attention in 16 bits.
    "llama4": Family(experts="num_local_experts", expert_size="intermediate_size", plain_attention=True),
    "llama4_text": Family(experts="num_local_experts", expert_size="intermediate_size", plain_attention=True),
    "gpt_oss": Family(
        biases=True,
        experts="num_local_experts",
        expert_size="intermediate_size",
        window_every=2,
        plain_attention=True,
    ),
    "phi": Family(gated=False, biases=True),
    "opt": Family(gated=False, tied=True, biases=True, names={"intermediate_size": "ffn_dim"}),
    "gpt_neox": Family(gated=False, biases=True),
    "gpt2": Family(gated=False, tied=True, biases=True, names=_GPT2),
    "bloom": Family(
        gated=False, tied=True, biases=True, names={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
    ),
}  # fmt: skip
"""By model_type, from the configuration classes of transformers (Apache-2.0)."""

_FOUR_HIDDEN = ("gpt2", "bloom")
"""Families whose feed-forward networks are four times the hidden size where no field says else."""
_LEARNED_POSITIONS = ("gpt2", "opt")


def read_config(text: str, origin: str) -> DecoderSizes:
    """The decoder of a config.json's text. Raises InputFault if it is none, or of a family that is not known."""
    if len(text) > LARGEST_CONFIG:
        raise InputFault(
            origin,
            f"has {len(text)} characters, more than the {LARGEST_CONFIG} of a config.json",
            "Choose the model's config.json.",
        )
    config = parse_json(text, origin, what="a config.json")
    if not isinstance(config, dict):
        raise InputFault(origin, "is not a JSON object", "Choose the model's config.json.")
    return sizes_of_config(config, origin)


def sizes_of_config(config: Mapping[str, Any], origin: str) -> DecoderSizes:
    """The decoder of these fields. Raises InputFault naming the field that is missing or at fault."""
    text = config.get("text_config")
    whole = config
    if isinstance(text, Mapping):
        # A model that also sees: its decoder's fields stand apart, what both share around them.
        config = {**{name: whole[name] for name in _SHARED if name in whole}, **text}
    family = _family(config, whole, origin)
    read = _Fields(config, family, origin)
    layers, hidden, heads = read("num_hidden_layers"), read("hidden_size"), read("num_attention_heads")
    head = read("head_dim", _head_size(hidden, heads, config, origin))
    kind = str(config["model_type"])
    dtype, attention = weight_types(config, origin)
    if family.plain_attention and attention is None and dtype not in ("fp32", "bf16", "fp16"):
        attention = "bf16"
    experts = _experts(read, family, layers)
    window = read("sliding_window", 0)
    if not config.get("use_sliding_window", kind not in ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe")):
        window = 0
    positions = read("max_position_embeddings", 0) or read("seq_length", 0)
    default_ffn = 4 * hidden if kind in _FOUR_HIDDEN else None
    ffn = 0 if experts.get("expert_layers", 0) == layers else read(_dense_name(config), default_ffn)
    return DecoderSizes(
        layers=layers,
        hidden_size=hidden,
        ffn_size=ffn,
        heads=heads,
        kv_heads=_kv_heads(read, heads, origin),
        head_dim=head,
        vocab_size=read("vocab_size"),
        gated=family.gated,
        tied_embeddings=bool(
            whole.get("tie_word_embeddings", config.get("tie_word_embeddings", family.tied))
        ),
        sliding_window=window or None,
        windowed_layers=layers - layers // family.window_every if window and family.window_every else None,
        max_model_len=positions or None,
        dtype=dtype,
        attention_dtype=attention,
        position_embeddings=positions if kind in _LEARNED_POSITIONS else 0,
        biases=bool(config.get("attention_bias", family.biases)),
        other_parameters=_image_parameters(whole),
        **experts,
    )


_SHARED = ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings")


def _family(config: Mapping[str, Any], whole: Mapping[str, Any], origin: str) -> Family:
    kind = config.get("model_type")
    names = [str(name) for name in whole.get("architectures") or [] if isinstance(name, str)]
    where = f"{origin}: model_type"
    if config.get("kv_lora_rank") is not None or str(kind).startswith(("deepseek_v", "kimi", "minicpm3")):
        raise InputFault(
            where,
            f"{quoted(kind)} compresses its keys and values (latent attention), whose sizes are not reckoned",
            _OTHER,
        )
    if str(kind).startswith(_BOTH) or config.get("is_encoder_decoder"):
        raise InputFault(
            where, f"{quoted(kind)} has an encoder beside its decoder, whose steps are not reckoned", _OTHER
        )
    if str(kind).startswith(_ENCODERS) or any(
        "MaskedLM" in name or "Classification" in name for name in names
    ):
        raise InputFault(where, f"{quoted(kind)} is an encoder, which gives no token after another", _OTHER)
    if not isinstance(kind, str) or kind not in FAMILIES:
        problem = "is missing" if kind is None else f"{quoted(kind)} is none of {', '.join(FAMILIES)}"
        raise InputFault(where, problem, _OTHER)
    return FAMILIES[kind]


@dataclass(frozen=True, slots=True)
class _Fields:
    config: Mapping[str, Any]
    family: Family
    origin: str

    def __call__(self, name: str, otherwise: int | None = None) -> int:
        """A whole number of 1 or more; `otherwise` where the field is missing or null."""
        key = self.family.names.get(name, name)
        value = self.config.get(key, self.config.get(name))
        if value is None and otherwise is not None:
            return otherwise
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**9:
            if value == 0 and otherwise is not None and not isinstance(value, bool):
                return 0
            problem = (
                "is missing" if value is None else f"is {quoted(value)}, not a whole number of 1 or more"
            )
            raise InputFault(f"{self.origin}: {key}", problem, _CHECK)
        return value


def _head_size(hidden: int, heads: int, config: Mapping[str, Any], origin: str) -> int:
    if config.get("head_dim") is None and hidden % heads:
        raise InputFault(
            f"{origin}: num_attention_heads", f"{heads} do not divide the hidden size {hidden}", _CHECK
        )
    return hidden // heads


def _kv_heads(read: _Fields, heads: int, origin: str) -> int:
    kv_heads = read("num_key_value_heads", heads)
    if not kv_heads or heads % kv_heads:
        raise InputFault(
            f"{origin}: num_key_value_heads", f"{kv_heads} do not divide the {heads} heads", _CHECK
        )
    return kv_heads


def _dense_name(config: Mapping[str, Any]) -> str:
    """The field with the size of layers without experts: llama4 has another for them."""
    return "intermediate_size_mlp" if config.get("intermediate_size_mlp") else "intermediate_size"


def _experts(read: _Fields, family: Family, layers: int) -> dict[str, Any]:
    """The fields of experts, and in how many layers they are."""
    if family.experts is None or read(family.experts, 1) <= 1 or family.expert_size is None:
        return {}
    size = read(family.expert_size)
    config = read.config
    if str(config["model_type"]).startswith("llama4"):
        dense = layers - layers // read("interleave_moe_layer_step", 1)
        shared = size
    else:
        listed = config.get("mlp_only_layers")
        dense = len(listed) if isinstance(listed, list) else 0
        dense = max(dense, layers - layers // read("decoder_sparse_step", 1))
        shared = read("shared_expert_intermediate_size", 0)
    chosen = read("num_experts_per_tok", read("experts_per_token", 1))
    experts = read(family.experts)
    if chosen > experts:
        raise InputFault(
            f"{read.origin}: num_experts_per_tok", f"is {chosen}, more than the {experts} experts", _CHECK
        )
    return {
        "experts": experts,
        "experts_per_token": chosen,
        "expert_ffn_size": size,
        "shared_expert_ffn_size": shared,
        "expert_layers": max(layers - dense, 0),
    }


def _image_parameters(config: Mapping[str, Any]) -> int:
    """Parameters of an image encoder, a transformer without gates; 0 where its sizes are not given."""
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return 0
    sizes = [vision.get(name) for name in ("num_hidden_layers", "hidden_size", "intermediate_size")]
    if not all(isinstance(size, int) and 0 < size < 10**6 for size in sizes):
        return 0
    layers, hidden, ffn = (int(size) for size in sizes if size)
    return layers * (4 * hidden * hidden + 2 * hidden * ffn)
