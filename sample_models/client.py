"""What the sample clients share: a size, a seed, a model in eval mode, and synthetic data to train it with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

SAMPLES = 64
"""How many samples the synthetic data has."""


class SeededClient(ABC):
    """A SplitClient over a model that is built from a seed, apart from torch's global generator."""

    batch_sizes: tuple[int, ...] = (1, 2, 4, 8)

    def __init__(self, size: str = "small", seed: int = 0) -> None:
        self.large = size == "large"
        self.seed = seed

    @abstractmethod
    def build(self) -> nn.Module:
        """The model with weights from the generator as it stands."""

    @abstractmethod
    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        """Example inputs from the generator as it stands."""

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
    """A SplitClient that is a TrainClient as well, with synthetic data."""

    @abstractmethod
    def draw_target(self, inputs: tuple[Tensor, ...]) -> Any:
        """What the loss compares with, of one sample's inputs (batch 1), from the generator as it stands."""

    @abstractmethod
    def get_loss(self, outputs: Any, targets: Any) -> Tensor:
        """The mean over the samples of a batch."""

    def get_dataset(self) -> SampleData:
        """Synthetic samples, the same for equal seeds."""
        return SampleData(self)

    def get_optimizer(self, parameters: Iterable[nn.Parameter], kind: str) -> torch.optim.Optimizer:
        """AdamW, or gradient descent with momentum."""
        return usual_optimizer(parameters, kind)


def usual_optimizer(parameters: Iterable[nn.Parameter], kind: str) -> torch.optim.Optimizer:
    """What the samples train with: AdamW, or gradient descent with momentum."""
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    return torch.optim.AdamW(parameters, lr=1e-3)


class SampleData:
    """`[i]` is the sample i, drawn from a generator of its own: its inputs without the batch, and its target."""

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
    """A sample whose inputs are tokens, as many as one asks for among `sequence_lengths`."""

    sequence_lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512)

    @property
    @abstractmethod
    def tokens(self) -> int:
        """The length of the examples where none is asked for."""

    @abstractmethod
    def draw_tokens(self, batch_size: int, tokens: int) -> tuple[Tensor, ...]:
        """Example inputs of that many tokens from the generator as it stands."""

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        return self.draw_tokens(batch_size, self.tokens)

    def get_example_inputs(self, batch_size: int, sequence_length: int | None = None) -> tuple[Tensor, ...]:
        """As `SampleClient` gives them, of `sequence_length` tokens where that is given."""
        if sequence_length is None:
            return super().get_example_inputs(batch_size)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + 1)
            return self.draw_tokens(batch_size, sequence_length)
