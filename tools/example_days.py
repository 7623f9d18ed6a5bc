"""A request whose demand has a night, a day and an evening, and its plans over the day."""

from __future__ import annotations

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
