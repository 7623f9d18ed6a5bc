"""A run with the copies that a server makes: inputs from pinned memory of the host, outputs back to it.

Untested on hardware: it ran with the processor's memory in the place of a GPU's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


def pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    """Memory of the host like the tensor's, locked so that a GPU reads and writes it itself."""
    return torch.empty_like(tensor, device="cpu", pin_memory=True)


class HostCopies:
    """The copies around one model's run on inputs that stay where they are on the device.

    The outputs' place on the host is made by the first run, which counts for nothing.
    """

    def __init__(
        self, args: Any, kwargs: Any, host: Callable[[torch.Tensor], torch.Tensor] = pinned_like
    ) -> None:
        self._host = host
        self._inputs = [item for item in pytree.tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
        self._sources = [host(item).copy_(item) for item in self._inputs]
        self._outputs: list[torch.Tensor] = []

    def run_with_copies(self, run: Callable[[], Any]) -> Any:
        """What the run returns, its tensors copied to the host in the same stream."""
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
        """The tensors of the last run's outcome on the host, once the device is done."""
        return tuple(self._outputs)
