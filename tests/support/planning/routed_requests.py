"""Random small requests with routed co-locations: of models and stages, on equal GPUs and on two types."""

import random
from dataclasses import replace

from tests.support.planning.requests import A30, LAYOUTS, model, random_request
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

T4 = "T4-16GB"


def routed(seed: int, kind: str) -> PlanRequest:
    """Whole slices of two GPUs: all that `random_request` has, and members that hand requests on."""
    rng = random.Random(f"routed{kind}{seed}")
    request = random_request(seed, kind)
    count = rng.choice([2, 2, 3])
    models = [model(rng, f"m{i}", 1, cuts=count == 2) for i in range(count)]
    models = [replace(model, demand_rps=rng.choice([5.0, 10.0, 25.0, 60.0])) for model in models]
    if kind == "min_gpus":
        models = [replace(model, cap_at_demand=False) for model in models]
    fleet: tuple[FleetEntry, ...] = (
        FleetEntry(A30, count=2, layouts=LAYOUTS if count == 2 else LAYOUTS[1::2]),
    )
    if rng.random() < 0.4:
        fleet = (FleetEntry(A30, layouts=LAYOUTS[:2]), FleetEntry(T4, cost=2.0))
        models = [_also_on_a_t4(rng, model) for model in models]
    pairs = [_routed(rng, models)]
    draw = rng.random()
    if draw < 0.15:
        pairs.append(Colocation(("m0", "m1"), "hard"))
    elif draw < 0.3:
        pairs.append(Colocation(("m0", "m1"), "soft", rng.choice([1.0, 1e3, 1e6])))
    weight = rng.choice([0.0, 0.0, 0.0, 1e-6, 1e-4])
    return replace(
        request, gpus=fleet, models=tuple(models), colocations=tuple(pairs),
        objective=replace(request.objective, separation_weight=weight, memory_violation_penalty=None),
    )  # fmt: skip


def routed_shares(seed: int, kind: str) -> PlanRequest:
    """Shares of two GPUs, without memory and limits, so that every tenant may stand on every slice."""
    rng = random.Random(f"shares{kind}{seed}")
    count = rng.choice([2, 2, 3])
    models = []
    for i in range(count):
        base = rng.choice([3.0, 10.0, 40.0])
        rates = {name: round(base * size ** rng.choice([0.5, 1.0, 1.2]), 1) for name, size in SIZES.items()}
        found = tuple(Point(A30, name, 1, rate, 10.0, memory_gib=0.0) for name, rate in rates.items())
        found += (Point(T4, WHOLE_GPU, 1, round(base * rng.uniform(1.0, 3.0), 1), 10.0, memory_gib=0.0),)
        models.append(PlanModel(
            f"m{i}", (Variant("whole", (Stage("whole", found),)),),
            demand_rps=rng.choice([5.0, 10.0, 25.0, 60.0]), cap_at_demand=rng.random() < 0.2,
        ))  # fmt: skip
    two = FleetEntry(T4) if rng.random() < 0.5 else FleetEntry(A30, layouts=LAYOUTS[3:])
    return PlanRequest(
        (FleetEntry(A30, layouts=(LAYOUTS[1], LAYOUTS[3])), two),
        tuple(models),
        (Colocation(tuple(model.name for model in models), "routed", rng.choice([1.0, 1e3, 1e6])),),
        Objective(kind),  # type: ignore[arg-type]
        "fractional",
        solver=SolverOptions(20.0),
    )


SIZES = {"2g.12gb": 2, "4g.24gb": 4}


def _also_on_a_t4(rng: random.Random, one: PlanModel) -> PlanModel:
    """The model with a point of every stage on a whole T4."""

    def more(stage: Stage) -> Stage:
        rate, latency = rng.choice([5.0, 12.5, 30.0, 80.0]), float(rng.choice([5, 10, 20]))
        return replace(stage, points=(*stage.points, Point(T4, WHOLE_GPU, 1, rate, latency, memory_gib=1.0)))

    return replace(one, variants=tuple(replace(v, stages=tuple(map(more, v.stages))) for v in one.variants))


def _routed(rng: random.Random, models: list[PlanModel]) -> Colocation:
    """All models in a row, or a stage in the place of its model, or two stages of one."""
    names = [model.name for model in models]
    cut = [model.name for model in models if any(len(v.stages) > 1 for v in model.variants)]
    draw = rng.random()
    if cut and draw < 0.3:
        names = [f"{cut[0]}/first", f"{cut[0]}/cut.second"]
    elif cut and draw < 0.5:
        names[names.index(cut[0])] = f"{cut[0]}/{rng.choice(['first', 'second'])}"
    return Colocation(tuple(names), "routed", rng.choice([1.0, 1e3, 1e6]))
