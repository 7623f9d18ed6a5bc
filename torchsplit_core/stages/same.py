"""Equal to the bit."""

from __future__ import annotations

from typing import Any

import torch


def same_bits(one: Any, other: Any) -> bool:
    """Whether two results are one to the bit: a NaN equals the same NaN, 0.0 is not -0.0. Numbers by type too."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return bool(torch.equal(_bytes(one), _bytes(other)))
    return type(one) is type(other) and repr(one) == repr(other)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
