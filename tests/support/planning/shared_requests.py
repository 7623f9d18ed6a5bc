"""Small requests with shared slices."""

import random

from tests.support.planning.requests import A30, model
from torchsplit_core.values import (
    FleetEntry,
    Objective,
    PlanModel,
    PlanRequest,
    Point,
    SolverOptions,
    Stage,
    Variant,
)


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


def crowded(seed: int) -> PlanRequest:
    """Two or three models on one A30, with coarse latencies and memories, so that shares meet thirds and halves."""
    rng = random.Random(f"crowded{seed}")
    layouts = rng.choice([(("4g.24gb",),), (("2g.12gb", "2g.12gb"),)])
    sizes = {"4g.24gb": 24, "2g.12gb": 12}
    models = []
    for number in range(rng.choice((2, 3))):
        points = tuple(
            Point(A30, name, batch, float(rng.randint(5, 40) * batch), 10.0 * rng.randint(1, 6),
                  memory_gib=rng.choice((None, *(sizes[name] / part for part in (2, 2, 3, 4, 6)))))
            for name in dict.fromkeys(layouts[0])
            for batch in (1, 2)
        )  # fmt: skip
        limit = rng.choice((None, 60.0, 60.0, 90.0, 120.0))
        variant = Variant("whole", (Stage("whole", points),))
        models.append(
            PlanModel(f"m{number}", (variant,), demand_rps=10.0 * rng.randint(1, 6), max_latency_ms=limit)
        )
    return PlanRequest(
        (FleetEntry(A30, layouts=layouts),),
        tuple(models),
        objective=Objective("max_min"),
        sharing="fractional",
        max_tenants_per_slice=rng.choice((None, None, 2)),
    )
