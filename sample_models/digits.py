"""A small vision transformer that reads handwritten digits: the sample with real data and an accuracy to reach."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sample_models.attention import PreNormBlock
from sample_models.client import SeededClient, usual_optimizer

DATA = Path(__file__).with_name("data") / "digits.csv.gz"
"""UCI's Optical Recognition of Handwritten Digits; see data/NOTICE.md."""
TRAINING_SAMPLES = 1437
"""Four fifths of the file; the last fifth, by other writers, is for validation."""
SIDE, PATCH, CLASSES = 8, 2, 10


class DigitReader(nn.Module):
    """Two convolutions (the second to patches of 2 × 2) → tokens → blocks → mean over tokens → a score per digit."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width // 2, 3, padding=1)
        self.patches = nn.Conv2d(width // 2, width, 3, stride=PATCH, padding=1)
        self.positions = nn.Parameter(0.02 * torch.randn((SIDE // PATCH) ** 2, width))
        self.layers = nn.ModuleList(PreNormBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Images [batch, 1, 8, 8] with values from 0 to 1 → scores [batch, 10]."""
        tokens = self.patches(F.gelu(self.stem(images))).flatten(2).transpose(1, 2) + self.positions
        for layer in self.layers:
            tokens = layer(tokens)
        return self.head(self.norm(tokens).mean(1))


class DigitsClient(SeededClient):
    """The client: 2 blocks of width 64, or 12 of width 384 (ViT-S). After 20 epochs in batches of 64, AdamW with the
    usual learning rate 0.001 reads 9 of 10 validation digits correctly."""

    batch_sizes = (1, 2, 4, 8, 16)
    tensor_plan = {
        "layers.*.feed_forward.0": "colwise",
        "layers.*.feed_forward.2": "rowwise",
    }

    def build(self) -> nn.Module:
        return DigitReader(384, 6, 12) if self.large else DigitReader(64, 4, 2)

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        return (torch.rand(batch_size, 1, SIDE, SIDE),)

    @cached_property
    def _samples(self) -> tuple[Tensor, Tensor]:
        with gzip.open(DATA, "rt") as stream:
            table = torch.from_numpy(np.loadtxt(stream, delimiter=",", dtype=np.float32))
        return table[:, :-1].reshape(-1, 1, SIDE, SIDE) / 16, table[:, -1].long()

    def get_dataset(self) -> DigitSamples:
        """The first 1,437 images of the file."""
        images, digits = self._samples
        return DigitSamples(images[:TRAINING_SAMPLES], digits[:TRAINING_SAMPLES])

    def get_validation_dataset(self) -> DigitSamples:
        """The last 360 images of the file."""
        images, digits = self._samples
        return DigitSamples(images[TRAINING_SAMPLES:], digits[TRAINING_SAMPLES:])

    def get_optimizer(self, parameters: Iterable[nn.Parameter], kind: str) -> torch.optim.Optimizer:
        """`usual_optimizer` of the samples."""
        return usual_optimizer(parameters, kind)

    def get_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)

    def get_metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """The share of digits read correctly."""
        return {"accuracy": (outputs.argmax(-1) == targets).float().mean().item()}


class DigitSamples(TensorDataset):
    """`[i]` is image i, as the model's only argument, and its digit."""

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, ...], Tensor]:
        image, digit = super().__getitem__(index)
        return (image,), digit
