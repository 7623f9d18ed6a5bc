"""The planner's equality of figures; the verification of a plan has its own."""

from __future__ import annotations

TOLERANCE = 1e-6
"""Relative difference up to which levels, bounds and rates are equal, as in the contract."""


def equal(first: float, second: float) -> bool:
    """Whether both are equal within the tolerance; an infinite one equals only itself."""
    return first == second or abs(first - second) <= TOLERANCE * max(abs(first), abs(second)) < float("inf")
