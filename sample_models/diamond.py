"""The smallest model with parallel branches: a fork and a join."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sample_models.client import SampleClient


class Diamond(nn.Module):
    """stem → (left, right) → sum → head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.left = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.right = nn.Linear(width, width)
        self.head = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        return self.head(self.left(x) + torch.tanh(self.right(x)))


class DiamondClient(SampleClient):
    """The client: width 2048, or 16."""

    def build(self) -> nn.Module:
        return Diamond(2048 if self.large else 16)

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        return (torch.randn(batch_size, 2048 if self.large else 16),)

    def draw_target(self, inputs: tuple[Tensor, ...]) -> Tensor:
        return inputs[0][0].flip(-1)

    def get_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error against the inputs in reverse order."""
        return F.mse_loss(outputs, targets)
