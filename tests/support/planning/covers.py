"""Minimal covers by looking at every choice of counts."""

from itertools import product

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.patterns.covers.knapsack_cover import DEMAND_SLACK

EDGE = 1e-6
"""Relative distance from a limit within which either answer is right."""


def minimal_covers(rates: NDArray[np.float64], demand: float, most: NDArray[np.int64]) -> NDArray[np.int64]:
    """Every choice of counts that meets the demand, and no longer without any one of its slices."""
    grid = np.array(list(product(*(range(count + 1) for count in most))), dtype=np.int64)
    reached, need = grid @ rates, demand * (1 - DEMAND_SLACK)
    smallest = np.where(grid > 0, rates, np.inf).min(axis=1)
    least: NDArray[np.int64] = grid[(reached >= need - 1e-12) & (reached - smallest < need - 1e-12)]
    return least
