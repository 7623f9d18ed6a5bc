"""The sizes of a decoder, that is an LLM that gives one token after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torchsplit_core.values.fields import Added, Range

WeightType = Literal["fp32", "bf16", "fp16", "fp8", "int8", "int4"]

BYTES_OF_TYPE = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.53125}
"""Bytes of a weight; 4-bit weights of AWQ, GPTQ and MXFP4 carry a scale of 8 to 16 bits for 32 to 128 of them."""

Dimension = Annotated[int, Range(ge=1, le=10**9)]
DimensionOrNone = Annotated[int, Range(ge=0, le=10**9)]


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """Widths and counts of a decoder's layers, the names of a config.json in brackets.

    layers (num_hidden_layers), hidden_size, ffn_size (intermediate_size of a layer without experts; 0 where every
    layer has experts), heads (num_attention_heads), kv_heads (num_key_value_heads), head_dim, vocab_size. `gated`: the
    feed-forward network has three products, else two. experts (1: none), experts_per_token, expert_ffn_size and
    shared_expert_ffn_size (0: no shared one) are those of `expert_layers` of the layers (None: of all, where there are
    experts). sliding_window: tokens that `windowed_layers` layers attend to (None: all layers). max_model_len: most
    tokens of a sequence (None: not given). dtype: of the weights of the layers' products; attention_dtype: of those of
    attention (None: dtype); embeddings and head have 16 bits unless dtype is fp32. kv_dtype: of keys and values
    (None: 16 bits, or fp32). `other_parameters` are held, and read in no step: an image encoder's.
    """

    layers: Dimension
    hidden_size: Dimension
    ffn_size: DimensionOrNone
    heads: Dimension
    kv_heads: Dimension
    head_dim: Dimension
    vocab_size: Dimension
    gated: bool = True
    tied_embeddings: bool = False
    experts: Dimension = 1
    experts_per_token: Dimension = 1
    expert_ffn_size: DimensionOrNone = 0
    shared_expert_ffn_size: DimensionOrNone = 0
    sliding_window: Dimension | None = None
    max_model_len: Dimension | None = None
    dtype: WeightType = "bf16"
    kv_dtype: Literal["fp32", "bf16", "fp16", "fp8", "int8"] | None = None
    expert_layers: Added[DimensionOrNone | None] = None
    windowed_layers: Added[DimensionOrNone | None] = None
    attention_dtype: Added[WeightType | None] = None
    position_embeddings: Added[DimensionOrNone] = 0
    biases: Added[bool] = False
    other_parameters: Added[DimensionOrNone] = 0

    @property
    def layers_with_experts(self) -> int:
        if self.experts == 1:
            return 0
        return self.layers if self.expert_layers is None else min(self.expert_layers, self.layers)

    @property
    def products(self) -> int:
        """Matrices of a feed-forward network."""
        return 3 if self.gated else 2

    @property
    def attention_parameters(self) -> int:
        """Of one layer."""
        biases = (self.heads + 2 * self.kv_heads) * self.head_dim if self.biases else 0
        return 2 * self.hidden_size * self.head_dim * (self.heads + self.kv_heads) + biases

    @property
    def expert_parameters(self) -> int:
        """Of one expert of one layer."""
        return self.products * self.hidden_size * self.expert_ffn_size if self.experts > 1 else 0

    @property
    def shared_parameters(self) -> int:
        """Of the shared expert and the router of one layer with experts."""
        if self.experts == 1:
            return 0
        return self.hidden_size * (self.products * self.shared_expert_ffn_size + self.experts)

    @property
    def dense_parameters(self) -> int:
        """Of the feed-forward network of one layer without experts."""
        return self.products * self.hidden_size * self.ffn_size

    @property
    def vocabulary_parameters(self) -> int:
        """Of the head, and of the embeddings."""
        return self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """All of them, norms included."""
        experts = self.layers_with_experts
        return (
            self.layers * (self.attention_parameters + 2 * self.hidden_size)
            + (self.layers - experts) * self.dense_parameters
            + experts * (self.experts * self.expert_parameters + self.shared_parameters)
            + (1 if self.tied_embeddings else 2) * self.vocabulary_parameters
            + (self.position_embeddings + 1) * self.hidden_size
            + self.other_parameters
        )

    @property
    def active_parameters(self) -> int:
        """Those of the layers' products that one token passes: embeddings and head are not counted."""
        experts = self.layers_with_experts
        return (
            self.layers * self.attention_parameters
            + (self.layers - experts) * self.dense_parameters
            + experts * (self.experts_per_token * self.expert_parameters + self.shared_parameters)
        )

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of the keys and values of one token in all layers, on however many GPUs."""
        kind = self.kv_dtype or ("fp32" if self.dtype == "fp32" else "bf16")
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES_OF_TYPE[kind]
