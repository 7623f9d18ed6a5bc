"""Random small requests that use every field of the contract, and the published A30 example."""

import random
from dataclasses import replace

from torchsplit_core.values import (
    WHOLE_GPU,
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

A30 = "A30-24GB"
PROFILES = {"1g.6gb": 1, "2g.12gb": 2, "4g.24gb": 4}
LAYOUTS = (("1g.6gb",) * 4, ("2g.12gb", "2g.12gb"), ("1g.6gb", "1g.6gb", "2g.12gb"), ("4g.24gb",))


def points(rng: random.Random, base: float, most: int) -> tuple[Point, ...]:
    """One or two points on some of the profiles of an A30, larger slices mostly faster."""
    found = []
    for name, size in PROFILES.items():
        if rng.random() < 0.2:
            continue
        for batch in range(1, rng.randint(1, most) + 1):
            rate = round(
                base * size ** rng.choice([0.3, 0.7, 1.0, 1.2]) * (1 + 0.3 * batch), rng.choice([0, 2])
            )
            latency = float(rng.choice([5, 10, 20, 30]) * batch)
            memory = rng.choice([None, 0.0, 3.0, 5.0, 8.0, 14.0])
            found.append(Point(A30, name, batch, rate, latency, memory_gib=memory))
    return tuple(found)


def model(rng: random.Random, name: str, most: int, cuts: bool) -> PlanModel:
    """A model with one variant, or with a cut one beside it, and any of the demands."""
    base = rng.choice([3.0, 10.0, 10.0, 40.0])
    variants = [Variant("whole", (Stage("whole", points(rng, base, most)),))]
    if cuts and rng.random() < 0.6:
        stages = (
            Stage("first", points(rng, base * 2, 1)),
            Stage("second", points(rng, base * rng.choice([1.5, 2.5]), 1)),
        )
        cut = Variant("cut", stages, (rng.choice([0.0, 1e6, 1e7]),))
        variants = [cut] if rng.random() < 0.4 else [*variants, cut]
    return PlanModel(
        name, tuple(variants), weight=rng.choice([1.0, 1.0, 2.0, 0.5]),
        demand_rps=rng.choice([1.0, 1.0, 10.0, 25.0]),
        min_throughput_rps=rng.choice([None, None, None, 5.0, 15.0]),
        max_latency_ms=rng.choice([None, None, 15.0, 25.0, 45.0]), cap_at_demand=rng.random() < 0.25,
    )  # fmt: skip


def random_request(seed: int, kind: str, sharing: str = "exclusive") -> PlanRequest:
    """A request of one or two A30 with two or three models."""
    rng = random.Random(f"{kind}{seed}")
    two = rng.random() < 0.5
    count = 2 if two else rng.choice([2, 3])
    models = [model(rng, f"m{i}", 1 if two else 2, cuts=True) for i in range(count)]
    if kind == "min_gpus":
        models = [
            PlanModel(
                m.name, m.variants, m.weight, m.demand_rps, rng.choice([None, 5.0, 15.0]), m.max_latency_ms
            )
            for m in models
        ]
    offered = rng.choice([None, None, LAYOUTS[:2], LAYOUTS[2:], LAYOUTS[:1]])
    fleet: tuple[FleetEntry, ...] = (FleetEntry(A30, layouts=offered, cost=rng.choice([1.0, 3.0])),)
    if two:
        fleet = (FleetEntry(A30, count=2),) if rng.random() < 0.5 else (*fleet, FleetEntry(A30, id="mine"))
    pairs: tuple[Colocation, ...] = ()
    draw = rng.random()
    if draw < 0.3:
        pairs = (Colocation(("m0", "m1"), "hard"),)
    elif draw < 0.5:
        pairs = (Colocation(("m0", f"m{count - 1}"), "soft", rng.choice([1.0, 1e6])),)
    weight = rng.choice([0.0, 0.0, 1e-6, 0.5]) if pairs and pairs[0].mode == "soft" else 0.0
    gamma = rng.choice([None, None, None, 0.0, 0.1, 2.0])
    return PlanRequest(
        fleet,
        tuple(models),
        pairs,
        Objective(kind, gamma, weight),  # type: ignore[arg-type]
        sharing,  # type: ignore[arg-type]
        rng.choice([None, 1.0, 12.0]),
        solver=SolverOptions(30.0),
    )


def simple(
    name: str,
    rates: dict[str, float],
    *,
    latency_ms: float = 10.0,
    memory_gib: float | None = 0.0,
    **demands: object,
) -> PlanModel:
    """A model run whole on A30 slices: requests/s by profile."""
    points = (Point(A30, p, 1, rate, latency_ms, memory_gib=memory_gib) for p, rate in rates.items())
    return whole_model(name, tuple(points), **demands)


def whole_model(name: str, points: tuple[Point, ...], **demands: object) -> PlanModel:
    """A model that only runs whole."""
    return PlanModel(name, (Variant("whole", (Stage("whole", points),)),), **demands)  # type: ignore[arg-type]


def on_a30(*models: PlanModel, **options: object) -> PlanRequest:
    """A request of these models on one entry of A30s: `options` of the entry or of the request."""
    entry = {name: options.pop(name) for name in ("count", "layouts", "cost") if name in options}
    return PlanRequest((FleetEntry(A30, **entry),), models, **options)  # type: ignore[arg-type]


def published(count: int = 2, **options: object) -> PlanRequest:
    """The A30 study's four models: two GPUs give 7.8, 26, 71 and 5333 requests/s exclusively."""
    rates = {
        "audio recognition": {"2g.12gb": 71.0, "4g.24gb": 125.0},
        "encoder": {"1g.6gb": 5333.0, "2g.12gb": 6083.0, "4g.24gb": 7555.0},
        "text check": {"1g.6gb": 26.0, "2g.12gb": 45.0, "4g.24gb": 92.0},
        "text to speech": {"2g.12gb": 3.9, "4g.24gb": 4.82},
    }
    models = tuple(simple(name, by_profile) for name, by_profile in rates.items())
    return PlanRequest((FleetEntry(A30, count=count),), models, **options)  # type: ignore[arg-type]


def with_tiers(request: PlanRequest, seed: int) -> PlanRequest:
    """The request with tiers that differ, and demands of which slices can carry some and not all."""
    rng = random.Random(f"tiers{seed}")
    ranks = [*rng.sample([0, 1, 1000], 2), rng.choice([0, 1, 2])]
    models = tuple(
        replace(one, tier=rank, demand_rps=rng.choice([one.demand_rps, 10.0, 25.0, 60.0]))
        for one, rank in zip(request.models, ranks, strict=False)
    )
    return replace(request, models=models)


def with_another_type(request: PlanRequest) -> PlanRequest:
    """The request with a GPU without MIG beside those of its fleet, which runs every stage at 0.8 of a whole A30."""
    models = []
    for model in request.models:
        variants = []
        for variant in model.variants:
            stages = []
            for stage in variant.stages:
                whole = next((point for point in stage.points if point.profile == "4g.24gb"), None)
                other = () if whole is None else (_on_another(whole),)
                stages.append(replace(stage, points=(*stage.points, *other)))
            variants.append(replace(variant, stages=tuple(stages)))
        models.append(replace(model, variants=tuple(variants)))
    return replace(request, gpus=(*request.gpus[:1], FleetEntry("L4-24GB")), models=tuple(models))


def _on_another(point: Point) -> Point:
    return replace(
        point, gpu_type="L4-24GB", profile=WHOLE_GPU, throughput_rps=round(0.8 * point.throughput_rps, 2)
    )
