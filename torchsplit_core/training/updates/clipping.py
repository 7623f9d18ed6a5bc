"""Clip the gradients of a step by their total norm, however the weights are divided over the ranks."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor


def clip_gradients(
    model: nn.Module, max_norm: float, stages: dist.ProcessGroup | None, norms: torch.Tensor | None
) -> float:
    """Scale the gradients so that their total 2-norm is at most `max_norm`; returns the norm before.

    The norm is that of the whole model, as on one process. `stages`: the ranks that hold the other stages of a
    pipeline, None without one. Gradients must be complete: summed over micro-batches, averaged over ranks. `norms`: of
    each gradient of this rank's part, None if they are not known.
    """
    by_mesh: dict[Any, list[torch.Tensor]] = defaultdict(list)
    for parameter in model.parameters():
        if parameter.grad is not None:
            # One operation takes no tensors of several meshes: experts lie on another than the rest.
            by_mesh[parameter.device_mesh if isinstance(parameter, DTensor) else None].append(parameter)
    if norms is not None and set(by_mesh) == {None}:
        # As torch does it, to the bit.
        total = torch.linalg.vector_norm(norms)
    else:
        parts = [
            _whole(nn.utils.get_total_norm([weight.grad for weight in weights]))
            for weights in by_mesh.values()
        ]
        total = (
            parts[0] if len(parts) == 1 else torch.linalg.vector_norm(torch.stack(parts or [torch.zeros(())]))
        )
    if stages is not None:
        squared = total.double() ** 2
        dist.all_reduce(squared, group=stages)
        total = squared.sqrt().to(total.dtype)
    for weights in by_mesh.values():
        nn.utils.clip_grads_with_norm_(weights, max_norm, total)
    return float(total)


def _whole(norm: torch.Tensor) -> torch.Tensor:
    """The norm over all ranks that share the weights."""
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
