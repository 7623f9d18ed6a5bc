"""The search by patterns of a request, as the planner builds it."""

import numpy as np

from torchsplit_core.planning.patterns.capacity import fleet_capacity
from torchsplit_core.planning.patterns.feasibility import LevelDemand, PatternSearch
from torchsplit_core.planning.patterns.options import build_options
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.values import PlanRequest


def searching(request: PlanRequest) -> PatternSearch | None:
    """What the planner asks its questions to; None where there is nothing to search."""
    problem = build_problem(request)
    supply = fleet_capacity(problem)
    if not len(supply.pools):
        return None
    options = build_options(problem, supply)
    assert options is not None
    models = request.models
    units = np.array([spec.weight * spec.demand_rps for spec in models])
    minima = np.array([spec.min_throughput_rps or 0.0 for spec in models])
    caps = np.array([spec.demand_rps if spec.cap_at_demand else np.inf for spec in models]) / units
    # The whole fleet for one model, each of its stages by itself.
    alone = [
        max(
            (min(supply.worth(stage.rates) for stage in option.stages) for option in mine.options),
            default=0.0,
        )
        for mine in options
    ]
    tiers = np.array([spec.tier for spec in models])
    demands = LevelDemand(units, minima, caps, np.minimum(caps, np.array(alone) / units), tiers)
    most = np.tile(supply.max_slices, (len(models), 1))
    return PatternSearch(supply, options, demands, 1.0 / np.maximum(supply.max_slices, 1), most)
