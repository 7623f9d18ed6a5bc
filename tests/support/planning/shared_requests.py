"""Small requests with shared slices."""

import random

from tests.support.planning.requests import A30, model
from torchsplit_core.values import FleetEntry, Objective, PlanRequest, SolverOptions


def small(seed: int, kind: str) -> PlanRequest:
    """Two models on one A30 with limits on latency, memory or tenants."""
    rng = random.Random(f"shared{seed}")
    models = tuple(model(rng, f"m{i}", 1, cuts=seed % 3 == 0) for i in range(2))
    layouts = rng.choice([
        (("2g.12gb", "2g.12gb"), ("4g.24gb",)),
        (("1g.6gb", "1g.6gb", "2g.12gb"),),
        (("4g.24gb",), ("1g.6gb", "2g.12gb")),
    ])  # fmt: skip
    return PlanRequest(
        (FleetEntry(A30, layouts=layouts),),
        models,
        objective=Objective(kind),  # type: ignore[arg-type]
        sharing="fractional",
        link_gb_per_s=rng.choice([None, 1.0]),
        max_tenants_per_slice=rng.choice([None, None, 2, 1]),
        solver=SolverOptions(20.0),
    )
