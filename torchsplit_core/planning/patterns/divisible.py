"""Prices of slices from continuous shares of all pools (share_program.py), where column generation begins.

The program has one solution for all types of the fleet, so its prices weigh them against each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchsplit_core.planning.patterns.capacity import FleetCapacity, Vector
from torchsplit_core.planning.patterns.options import ModelOptions
from torchsplit_core.planning.patterns.share_program import OutOfScale, Share, ShareDemand, ShareProgram
from torchsplit_core.planning.request.objective import TierGroup
from torchsplit_core.solver.highs import run

MOST_SHARES = 60_000
"""Shares above which the program would take longer than it saves."""


def divisible_prices(
    capacity: FleetCapacity,
    options: Sequence[ModelOptions],
    units: Vector,
    minima: Vector,
    rising: Sequence[int],
) -> Vector | None:
    """Prices by pool at the highest level that all `rising` models (indices) reach with divisible slices.

    `units[m]`: requests/s for a level of 1; `minima[m]`: requests/s. None if the program is too large or has no
    solution.
    """
    shares: list[Share] = []
    owners: list[int] = []
    for model, model_options in enumerate(options):
        for option in model_options.options:
            for number, stage in enumerate(option.stages):
                usable = np.flatnonzero(stage.rates > 0).tolist()
                shares += [Share(len(owners), number, pool, float(stage.rates[pool])) for pool in usable]
            owners.append(model)
    if not shares or len(shares) > MOST_SHARES:
        return None
    demand = ShareDemand(units, np.full(len(units), np.inf), minima, (TierGroup(tuple(rising)),))
    try:
        program = ShareProgram(demand, owners, shares, np.zeros(len(capacity.pools)), capacity)
    except OutOfScale:
        return None
    program.set_floors(program.floors, np.isin(np.arange(len(units)), rising))
    if run(program.highs) != "optimal":
        return None
    prices = program.pool_prices()
    return prices if prices.any() else None
