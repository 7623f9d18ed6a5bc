"""Small requests over a day."""

import random
from dataclasses import replace

from tests.support.planning.requests import random_request
from torchsplit_core.values import DemandLevels, DemandWindow, PlanModel, PlanRequest

TIMES = {
    1: (("all", "00:00", "24:00"),),
    2: (("night", "20:30", "08:00"), ("day", "08:00", "20:30")),
    3: (("night", "22:00", "07:00"), ("day", "07:00", "18:00"), ("evening", "18:00", "22:00")),
}


def with_windows(model: PlanModel, *figures: tuple[float, float | None]) -> PlanModel:
    """The model with as many windows as there are pairs of demand and minimum."""
    windows = (
        DemandWindow(*times, demand, minimum)
        for times, (demand, minimum) in zip(TIMES[len(figures)], figures, strict=True)
    )
    return replace(model, demand_windows=tuple(windows))


def random_day(seed: int, kind: str) -> PlanRequest:
    """A random small request whose models have two or three windows, some of them without any demand."""
    rng = random.Random(f"day{seed}")
    request, count = random_request(seed, kind), rng.choice([2, 3])
    empty = rng.choice([None, None, 1])
    models = []
    for number, model in enumerate(request.models):
        figures = []
        for window in range(count):
            demand = model.demand_rps * rng.choice([0.25, 0.5, 1.0, 1.0, 2.0])
            least = rng.choice([None, None, 0.0, 2.0, 8.0])
            if number == 0 and window == empty:
                demand, least = 0.0, None
            figures.append((demand, least))
        models.append(with_windows(model, *figures))
    if kind == "min_gpus":
        # A window without any minimum needs no GPU, which no plan says.
        last = models[-1]
        windows = tuple(replace(window, min_throughput_rps=4.0) for window in last.demand_windows)
        models[-1] = replace(last, demand_windows=windows)
    return replace(request, models=tuple(models))


def at_both_rates(request: PlanRequest) -> PlanRequest:
    """The same demands as the p95 of windows whose mean is half of it."""

    def levels(window: DemandWindow) -> DemandWindow:
        assert isinstance(window.demand_rps, int | float)
        return replace(window, demand_rps=DemandLevels(window.demand_rps / 2, window.demand_rps))

    models = (
        replace(model, demand_windows=tuple(map(levels, model.demand_windows))) for model in request.models
    )
    return replace(request, models=tuple(models))
