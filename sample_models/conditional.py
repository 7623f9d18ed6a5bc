"""A model that chooses between two middle parts at run time, with torch.cond."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sample_models.client import SampleClient


class Conditional(nn.Module):
    """A cheap branch for batches of small values, an expensive one for others."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.quick = nn.Linear(width, width)
        self.thorough = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.cond(x.abs().mean() < 0.5, self.quick, self.thorough, (x,))
        return self.head(torch.relu(x))


class ConditionalClient(SampleClient):
    """The client: width 2048, or 16."""

    def build(self) -> nn.Module:
        return Conditional(2048 if self.large else 16)

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        return (torch.randn(batch_size, 2048 if self.large else 16),)

    def draw_target(self, inputs: tuple[Tensor, ...]) -> Tensor:
        return inputs[0][0].flip(-1)

    def get_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error against the inputs in reverse order."""
        return F.mse_loss(outputs, targets)
