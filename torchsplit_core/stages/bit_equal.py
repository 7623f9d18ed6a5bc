"""Comparison of results, to the bit or but for rounding."""

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


def nearly_same(first: Any, second: Any) -> bool:
    """Whether two results are the same but for rounding and dimensions of size 1.

    Floats may differ by the root of their type's epsilon, relative to the largest: other kernels differ by less,
    another way through the model by more.
    """
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return same_bits(first, second)
    if first.dtype != second.dtype or first.squeeze().shape != second.squeeze().shape:
        return False
    first, second = first.squeeze(), second.squeeze()
    if not (first.is_floating_point() or first.is_complex()) or not first.numel():
        return same_bits(first, second)
    tolerance = torch.finfo(first.dtype).eps ** 0.5
    wide = torch.complex128 if first.is_complex() else torch.float64
    first, second = first.detach().to(wide), second.detach().to(wide)
    largest = torch.where(second.isfinite(), second.abs(), 0.0).max().item()
    return bool(torch.allclose(first, second, rtol=tolerance, atol=tolerance * largest, equal_nan=True))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
