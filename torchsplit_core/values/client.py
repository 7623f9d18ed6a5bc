"""What a model must offer so that TorchSplit can trace and profile it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class SplitClient(Protocol):
    """A model with example inputs for a batch size.

    `get_model` returns an `nn.Module` in eval mode with deterministic weights.
    `get_example_inputs(batch_size)` returns the positional arguments as a tuple, or
    `(args, kwargs)` with a tuple and a dict; every tensor has the batch in dimension 0.

    A client may also offer `sequence_lengths`, a tuple of whole numbers from 1. Then
    `get_example_inputs(batch_size, sequence_length=N)` returns inputs of N tokens for each N among them.
    """

    batch_sizes: Sequence[int]

    def get_model(self) -> Any: ...

    def get_example_inputs(self, batch_size: int) -> tuple[Any, ...]: ...
