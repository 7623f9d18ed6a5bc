"""Text-line reader: the convolutions of CRNN (Shi et al. 2015), then attention over the columns (as in SVTR).

Attention replaces CRNN's LSTMs, because export unrolls an LSTM step by step and takes ten times as long.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sample_models.attention import PreNormBlock
from sample_models.client import SampleClient

CHARACTERS = 97  # printable ASCII, an unknown character and the CTC blank


def convolution(inner: int, outer: int, kernel: int = 3, padding: int = 1) -> nn.Sequential:
    """Convolution, batch norm, ReLU."""
    return nn.Sequential(nn.Conv2d(inner, outer, kernel, padding=padding), nn.BatchNorm2d(outer), nn.ReLU())


class Backbone(nn.Module):
    """Seven convolutions that shrink a line of height 32 to height 1 and a quarter of its width."""

    def __init__(self, base: int) -> None:
        super().__init__()
        flat = {"kernel_size": (2, 2), "stride": (2, 1), "padding": (0, 1)}
        self.stages = nn.Sequential(
            convolution(1, base),
            nn.MaxPool2d(2),
            convolution(base, 2 * base),
            nn.MaxPool2d(2),
            convolution(2 * base, 4 * base),
            convolution(4 * base, 4 * base),
            nn.MaxPool2d(**flat),
            convolution(4 * base, 8 * base),
            convolution(8 * base, 8 * base),
            nn.MaxPool2d(**flat),
            convolution(8 * base, 8 * base, kernel=2, padding=0),
        )

    def forward(self, image: Tensor) -> Tensor:
        return self.stages(image)


class LineReader(nn.Module):
    """Log-probabilities of every character for each column of a line image."""

    def __init__(self, base: int, width: int, columns: int, layers: int, heads: int) -> None:
        super().__init__()
        self.backbone = Backbone(base)
        self.widen = nn.Linear(8 * base, width)
        self.positions = nn.Parameter(torch.randn(columns, width) * 0.02)
        self.blocks = nn.ModuleList(PreNormBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CHARACTERS)

    def forward(self, image: Tensor) -> Tensor:
        x = self.widen(self.backbone(image).squeeze(2).transpose(1, 2)) + self.positions
        for block in self.blocks:
            x = block(x)
        return torch.log_softmax(self.head(self.norm(x)), dim=-1)


class OcrClient(SampleClient):
    """The client: lines of 32 × 256 with real layer widths, or 4 channels on 32 × 48."""

    def build(self) -> nn.Module:
        return LineReader(64, 384, 65, 6, 12) if self.large else LineReader(4, 32, 13, 1, 2)

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        return (torch.rand(batch_size, 1, 32, 256 if self.large else 48),)

    def draw_target(self, inputs: tuple[Tensor, ...]) -> Tensor:
        return torch.randint(CHARACTERS, (65 if self.large else 13,))

    def get_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean negative log-likelihood of the target character of each column."""
        return F.nll_loss(outputs.mT, targets)
