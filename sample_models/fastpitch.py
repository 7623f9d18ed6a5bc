"""FastPitch (Łańcucki 2021): text to mel spectrogram with predicted durations and pitch.

The numbers of symbols in and frames out are fixed; only the batch size varies. As in the original, comparing
cumulative durations with frame numbers assigns frames to symbols.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sample_models.client import SampleClient


@dataclass(frozen=True, slots=True)
class FastPitchSize:
    """`width` of the blocks, `head` of their single attention head, `filters` of their convolutions."""

    symbols: int
    frames: int
    width: int
    head: int
    filters: int
    predictor: int
    layers: int


SMALL = FastPitchSize(symbols=12, frames=24, width=32, head=16, filters=48, predictor=24, layers=1)
LARGE = FastPitchSize(symbols=128, frames=512, width=384, head=64, filters=1536, predictor=256, layers=6)
VOCABULARY, MELS = 148, 80


class FeedForwardTransformer(nn.Module):
    """Single-head attention, then two convolutions over time, each part with residual and norm (post-norm)."""

    def __init__(self, size: FastPitchSize) -> None:
        super().__init__()
        self.qkv = nn.Linear(size.width, 3 * size.head)
        self.output = nn.Linear(size.head, size.width, bias=False)
        self.attention_norm = nn.LayerNorm(size.width)
        self.wide = nn.Conv1d(size.width, size.filters, 3, padding=1)
        self.narrow = nn.Conv1d(size.filters, size.width, 3, padding=1)
        self.conv_norm = nn.LayerNorm(size.width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None])
        x = self.attention_norm(x + self.output(mixed.squeeze(1)))
        return self.conv_norm(x + self.narrow(torch.relu(self.wide(x.mT))).mT)


class Stack(nn.Module):
    """Position embeddings, then a chain of blocks."""

    def __init__(self, size: FastPitchSize, length: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(length, size.width) * 0.02)
        self.blocks = nn.ModuleList(FeedForwardTransformer(size) for _ in range(size.layers))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.positions
        for block in self.blocks:
            x = block(x)
        return x


class Predictor(nn.Module):
    """Predicts one number per symbol: two convolutions with norms, then a linear layer."""

    def __init__(self, size: FastPitchSize) -> None:
        super().__init__()
        self.first = nn.Conv1d(size.width, size.predictor, 3, padding=1)
        self.first_norm = nn.LayerNorm(size.predictor)
        self.second = nn.Conv1d(size.predictor, size.predictor, 3, padding=1)
        self.second_norm = nn.LayerNorm(size.predictor)
        self.output = nn.Linear(size.predictor, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first_norm(torch.relu(self.first(x.mT)).mT)
        x = self.second_norm(torch.relu(self.second(x.mT)).mT)
        return self.output(x).squeeze(-1)


class FastPitch(nn.Module):
    """From symbols to mel spectrogram, log durations and pitch."""

    def __init__(self, size: FastPitchSize) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, size.width)
        self.encoder = Stack(size, size.symbols)
        self.duration, self.pitch = Predictor(size), Predictor(size)
        self.pitch_embedding = nn.Conv1d(1, size.width, 3, padding=1)
        self.decoder = Stack(size, size.frames)
        self.mel = nn.Linear(size.width, MELS)
        self.register_buffer("frame_numbers", torch.arange(size.frames)[:, None] + 0.5, persistent=False)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.encoder(self.words(ids))
        log_duration, pitch = self.duration(x), self.pitch(x)
        x = x + self.pitch_embedding(pitch[:, None, :]).mT
        duration = torch.clamp(torch.round(torch.exp(log_duration) + 1), 1, 75)
        ends = duration.cumsum(dim=1)[:, None, :]
        spread = (self.frame_numbers < ends) & (self.frame_numbers >= ends - duration[:, None, :])
        return self.mel(self.decoder(spread.to(x.dtype) @ x)), log_duration, pitch


class FastPitchClient(SampleClient):
    """The client: FastPitch with the paper's widths, or one block of width 32."""

    def build(self) -> nn.Module:
        return FastPitch(LARGE if self.large else SMALL)

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        size = LARGE if self.large else SMALL
        return (torch.randint(VOCABULARY, (batch_size, size.symbols)),)

    def draw_target(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        frames = (LARGE if self.large else SMALL).frames
        return torch.randn(frames, MELS), inputs[0][0].sin()

    def get_loss(self, outputs: tuple[Tensor, Tensor, Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
        """Sum of the mean squared errors of spectrogram, log durations and pitch."""
        (mel, log_duration, pitch), (spectrogram, wave) = outputs, targets
        return F.mse_loss(mel, spectrogram) + F.mse_loss(log_duration, wave) + F.mse_loss(pitch, -wave)
