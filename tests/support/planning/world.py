"""Random small requests with links, nodes, intervals and unknown memory."""

import random

from tests.support.planning.requests import A30, LAYOUTS
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


def points(rng: random.Random, base: float) -> tuple[Point, ...]:
    """Up to three batch sizes on some profiles, with an interval or none, of known or unknown memory."""
    found = []
    for name, size in (("1g.6gb", 1), ("2g.12gb", 2), ("4g.24gb", 4)):
        if rng.random() < 0.25:
            continue
        for batch in rng.sample([1, 4, 16], rng.randint(1, 2)):
            rate = round(base * size ** rng.choice([0.5, 1.0]) * batch ** rng.choice([0.0, 0.5]), 2)
            latency = round(1000 * batch / rate, 3)
            low = rng.choice([None, round(rate * rng.uniform(0.5, 1.0), 2)])
            high = rng.choice([None, round(rate * rng.uniform(1.0, 1.5), 2)])
            memory = rng.choice([None, 0.0, 3.0, 8.0])
            found.append(
                Point(A30, name, batch, rate, latency, memory_gib=memory, low_rps=low, high_rps=high)
            )
    return tuple(found)


def cut(rng: random.Random, base: float, parts: int) -> Variant:
    stages = tuple(Stage(f"s{i}", points(rng, base * rng.choice([1.5, 3.0]))) for i in range(parts))
    fixed = tuple(rng.choice([0.0, 0.0, 2e6, 5e7]) for _ in range(parts - 1))
    each = tuple(rng.choice([0.0, 1e5, 2e6, 2e7]) for _ in range(parts - 1))
    return Variant(f"cut{parts}", stages, fixed, cut_bytes_per_request=each if any(each) else ())


def worldly(seed: int, sharing: str) -> PlanRequest:
    """One or two models, at least one of them cut, on one to three A30 of one or two nodes."""
    rng = random.Random(f"world{sharing}{seed}")
    gpus = 1 if sharing == "fractional" else rng.choice([1, 2, 2, 3])
    models = []
    for index in range(1 if gpus == 3 else 2):
        base = rng.choice([5.0, 20.0, 60.0])
        variants = [cut(rng, base, 2 if gpus > 1 or rng.random() < 0.8 else 3)]
        if rng.random() < 0.4:
            variants.insert(0, Variant("whole", (Stage("whole", points(rng, base)),)))
        models.append(PlanModel(
            f"m{index}",
            tuple(variants) if index == 0 else (Variant("whole", (Stage("whole", points(rng, base)),)),),
            weight=rng.choice([1.0, 2.0]),
            demand_rps=rng.choice([1.0, 10.0]),
            min_throughput_rps=rng.choice([None, None, 5.0]),
            max_latency_ms=rng.choice([None, 80.0, 200.0, 600.0]),
            cap_at_demand=rng.random() < 0.2,
        ))  # fmt: skip
    layouts = rng.choice([LAYOUTS[1:2], LAYOUTS[2:], LAYOUTS[1:3]])
    nodes = rng.choice([(None,) * gpus, ("a", "b", "b")[:gpus], ("a", "a", "b")[:gpus]])
    return PlanRequest(
        tuple(FleetEntry(A30, layouts=layouts, node=node) for node in nodes),
        tuple(models),
        objective=Objective(rng.choice(["leximin", "leximin", "max_min", "weighted_sum", "min_gpus"])),
        sharing=sharing,  # type: ignore[arg-type]
        link_gb_per_s=rng.choice([None, 0.002, 0.02, 0.2]),
        network_gb_per_s=rng.choice([None, 0.001, 0.01, 0.1]),
        solver=SolverOptions(30.0, rng.choice(["nominal", "nominal", "low"])),
    )
