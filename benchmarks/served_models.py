"""The architectures of four samples at sizes whose batches take milliseconds of one core: what is served and loaded.

The small samples take less than the way through the front, the large ones seconds; neither says much about queues.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from sample_models.bert import Bert, BertSize
from sample_models.client import SeededClient
from sample_models.clip import Clip, ImageTower, TextTower
from sample_models.fastpitch import VOCABULARY, FastPitch, FastPitchSize
from sample_models.ocr import LineReader

SOURCE = Path(__file__).resolve()
BERT = BertSize(vocabulary=1000, tokens=64, width=256, layers=6, heads=4)
PITCH = FastPitchSize(symbols=48, frames=128, width=128, head=32, filters=384, predictor=96, layers=3)


class BertClient(SeededClient):
    """Six layers of width 256 on 64 tokens."""

    def build(self) -> nn.Module:
        return Bert(BERT)

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        shape = (batch_size, BERT.tokens)
        return (
            torch.randint(BERT.vocabulary, shape),
            torch.ones(shape, dtype=torch.int64),
            torch.zeros(shape, dtype=torch.int64),
        )


class ClipClient(SeededClient):
    """An image tower of width 192 on 64 × 64, a text tower of width 128."""

    def build(self) -> nn.Module:
        return Clip(ImageTower(64, 8, 192, 6, 4, 64), TextTower(1000, 32, 128, 4, 4, 64))

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        return torch.randn(batch_size, 3, 64, 64), torch.randint(1000, (batch_size, 32))


class FastPitchClient(SeededClient):
    """Three and three blocks of width 128 on 48 symbols."""

    def build(self) -> nn.Module:
        return FastPitch(PITCH)

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        return (torch.randint(VOCABULARY, (batch_size, PITCH.symbols)),)


class OcrClient(SeededClient):
    """Convolutions of 16 to 128 channels on 32 × 96, two attention layers of width 96."""

    def build(self) -> nn.Module:
        return LineReader(16, 96, 25, 2, 4)

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        return (torch.rand(batch_size, 1, 32, 96),)


class WideClient(SeededClient):
    """A perceptron of 64 million weights: what it holds is mostly its own."""

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4096, 8192), nn.ReLU(), nn.Linear(8192, 4096))

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        return (torch.rand(batch_size, 4096),)
