"""Puts windows cut from a trace of demand into a plan request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.tables.demand_trace.trace_csv import DemandTrace
from torchsplit_core.tables.demand_trace.window_cut import (
    DayCut,
    DaySlots,
    WindowDemand,
    cut_day,
    slots_of_day,
    window_levels,
)
from torchsplit_core.values import (
    DemandLevels,
    DemandWindow,
    InputFault,
    PlanModel,
    PlanRequest,
    quoted,
    suggestion,
)


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """How many windows, of which demand, with bounds at multiples of `slot_s`; `scale`: times the trace, by model, for
    all others under None."""

    windows: int
    demand: WindowDemand = "largest"
    slot_s: int | None = None
    scale: Mapping[str | None, float] | None = None


def trace_of_models(
    trace: DemandTrace,
    request: PlanRequest,
    entries: Sequence[tuple[str, str]],
    scale: Mapping[str | None, float] | None = None,
) -> tuple[DemandTrace, tuple[str, ...]]:
    """The trace by model, scaled, and notes: `entries` are (column, model), else a column is the model of its name.

    Raises InputFault for an unknown column or model, a model of two columns, and if no column is a model.
    """
    models = [model.name for model in request.models]
    chosen: dict[str, str] = {}
    for column, model in entries:
        if column not in trace.rates:
            raise InputFault(
                "--map",
                f"the trace has no column {quoted(column)}",
                suggestion(column, trace.rates, "columns"),
            )
        if model not in models:
            raise InputFault(
                "--map", f"the request has no model {quoted(model)}", suggestion(model, models, "models")
            )
        if model in chosen.values():
            raise InputFault("--map", f"gives {quoted(model)} two columns", "Give a model one column.")
        chosen[column] = model
    for column in trace.rates:
        if column in models and column not in chosen and column not in chosen.values():
            chosen[column] = column
    if not chosen:
        raise InputFault(
            "--map",
            f"is missing: the columns {', '.join(trace.rates)} are none of the models {', '.join(models)}",
            "Say which column is which model, --map COLUMN=MODEL.",
        )
    factors = dict(scale or {})
    for name in factors:
        if name is not None and name not in chosen.values():
            raise InputFault(
                "--scale", f"no column is {quoted(name)}", suggestion(name, chosen.values(), "models")
            )
    rates = {
        model: tuple(
            None if rate is None else rate * factors.get(model, factors.get(None, 1.0))
            for rate in trace.rates[column]
        )
        for column, model in chosen.items()
    }
    return replace(trace, rates=rates), tuple(_notes(trace, rates, chosen, models))


def _notes(
    trace: DemandTrace,
    rates: Mapping[str, Sequence[float | None]],
    chosen: Mapping[str, str],
    models: Sequence[str],
) -> list[str]:
    notes = []
    left_out = [column for column in trace.rates if column not in chosen]
    if left_out:
        notes.append(f"columns that are no model: {', '.join(left_out)}")
    for model in models:
        if model not in rates:
            notes.append(f"{model} has no column: its demand_rps stands in every window")
            continue
        holes, zeros = (sum(rate == value for rate in rates[model]) for value in (None, 0.0))
        if holes:
            notes.append(f"{model}: {holes} of {trace.moments} moments have no value; they are not counted")
        if zeros:
            notes.append(
                f"{model}: {zeros} of {trace.moments} moments have a demand of 0, and are counted so"
            )
    return notes


def without_zeros(trace: DemandTrace) -> DemandTrace:
    """The trace with every zero a hole, for services that are never without demand."""
    return replace(
        trace, rates={name: tuple(rate or None for rate in rates) for name, rates in trace.rates.items()}
    )


def with_trace_windows(
    request: PlanRequest, trace: DemandTrace, settings: WindowSettings, *, peak: bool = False
) -> tuple[PlanRequest, DayCut]:
    """The request with `demand_windows` cut from a trace whose names are those of models, and the cut.

    Models without a column have their demand_rps in all windows. With `peak` demand_rps is the largest rate of a
    window. Raises InputFault as `slots_of_day` and `cut_day` do.
    """
    slots = slots_of_day(trace, settings.slot_s or trace.step_s)
    cut = cut_day(slots, settings.windows, settings.demand)
    levels = window_levels(slots, cut, settings.demand)
    times = [_times(slots, *window) for window in cut.windows]

    def filled(model: PlanModel) -> PlanModel:
        windows = tuple(
            DemandWindow(f"{start}-{end}", start, end, demands.get(model.name, model.demand_rps))
            for (start, end), demands in zip(times, levels, strict=True)
        )
        changed = replace(model, demand_windows=windows)
        largest = max(_highest(window) for window in windows)
        return replace(changed, demand_rps=largest) if peak and largest > 0 else changed

    return replace(request, models=tuple(map(filled, request.models))), cut


def _highest(window: DemandWindow) -> float:
    demand = window.demand_rps
    return max(demand.mean, demand.p95) if isinstance(demand, DemandLevels) else demand


def _times(slots: DaySlots, first: int, length: int) -> tuple[str, str]:
    minutes = (first * slots.slot_s // 60, (first + length) * slots.slot_s // 60 % (24 * 60))
    start, end = (f"{minute // 60:02}:{minute % 60:02}" for minute in minutes)
    return start, end
