"""Plan requests on fleets of several GPU types, with random throughput curves.

A model's throughput on a slice is base · compute^a · the type's factor · noise, with another exponent for each model;
it saturates with the batch size. Models need memory, so small slices may be missing. A model's demand is 0.1 to 1.6
times its rate on the best whole GPU. Equal arguments give equal requests.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torchsplit_core.hardware.catalogue import gpu_type, plain_profiles
from torchsplit_core.values import (
    Colocation,
    FleetEntry,
    Objective,
    PlanModel,
    PlanRequest,
    Point,
    SolverOptions,
    Stage,
    Variant,
)

ONE_TYPE = (("A100-80GB", 1.0),)
TWO_TYPES = (("A100-80GB", 0.5), ("H100-SXM5-80GB", 0.5))
THREE_TYPES = (("A100-40GB", 0.4), ("H100-SXM5-80GB", 0.4), ("A30-24GB", 0.2))
FIVE_TYPES = (
    ("A100-40GB", 0.3),
    ("A100-80GB", 0.2),
    ("H100-SXM5-80GB", 0.2),
    ("A30-24GB", 0.2),
    ("H200-141GB", 0.1),
)
"""GPU types with their shares of the fleet."""

BATCHES = (1, 4, 16, 64)

GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Family:
    """What a request has beyond its size.

    `restricted`: every third entry of the fleet allows only two layouts. `limits`: latency limits. `memory`: points
    state their memory, which tenants of a slice share. `pairs`: number of co-locations of two models.
    """

    types: tuple[tuple[str, float], ...] = THREE_TYPES
    kind: Literal["leximin", "max_min", "weighted_sum", "min_gpus"] = "leximin"
    sharing: Literal["exclusive", "fractional"] = "exclusive"
    costs: bool = False
    restricted: bool = False
    nodes: bool = False
    limits: bool = False
    memory: bool = True
    pairs: int = 0
    pair_mode: Literal["hard", "soft"] = "hard"
    minima: float = 0.0
    tenants: int | None = None
    survives: bool = False


def fleet_instance(
    models: int, gpus: int, *, seed: int = 0, family: Family = Family(), seconds: float = 30.0
) -> PlanRequest:
    """`models` models with random curves on `gpus` GPUs of the family's types."""
    rng = random.Random(f"{models}x{gpus}:{seed}")
    fleet = _fleet(rng, gpus, family)
    factors = {
        name: rng.uniform(0.7, 1.3) * (2.0 if name.startswith("H") else 1.0) for name, _ in family.types
    }
    specs = tuple(_model(rng, f"model-{number}", fleet, factors, family) for number in range(models))
    pairs = rng.sample(range(models), 2 * family.pairs) if family.pairs else []
    return PlanRequest(
        fleet,
        specs,
        colocations=tuple(
            Colocation((specs[a].name, specs[b].name), family.pair_mode)
            for a, b in zip(pairs[::2], pairs[1::2], strict=True)
        ),
        objective=Objective(family.kind, survives=1 if family.survives else 0),
        sharing=family.sharing,
        max_tenants_per_slice=family.tenants,
        solver=SolverOptions(seconds),
    )


def _fleet(rng: random.Random, gpus: int, family: Family) -> tuple[FleetEntry, ...]:
    entries = []
    left = gpus
    for number, (name, share) in enumerate(family.types):
        count = left if number == len(family.types) - 1 else min(left, max(1, round(gpus * share)))
        left -= count
        if not count:
            continue
        cost = round(rng.uniform(0.5, 4.0), 2) if family.costs else None
        sizes = [count]
        if family.nodes:
            sizes = [min(GPUS_PER_NODE, count - first) for first in range(0, count, GPUS_PER_NODE)]
        elif family.restricted and count > 2:
            sizes = [count - count // 3, count // 3]
        for part, size in enumerate(sizes):
            layouts = None
            if family.restricted and part % 3 == 1:
                layouts = _few_layouts(name)
            node = f"{name}-{part}" if family.nodes else None
            entries.append(FleetEntry(name, count=size, layouts=layouts, cost=cost, node=node))
    return tuple(entries)


def _few_layouts(name: str) -> tuple[tuple[str, ...], ...]:
    """Two layouts: equal small slices, and the two largest slices that fit side by side."""
    profiles = {profile.compute_slices: profile.name for profile in reversed(plain_profiles(gpu_type(name)))}
    small = profiles[1]
    if 7 in profiles:
        return ((small,) * 7, (profiles[4], profiles[3]))
    return ((small,) * 4, (profiles[2],) * 2)


def _model(
    rng: random.Random,
    name: str,
    fleet: Sequence[FleetEntry],
    factors: dict[str, float],
    family: Family,
) -> PlanModel:
    base, exponent = 10 ** rng.uniform(1.0, 3.0), rng.uniform(0.55, 1.05)
    need_gib = rng.choice((1.0, 3.0, 5.5, 7.0, 9.0, 14.0))
    by_type = {gpu: factor * rng.uniform(0.8, 1.25) for gpu, factor in factors.items()}
    half = rng.uniform(0.5, 6.0)
    points: list[Point] = []
    whole: dict[str, float] = {}
    for gpu in dict.fromkeys(entry.type for entry in fleet):
        for profile in plain_profiles(gpu_type(gpu)):
            if profile.memory_gib is None or need_gib > profile.memory_gib:
                continue
            top = base * profile.compute_slices**exponent * by_type[gpu] * rng.uniform(0.93, 1.07)
            for batch in BATCHES:
                memory = need_gib * (0.7 + 0.3 * batch / BATCHES[-1])
                rate = top * batch / (batch + half)
                points.append(
                    Point(
                        gpu,
                        profile.name,
                        batch,
                        float(f"{rate:.5g}"),
                        float(f"{1e3 * batch / rate:.5g}"),
                        memory_gib=round(memory, 3) if family.memory else None,
                    )
                )
                whole[gpu] = max(whole.get(gpu, 0.0), rate)
    demand = max(whole.values()) * 10 ** rng.uniform(-1.0, 0.2)
    latencies = sorted(point.latency_ms for point in points)
    return PlanModel(
        name,
        (Variant("whole", (Stage("whole", tuple(points)),)),),
        demand_rps=float(f"{demand:.4g}"),
        min_throughput_rps=float(f"{family.minima * demand:.4g}") if family.minima else None,
        max_latency_ms=latencies[int(len(latencies) * rng.uniform(0.5, 0.9))] if family.limits else None,
    )
