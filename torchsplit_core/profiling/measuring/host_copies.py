"""Runs with the copies of a server: inputs from pinned host memory, outputs back to it.

Untested on hardware: tested with the processor's memory instead of a GPU's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


def pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    """Host memory shaped like the tensor, pinned so that a GPU reads and writes it directly."""
    return torch.empty_like(tensor, device="cpu", pin_memory=True)


class HostCopies:
    """The copies around one model's runs; the inputs stay at their place on the device.

    The first run, which does not count, allocates the outputs' host memory.
    """

    def __init__(
        self, args: Any, kwargs: Any, host: Callable[[torch.Tensor], torch.Tensor] = pinned_like
    ) -> None:
        self._host = host
        self._inputs = [item for item in pytree.tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
        self._sources = [host(item).copy_(item) for item in self._inputs]
        self._outputs: list[torch.Tensor] = []

    def run_with_copies(self, run: Callable[[], Any]) -> Any:
        """The result of the run, after copying its tensors to the host in the same stream."""
        for target, source in zip(self._inputs, self._sources, strict=True):
            target.copy_(source, non_blocking=True)
        outcome = run()
        output_tensors = [item for item in pytree.tree_leaves(outcome) if isinstance(item, torch.Tensor)]
        if [item.shape for item in output_tensors] != [item.shape for item in self._outputs]:
            self._outputs = [self._host(item) for item in output_tensors]
        for target, source in zip(self._outputs, output_tensors, strict=True):
            target.copy_(source, non_blocking=True)
        return outcome

    @property
    def outputs(self) -> tuple[torch.Tensor, ...]:
        """The host tensors of the last run's outputs, once the device is done."""
        return tuple(self._outputs)
