"""Plan requests of any size for the planner's benchmarks, drawn from the measured A100 library.

Every model is one of the eleven measured networks under another name. Its demand is drawn log-uniformly around what
its share of the fleet can serve, so that models differ by a factor of about ten. Equal arguments give equal requests.
"""

from __future__ import annotations

import random
from typing import Literal

from torchsplit_core.profiling.library import (
    LATENCY_SHARE_OF_SLO,
    LIBRARY_GPU,
    MAX_PROCESSES_PER_SLICE,
    library_profiles,
)
from torchsplit_core.values import (
    FleetEntry,
    Objective,
    PlanModel,
    PlanRequest,
    Point,
    Profile,
    SolverOptions,
    Stage,
    Variant,
)

SLO_MS = (113.0, 138.0, 167.0, 204.5, 282.0, 396.5)
"""End-to-end objectives of the published mixes' vision models."""


def instance(
    models: int,
    gpus: int,
    *,
    seed: int = 0,
    kind: Literal["leximin", "max_min", "weighted_sum", "min_gpus"] = "leximin",
    sharing: Literal["exclusive", "fractional"] = "exclusive",
    limits: bool = False,
    seconds: float = 60.0,
) -> PlanRequest:
    """`models` models on `gpus` A100-80GB; `limits` adds the latency objectives of the mixes."""
    rng = random.Random(f"{models}x{gpus}:{seed}")
    profiles = library_profiles()
    specs = []
    for number in range(models):
        profile = profiles[number % len(profiles)] if number < len(profiles) else rng.choice(profiles)
        limit = LATENCY_SHARE_OF_SLO * rng.choice(SLO_MS) if limits else None
        if limits and "bert" in profile.source:
            limit = LATENCY_SHARE_OF_SLO * 4294.0
        points = _points(profile, limit)
        best = max(point.throughput_rps for point in points if point.profile == "7g.80gb")
        demand = best * gpus / models * 10 ** rng.uniform(-0.5, 0.5)
        name = f"{profile.source.removeprefix('library:')}-{number}"
        variant = Variant("whole", (Stage("whole", points),))
        specs.append(PlanModel(name, (variant,), demand_rps=float(f"{demand:.4g}"), max_latency_ms=limit))
    return PlanRequest(
        (FleetEntry(LIBRARY_GPU, count=gpus),),
        tuple(specs),
        objective=Objective(kind),
        sharing=sharing,
        solver=SolverOptions(seconds),
    )


def _points(profile: Profile, limit_ms: float | None) -> tuple[Point, ...]:
    return tuple(
        Point(
            row.gpu_type,
            row.profile or "",
            row.batch_size,
            row.throughput_rps,
            row.latency_ms,
            row.processes,
            row.memory_gib,
            row.basis,
        )
        for row in profile.rows
        if row.processes <= MAX_PROCESSES_PER_SLICE and (limit_ms is None or row.latency_ms < limit_ms)
    )
