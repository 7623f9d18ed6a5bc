"""BERT encoder (Devlin et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sample_models.attention import SelfAttention
from sample_models.client import SequenceClient


@dataclass(frozen=True, slots=True)
class BertSize:
    """The dimensions of an encoder; `tokens` is the default sequence length of the example inputs."""

    vocabulary: int
    tokens: int
    width: int
    layers: int
    heads: int


SMALL = BertSize(vocabulary=100, tokens=16, width=32, layers=2, heads=2)
LARGE = BertSize(vocabulary=30522, tokens=128, width=1024, layers=24, heads=16)


class Embeddings(nn.Module):
    """Token, position and segment embeddings, added and normalised."""

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(512, size.width)
        self.segments = nn.Embedding(2, size.width)
        self.norm = nn.LayerNorm(size.width, eps=1e-12)
        self.register_buffer("position_ids", torch.arange(size.tokens), persistent=False)

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        positions = self.position_ids
        if ids.shape[1] != positions.shape[0]:
            positions = torch.arange(ids.shape[1], device=ids.device)
        return self.norm(self.words(ids) + self.positions(positions) + self.segments(segments))


class Layer(nn.Module):
    """Attention and feed-forward, each added to its input, then normalised (post-norm)."""

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.attention = SelfAttention(size.width, size.heads)
        self.attention_norm = nn.LayerNorm(size.width, eps=1e-12)
        self.intermediate = nn.Linear(size.width, 4 * size.width)
        self.activation = nn.GELU()
        self.output = nn.Linear(4 * size.width, size.width)
        self.output_norm = nn.LayerNorm(size.width, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x, mask))
        return self.output_norm(x + self.output(self.activation(self.intermediate(x))))


class Encoder(nn.Module):
    """The chain of layers."""

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(size) for _ in range(size.layers))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layer:
            x = layer(x, mask)
        return x


class Bert(nn.Module):
    """From token ids to token vectors and the pooled vector of the first token."""

    def __init__(self, size: BertSize) -> None:
        super().__init__()
        self.embeddings = Embeddings(size)
        self.encoder = Encoder(size)
        self.pooler = nn.Linear(size.width, size.width)

    def forward(self, ids: Tensor, attention_mask: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
        mask = attention_mask.bool()[:, None, None, :]
        x = self.encoder(self.embeddings(ids, segments), mask)
        return x, torch.tanh(self.pooler(x[:, 0]))


class BertClient(SequenceClient):
    """The client: BERT-large, or two layers of width 32."""

    def build(self) -> nn.Module:
        return Bert(LARGE if self.large else SMALL)

    @property
    def tokens(self) -> int:
        return (LARGE if self.large else SMALL).tokens

    def draw_tokens(self, batch_size: int, tokens: int) -> tuple[Tensor, ...]:
        size = LARGE if self.large else SMALL
        shape = (batch_size, tokens)
        ids = torch.randint(size.vocabulary, shape)
        return ids, torch.ones(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)

    def draw_target(self, inputs: tuple[Tensor, ...]) -> Tensor:
        return inputs[0][0].sin()

    def get_loss(self, outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        """Squared error of the first channel of each token, and of the pooled vector, against the sine of the id."""
        tokens, pooled = outputs
        return F.mse_loss(tokens[..., 0], targets) + F.mse_loss(pooled[:, 0], targets[:, 0])
