"""Comparison of results to the bit."""

from __future__ import annotations

from typing import Any

import torch


def same_bits(first: Any, second: Any) -> bool:
    """Whether two results have the same type and bits: a NaN equals the same NaN, 0.0 differs from -0.0."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        if first.dtype != second.dtype or first.shape != second.shape:
            return False
        return bool(torch.equal(_bytes(first), _bytes(second)))
    return type(first) is type(second) and repr(first) == repr(second)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
