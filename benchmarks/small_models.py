"""Five models that take microseconds to milliseconds, for which the overhead of a measurement matters most."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class _Client:
    batch_sizes = (1, 8)

    def get_model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.build().eval()

    def build(self) -> nn.Module:
        raise NotImplementedError

    def get_example_inputs(self, batch_size: int) -> tuple[Any, ...]:
        raise NotImplementedError


class Tabular(_Client):
    """Three linear layers over 32 features."""

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def get_example_inputs(self, batch_size: int) -> tuple[Any, ...]:
        return (torch.randn(batch_size, 32),)


class _Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(10_000, 64), nn.Embedding(10_000, 64)
        self.score = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.score(torch.cat([self.users(user), self.items(item)], dim=1))
        return found


class Recommender(_Client):
    """Two embedding tables and a score of both."""

    def build(self) -> nn.Module:
        return _Recommender()

    def get_example_inputs(self, batch_size: int) -> tuple[Any, ...]:
        return torch.randint(10_000, (batch_size,)), torch.randint(10_000, (batch_size,))


class Digits(_Client):
    """Two convolutions over 28 × 28."""

    def build(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10),
        )  # fmt: skip

    def get_example_inputs(self, batch_size: int) -> tuple[Any, ...]:
        return (torch.randn(batch_size, 1, 28, 28),)


class Encoder(_Client):
    """Two transformer layers over 32 tokens of width 128."""

    def build(self) -> nn.Module:
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def get_example_inputs(self, batch_size: int) -> tuple[Any, ...]:
        return (torch.randn(batch_size, 32, 128),)


class Series(_Client):
    """Dilated convolutions along 256 steps."""

    def build(self) -> nn.Module:
        layers: list[nn.Module] = []
        for level, width in enumerate((8, 32, 32)):
            layers += [nn.Conv1d(width, 32, 3, dilation=2**level), nn.GELU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 4))

    def get_example_inputs(self, batch_size: int) -> tuple[Any, ...]:
        return (torch.randn(batch_size, 8, 256),)


CLIENTS = (Tabular, Recommender, Digits, Encoder, Series)
