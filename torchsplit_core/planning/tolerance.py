"""When two figures of plans are equal, told once for the planner; the check of a plan keeps its own."""

from __future__ import annotations

TOLERANCE = 1e-6
"""Relative: what a level, a bound or a rate may differ by and still be the same, as the contract has it."""


def equal(first: float, second: float) -> bool:
    """Whether both are the same within the tolerance; infinite only where both are."""
    return first == second or abs(first - second) <= TOLERANCE * max(abs(first), abs(second)) < float("inf")
