"""A request whose demand has a night, a day and an evening, its plans over the day, and a trace to simulate them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace

from torchsplit_core.values import DemandWindow, FleetEntry, Objective, PlanModel, PlanRequest
from torchsplit_core.values.plan.prices import GpuPrice, PriceTable

TIMES = (("night", "22:00", "07:00"), ("day", "07:00", "18:00"), ("evening", "18:00", "22:00"))
SHARES = {"bert": (0.1, 1.0, 0.5), "mobilenetv2": (0.25, 1.0, 1.0), "resnet50": (0.15, 0.6, 1.0)}
"""Of the largest demand, window by window: made up."""
LARGEST = 6.0
"""Times the published demand of the mix."""


def example_prices() -> PriceTable:
    """How a table of prices looks: made up, and labelled as an example, so that nothing uses it."""
    note = "an example: nobody's price"
    return PriceTable(
        "EUR",
        (
            GpuPrice("A100-80GB", 1.0, "2026-11-20", note, example=True),
            GpuPrice("H100-SXM5-80GB", 2.0, "2026-11-20", note, example=True),
        ),
    )


def day_request(mix: PlanRequest) -> PlanRequest:
    """The models of a mix on the fewest of six priced GPUs, each demand the minimum of its window."""

    def over_the_day(model: PlanModel) -> PlanModel:
        windows = []
        for (name, start, end), share in zip(TIMES, SHARES[model.name], strict=True):
            rate = round(LARGEST * share * model.demand_rps, 1)
            windows.append(DemandWindow(name, start, end, rate, rate))
        return replace(model, demand_windows=tuple(windows))

    return replace(
        mix,
        gpus=(FleetEntry("A100-80GB", count=6, cost=2.0),),
        models=tuple(map(over_the_day, mix.models)),
        objective=Objective("min_gpus"),
    )


STEP_S = 600


def day_trace(request: PlanRequest) -> Iterator[tuple[str, ...]]:
    """Rows of a trace of demand: every ten minutes of each window between about half and all of what it plans for."""
    rng = random.Random(0)
    yield ("time_s", *(model.name for model in request.models))
    for step in range(24 * 3600 // STEP_S):
        minute = step * STEP_S // 60
        level = 0.75 + 0.2 * math.sin(step / 5)
        rates = [
            float(window.rate_rps("mean")) * level * rng.uniform(0.97, 1.03)
            for model in request.models
            for window in model.demand_windows
            if (minute - window.minutes[0]) % (24 * 60) < window.minutes[1]
        ]
        yield (str(step * STEP_S), *(f"{rate:.4g}" for rate in rates))
