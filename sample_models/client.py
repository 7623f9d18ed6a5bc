"""Base classes of the sample clients: size, seed, model in eval mode, and synthetic training data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

SAMPLES = 64
"""Number of synthetic samples."""


class SeededClient(ABC):
    """A SplitClient whose model is built from a seed, without changing torch's global generator."""

    batch_sizes: tuple[int, ...] = (1, 2, 4, 8)

    def __init__(self, size: str = "small", seed: int = 0) -> None:
        self.large = size == "large"
        self.seed = seed

    @abstractmethod
    def build(self) -> nn.Module:
        """Build the model with weights from torch's generator, which the caller has seeded."""

    @abstractmethod
    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        """Draw example inputs from torch's generator, which the caller has seeded."""

    def get_model(self) -> nn.Module:
        """The model in eval mode; equal for equal seeds."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self.build().eval()

    def get_example_inputs(self, batch_size: int) -> tuple[Tensor, ...]:
        """The positional arguments, each with `batch_size` in dimension 0; equal for equal seeds."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + 1)
            return self.draw(batch_size)


class SampleClient(SeededClient):
    """A SplitClient that is also a TrainClient, with synthetic data."""

    @abstractmethod
    def draw_target(self, inputs: tuple[Tensor, ...]) -> Any:
        """Draw the target for one sample's inputs (batch 1) from torch's generator, which the caller has seeded."""

    @abstractmethod
    def get_loss(self, outputs: Any, targets: Any) -> Tensor:
        """The mean loss over the samples of a batch."""

    def get_dataset(self) -> SampleData:
        """Synthetic samples; equal for equal seeds."""
        return SampleData(self)

    def get_optimizer(self, parameters: Iterable[nn.Parameter], kind: str) -> torch.optim.Optimizer:
        """AdamW, or for kind "sgd" gradient descent with momentum."""
        return usual_optimizer(parameters, kind)


def usual_optimizer(parameters: Iterable[nn.Parameter], kind: str) -> torch.optim.Optimizer:
    """The optimizer of the samples: AdamW, or for kind "sgd" gradient descent with momentum."""
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    return torch.optim.AdamW(parameters, lr=1e-3)


class SampleData:
    """`[i]` is sample i, drawn from its own seed: its inputs without the batch dimension, and its target."""

    def __init__(self, client: SampleClient) -> None:
        self.client = client

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, ...], Any]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.client.seed * 1_000_003 + 2 + index)
            inputs = self.client.draw(1)
            return tuple(one[0] for one in inputs), self.client.draw_target(inputs)


class SequenceClient(SampleClient):
    """A sample model with token inputs, of any length in `sequence_lengths`."""

    sequence_lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512)

    @property
    @abstractmethod
    def tokens(self) -> int:
        """The default length of the example inputs."""

    @abstractmethod
    def draw_tokens(self, batch_size: int, tokens: int) -> tuple[Tensor, ...]:
        """Draw example inputs of that many tokens from torch's generator, which the caller has seeded."""

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        return self.draw_tokens(batch_size, self.tokens)

    def get_example_inputs(self, batch_size: int, sequence_length: int | None = None) -> tuple[Tensor, ...]:
        """Example inputs as in `SampleClient`, of `sequence_length` tokens (None: `tokens`)."""
        if sequence_length is None:
            return super().get_example_inputs(batch_size)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + 1)
            return self.draw_tokens(batch_size, sequence_length)
