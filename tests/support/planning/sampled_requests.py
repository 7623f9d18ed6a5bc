"""Small random requests whose objective reads demand samples."""

import random
from dataclasses import replace

from tests.support.planning.requests import random_request
from torchsplit_core.values import Objective, PlanRequest

SHARES = (0.3, 0.5, 0.75, 0.9, 1.0)


def sampled(seed: int, kind: str, sharing: str = "exclusive") -> PlanRequest:
    """A request of one or two A30 with 1 to 9 samples, some equal, some dominated, some with zeros.

    With whole slices it is now and then free of co-locations, so that both ways of the planner are taken.
    """
    rng = random.Random(f"samples{kind}{seed}{sharing}")
    request = random_request(seed, "min_gpus", sharing)
    count = rng.randint(1, 9)
    models = []
    for model in request.models:
        rates = [point.throughput_rps for point in model.points] or [5.0]
        entries = [
            round(rng.choice(rates) * rng.choice([0.0, 0.3, 0.7, 1.0, 1.0, 1.5, 2.4]), 2)
            for _ in range(count)
        ]
        models.append(replace(model, demand_samples=tuple(entries)))
    share = rng.choice(SHARES) if kind == "min_gpus" else None
    objective = Objective(kind, attainment=share)  # type: ignore[arg-type]
    if kind == "min_gpus":
        objective = replace(request.objective, attainment=share)
    pairs = () if rng.random() < 0.4 else request.colocations
    return replace(request, models=tuple(models), objective=objective, colocations=pairs)
