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
