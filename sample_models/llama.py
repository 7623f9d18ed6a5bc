"""LLaMA-like decoder (Touvron et al. 2023; grouped-query attention as in TinyLlama-1.1B), without a KV cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sample_models.client import SequenceClient


@dataclass(frozen=True, slots=True)
class LlamaSize:
    """The dimensions of a decoder; `tokens` is the default sequence length of the example inputs."""

    vocabulary: int
    tokens: int
    width: int
    feed_forward: int
    layers: int
    heads: int
    key_value_heads: int


SMALL = LlamaSize(100, 12, 32, 64, 2, 4, 2)
LARGE = LlamaSize(32000, 128, 2048, 5632, 22, 32, 4)


def rotation_angles(positions: Tensor, head_width: int) -> Tensor:
    """Angle in radians by which each position rotates each element of a head: [positions, head_width]."""
    half = torch.arange(0, head_width, 2, device=positions.device) / head_width
    return torch.outer(positions, 10000.0**-half).repeat(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding over halves of the head (Su et al. 2021)."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


class Attention(nn.Module):
    """Causal attention; several query heads share a key-value head."""

    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.head = size.width // size.heads
        self.group = size.heads // size.key_value_heads
        self.query = nn.Linear(size.width, size.width, bias=False)
        self.key = nn.Linear(size.width, size.key_value_heads * self.head, bias=False)
        self.value = nn.Linear(size.width, size.key_value_heads * self.head, bias=False)
        self.output = nn.Linear(size.width, size.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        key, value = (part.repeat_interleave(self.group, dim=1) for part in (rotate(key, cos, sin), value))
        mixed = F.scaled_dot_product_attention(rotate(query, cos, sin), key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Gated feed-forward (SwiGLU)."""

    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        self.gate = nn.Linear(size.width, size.feed_forward, bias=False)
        self.up = nn.Linear(size.width, size.feed_forward, bias=False)
        self.down = nn.Linear(size.feed_forward, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class DecoderLayer(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, size: LlamaSize, feed_forward: type[nn.Module]) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.width, eps=1e-5)
        self.attention = Attention(size)
        self.feed_norm = nn.RMSNorm(size.width, eps=1e-5)
        self.feed_forward = feed_forward(size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.feed_norm(x))


class Llama(nn.Module):
    """From token ids to scores of the next token: for the last position only, in training for every position.

    `feed_forward` makes the second half of each layer from the sizes.
    """

    def __init__(self, size: LlamaSize, feed_forward: type[nn.Module] = FeedForward) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.layers = nn.ModuleList(DecoderLayer(size, feed_forward) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width, eps=1e-5)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        self.head_width = size.width // size.heads
        angles = rotation_angles(torch.arange(size.tokens), self.head_width)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Scores [batch, vocabulary], in training [batch, tokens, vocabulary]; `positions`: of the tokens, if not all
        from 0 on."""
        x = self.tokens(ids)
        cos, sin = self.cos, self.sin
        if positions is None and ids.shape[1] != cos.shape[0]:
            positions = torch.arange(ids.shape[1], device=ids.device)
        if positions is not None:
            angles = rotation_angles(positions, self.head_width)
            cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x if self.training else x[:, -1]))


class LlamaClient(SequenceClient):
    """The client: TinyLlama-1.1B dimensions (4.1 GiB of float32 weights), or two layers of width 32."""

    @property
    def size(self) -> LlamaSize:
        """The dimensions of the decoder."""
        return LARGE if self.large else SMALL

    def build(self) -> nn.Module:
        return Llama(self.size)

    @property
    def tokens(self) -> int:
        return self.size.tokens

    def draw_tokens(self, batch_size: int, tokens: int) -> tuple[Tensor, ...]:
        return (torch.randint(self.size.vocabulary, (batch_size, tokens)),)

    tensor_plan = {
        "layers.*.attention.query": "colwise",
        "layers.*.attention.key": "colwise",
        "layers.*.attention.value": "colwise",
        "layers.*.attention.output": "rowwise",
        "layers.*.feed_forward.gate": "colwise",
        "layers.*.feed_forward.up": "colwise",
        "layers.*.feed_forward.down": "rowwise",
    }

    context_plan = {"inputs": (1,), "targets": (1,), "positions": "positions", "causal": True}

    def draw_target(self, inputs: tuple[Tensor, ...]) -> Tensor:
        return inputs[0][0].roll(-1)

    def get_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of each next token; the target after the last token is the first of the sequence."""
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())
