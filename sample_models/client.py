"""What the sample clients share: a size, a seed, a model in eval mode."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class SampleClient(ABC):
    """A SplitClient over a model that is built from a seed, without touching torch's global generator."""

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
