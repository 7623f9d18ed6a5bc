"""A decoder's layers as a placement counts them, from the sizes that torchsplit_core.llm reads.

Embeddings and the head are outside the layers and not counted; norms are, as in a layer's published parameters.
"""

from __future__ import annotations

from torchsplit_core.llm.config import read_config as read_sizes
from torchsplit_core.llm.published import decoder_names, published_decoder
from torchsplit_core.values import InputFault, PlacementModel
from torchsplit_core.values.llm.decoder import BYTES_OF_TYPE, DecoderSizes
from torchsplit_core.values.units import GIB

__all__ = ["decoder", "decoder_names", "layer_bytes", "placement_model", "read_config"]


def decoder(name: str, *, sequence_length: int, batch_size: int) -> PlacementModel:
    """A published decoder. Raises InputFault for an unknown name, with the known ones."""
    return placement_model(
        published_decoder(name), name, sequence_length=sequence_length, batch_size=batch_size
    )


def read_config(text: str, origin: str, *, sequence_length: int, batch_size: int) -> PlacementModel:
    """The decoder of a config.json. Raises InputFault if it is none, or of another family."""
    return placement_model(
        read_sizes(text, origin), origin, sequence_length=sequence_length, batch_size=batch_size
    )


def placement_model(
    sizes: DecoderSizes, origin: str, *, sequence_length: int, batch_size: int
) -> PlacementModel:
    """The layers of a decoder. ffn_size counts the experts that a token passes, the shared one included.

    Raises InputFault for a decoder whose layers are not all alike: a placement counts layers.
    """
    experts = sizes.layers_with_experts
    if 0 < experts < sizes.layers:
        raise InputFault(
            origin,
            f"{experts} of {sizes.layers} layers have experts, and a placement counts equal layers",
            "Write the sizes in a request.",
        )
    whole, active = layer_bytes(sizes)
    passed = sizes.experts_per_token * sizes.expert_ffn_size + sizes.shared_expert_ffn_size
    return PlacementModel(
        layers=sizes.layers,
        hidden_size=sizes.hidden_size,
        ffn_size=passed if experts else sizes.ffn_size,
        layer_weight_gib=whole / GIB,
        sequence_length=sequence_length,
        batch_size=batch_size,
        bytes_per_element=BYTES_OF_TYPE["fp32" if sizes.dtype == "fp32" else "bf16"],
        key_value_size=sizes.kv_heads * sizes.head_dim,
        active_layer_weight_gib=active / GIB if active < whole else None,
    )


def layer_bytes(sizes: DecoderSizes) -> tuple[float, float]:
    """Bytes of the weights of one layer, and of those that a token passes."""
    kind = BYTES_OF_TYPE[sizes.dtype]
    rest = sizes.attention_parameters * BYTES_OF_TYPE[sizes.attention_dtype or sizes.dtype]
    rest += 2 * sizes.hidden_size * BYTES_OF_TYPE["fp32" if sizes.dtype == "fp32" else "bf16"]
    if not sizes.layers_with_experts:
        return rest + kind * sizes.dense_parameters, rest + kind * sizes.dense_parameters
    rest += kind * sizes.shared_parameters
    return (
        rest + kind * sizes.experts * sizes.expert_parameters,
        rest + kind * sizes.experts_per_token * sizes.expert_parameters,
    )
