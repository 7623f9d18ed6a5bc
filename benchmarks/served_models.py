"""The samples' architectures at sizes whose batches take milliseconds of one core, to be served and loaded.

The small samples take less than the way through the front end, the large ones seconds; neither shows much of queues.
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
from sample_models.resnet50 import ResNet

SOURCE = Path(__file__).resolve()
BERT = BertSize(vocabulary=1000, tokens=64, width=256, layers=6, heads=4)
BERT_SHORT = BertSize(vocabulary=1000, tokens=24, width=384, layers=5, heads=6)
BERT_LONG = BertSize(vocabulary=1000, tokens=160, width=128, layers=6, heads=2)
PITCH = FastPitchSize(symbols=48, frames=128, width=128, head=32, filters=384, predictor=96, layers=3)
PITCH_WIDE = FastPitchSize(symbols=32, frames=96, width=192, head=48, filters=512, predictor=128, layers=2)


class BertClient(SeededClient):
    """Six layers of width 256 on 64 tokens."""

    size = BERT

    def build(self) -> nn.Module:
        return Bert(self.size)

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        shape = (batch_size, self.size.tokens)
        return (
            torch.randint(self.size.vocabulary, shape),
            torch.ones(shape, dtype=torch.int64),
            torch.zeros(shape, dtype=torch.int64),
        )


class ShortBertClient(BertClient):
    """Five layers of width 384 on 24 tokens."""

    size = BERT_SHORT


class LongBertClient(BertClient):
    """Six layers of width 128 on 160 tokens."""

    size = BERT_LONG


class ClipClient(SeededClient):
    """An image tower of width 192 on 64 × 64, a text tower of width 128."""

    def build(self) -> nn.Module:
        return Clip(ImageTower(64, 8, 192, 6, 4, 64), TextTower(1000, 32, 128, 4, 4, 64))

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        return torch.randn(batch_size, 3, 64, 64), torch.randint(1000, (batch_size, 32))


class SmallClipClient(SeededClient):
    """Towers of width 128 on 48 × 48 and of width 96."""

    def build(self) -> nn.Module:
        return Clip(ImageTower(48, 8, 128, 5, 4, 48), TextTower(1000, 24, 96, 4, 4, 48))

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        return torch.randn(batch_size, 3, 48, 48), torch.randint(1000, (batch_size, 24))


class FastPitchClient(SeededClient):
    """Three and three blocks of width 128 on 48 symbols."""

    size = PITCH

    def build(self) -> nn.Module:
        return FastPitch(self.size)

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        return (torch.randint(VOCABULARY, (batch_size, self.size.symbols)),)


class WideFastPitchClient(FastPitchClient):
    """Two and two blocks of width 192 on 32 symbols."""

    size = PITCH_WIDE


class OcrClient(SeededClient):
    """Convolutions of 16 to 128 channels on 32 × 96, two attention layers of width 96."""

    def build(self) -> nn.Module:
        return LineReader(16, 96, 25, 2, 4)

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        return (torch.rand(batch_size, 1, 32, 96),)


class WideOcrClient(SeededClient):
    """Convolutions of 24 to 192 channels on 32 × 96, two attention layers of width 128."""

    def build(self) -> nn.Module:
        return LineReader(24, 128, 25, 2, 4)

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        return (torch.rand(batch_size, 1, 32, 96),)


class ResNetClient(SeededClient):
    """Eight bottlenecks from 32 channels on, on 64 × 64."""

    blocks = (2, 2, 2, 2)
    channels = 32

    def build(self) -> nn.Module:
        return ResNet(self.channels, self.blocks, 100)

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        return (torch.rand(batch_size, 3, 64, 64),)


class DeepResNetClient(ResNetClient):
    """The sixteen bottlenecks of ResNet-50, from 16 channels on."""

    blocks = (3, 4, 6, 3)
    channels = 16


class DeepClient(SeededClient):
    """A perceptron of twelve layers of width 1024."""

    def build(self) -> nn.Module:
        return nn.Sequential(*(layer for _ in range(12) for layer in (nn.Linear(1024, 1024), nn.ReLU())))

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        return (torch.rand(batch_size, 1024),)


class WideClient(SeededClient):
    """A perceptron of 64 million weights, which are most of its memory."""

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4096, 8192), nn.ReLU(), nn.Linear(8192, 4096))

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        return (torch.rand(batch_size, 4096),)
