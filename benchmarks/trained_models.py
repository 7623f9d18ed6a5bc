"""Models for the benchmark of training runs: a decoder, and a chain of blocks that can be cut into stages."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = "TRAINING_RUNS_WIDTH"
WORDS, LENGTH, LAYERS = 1000, 64, 4
MEMORY_WIDTH, SMALL_WIDTH = 768, 8
"""Widths of a model that takes more memory than the program, and of one that takes almost none."""


class Decoder(nn.Module):
    """A sequence of transformer layers (attention and products)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Data:
    """Samples by index."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, ...], Tensor]:
        drawn = torch.randint(WORDS, (LENGTH + 1,), generator=torch.Generator().manual_seed(index))
        return (drawn[:-1],), drawn[1:]


class Client:
    """A TrainClient."""

    def get_model(self) -> nn.Module:
        torch.manual_seed(0)
        return Decoder(int(os.environ[WIDTH]))

    def get_dataset(self) -> Data:
        return Data()

    def get_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def get_optimizer(self, parameters: Iterable[nn.Parameter], kind: str) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-4)


class OfWidth(Client):
    """A client of fixed width; also a SplitClient, so that memory can be estimated from its graph."""

    batch_sizes = (1, 2, 4, 8)

    def __init__(self, width: int) -> None:
        self.width = width

    def get_model(self) -> nn.Module:
        torch.manual_seed(0)
        return Decoder(self.width)

    def get_example_inputs(self, batch_size: int) -> tuple[Tensor, ...]:
        return (torch.zeros(batch_size, LENGTH, dtype=torch.long),)


class Chain(nn.Module):
    """A chain of blocks that can be cut into stages; the decoder cannot, since its layers share a computed size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


class Staged(Client):
    """A client of the chain, for training in stages."""

    def get_model(self) -> nn.Module:
        torch.manual_seed(0)
        return Chain(int(os.environ[WIDTH]))


class Untimed(Staged):
    """Ranks do not time blocks, as on GPUs without `--balance`; on cores they do, for the run's page."""

    def get_model(self) -> nn.Module:
        from torchsplit_core.training.pipeline.engine import PipelineEngine

        made = PipelineEngine.__init__

        def untimed(self: PipelineEngine, *given: Any, timed: bool, **named: Any) -> None:
            made(self, *given, timed=False, **named)

        PipelineEngine.__init__ = untimed  # type: ignore[method-assign]
        return super().get_model()


client, staged_client, untimed_client = Client(), Staged(), Untimed()
wide_client, small_client = OfWidth(MEMORY_WIDTH), OfWidth(SMALL_WIDTH)
SOURCE, STAGED, UNTIMED, WIDE, SMALL = (
    f"{Path(__file__).resolve()}:{name}"
    for name in ("client", "staged_client", "untimed_client", "wide_client", "small_client")
)
