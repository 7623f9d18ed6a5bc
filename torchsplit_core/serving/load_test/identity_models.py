"""Models that return their input, so that a request costs nothing but its way. Needs torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Small:
    """64 bytes in, 64 bytes out."""

    batch_sizes = (1,)
    floats = 16

    def get_model(self) -> nn.Module:
        """The identity."""
        return nn.Identity()

    def get_example_inputs(self, batch_size: int) -> tuple[Tensor, ...]:
        """One tensor of zeros."""
        return (torch.zeros(batch_size, self.floats),)


class Large(Small):
    """256 KiB in, 256 KiB out."""

    floats = 65_536
