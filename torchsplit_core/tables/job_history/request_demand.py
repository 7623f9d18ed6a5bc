"""Puts the demand of a history into a plan request: windows of the day, and samples by the hour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchsplit_core.tables.job_history.hourly_figures import mean, p95
from torchsplit_core.tables.job_history.observed_hours import HOURS
from torchsplit_core.values import (
    DemandLevels,
    DemandWindow,
    InputFault,
    InternalFault,
    PlanModel,
    PlanRequest,
    quoted,
    suggestion,
)

DEFAULT_WINDOWS = "00:00-06:00,06:00-12:00,12:00-18:00,18:00-24:00"
UNIT_FACTOR = 10
"""Slices differ by less than 7 in compute; a larger ratio of times is another unit of work."""


def parse_windows(text: str) -> tuple[DemandWindow, ...]:
    """Windows of `[NAME=]FROM-TO,…` with a demand of 0; without a name FROM-TO is the name.

    Raises InputFault. Whether they are a day together is not checked.
    """
    windows = []
    for entry in text.split(","):
        name, _, times = entry.strip().rpartition("=")
        start, dash, end = (part.strip() for part in times.partition("-"))
        if not (dash and start and end):
            raise InputFault(
                "--windows", f"{quoted(entry)} is not FROM-TO", "Write for example 07:00-22:00,22:00-07:00."
            )
        windows.append(DemandWindow(name.strip() or f"{start}-{end}", start, end, 0.0))
    return tuple(windows)


def check_full_hours(windows: Sequence[DemandWindow]) -> None:
    """Raise InputFault for a window that begins within an hour: histories are counted by the hour."""
    for window in windows:
        if window.minutes[0] % 60:
            raise InputFault(
                "--windows", f"{window.start} is within an hour", "Begin and end windows at full hours."
            )


def models_of_classes(
    request: PlanRequest, classes: Sequence[str], entries: Sequence[tuple[str, str]]
) -> dict[str, list[str]]:
    """Model → its classes: of `entries` (class, model), else the class of its name.

    Raises InputFault for an unknown class or model, a class of two models, and if no model has a class.
    """
    names = [model.name for model in request.models]
    chosen: dict[str, str] = {}
    for job_class, model in entries:
        if job_class not in classes:
            raise InputFault(
                "--map",
                f"the history has no class {quoted(job_class)}",
                suggestion(job_class, classes, "classes"),
            )
        if model not in names:
            raise InputFault(
                "--map", f"the request has no model {quoted(model)}", suggestion(model, names, "models")
            )
        if chosen.setdefault(job_class, model) != model:
            raise InputFault(
                "--map",
                f"gives {quoted(job_class)} to {quoted(chosen[job_class])} and to {quoted(model)}",
                "Give a class to one model.",
            )
    for name in classes:
        if name in names:
            chosen.setdefault(name, name)
    models: dict[str, list[str]] = {}
    for job_class, model in chosen.items():
        models.setdefault(model, []).append(job_class)
    if not models:
        raise InputFault(
            "--map",
            f"is missing: the models {', '.join(names)} are none of the classes {', '.join(classes[:12])}",
            "Say which class is which model, --map CLASS=MODEL.",
        )
    return models


def with_demand(
    request: PlanRequest,
    rates: Mapping[str, Sequence[float]],
    hours: Sequence[int],
    windows: Sequence[DemandWindow],
    *,
    peak: bool = False,
) -> tuple[PlanRequest, tuple[str, ...]]:
    """The request with `demand_windows` and `demand_samples`, and notes.

    `rates`: by model, jobs/s in each of the observed `hours` (since 1970). Models that it lacks have their demand_rps
    in all windows and no samples. With `peak` demand_rps is the largest mean or p95 of a window.
    Raises InputFault if a window has no observed hour.
    """
    positions = [_positions(window, hours) for window in windows]
    for window, places in zip(windows, positions, strict=True):
        if not places:
            raise InputFault(
                "--windows",
                f"no hour of the window {quoted(window.name)} was observed",
                "Give a longer history.",
            )
    models, notes = [], []
    for model in request.models:
        if model.name not in rates:
            notes.append(f"{model.name} has no class of jobs: its demand_rps stands in every window")
            flat = tuple(replace(window, demand_rps=model.demand_rps) for window in windows)
            models.append(replace(model, demand_windows=flat, demand_samples=()))
            continue
        series = rates[model.name]
        levels = [_levels([series[at] for at in places]) for places in positions]
        filled = tuple(
            replace(window, demand_rps=level) for window, level in zip(windows, levels, strict=True)
        )
        changed = replace(model, demand_windows=filled, demand_samples=tuple(series))
        if peak:
            changed = _at_peak(changed, levels, notes)
        models.append(changed)
    return replace(request, models=tuple(models)), tuple(notes)


def unit_warnings(request: PlanRequest, durations_s: Mapping[str, float]) -> tuple[str, ...]:
    """Warnings of models whose jobs take far longer, or shorter, than a request of their points: then jobs/s are not
    the requests/s that the points have. `durations_s`: mean seconds of a job, by model."""
    warnings = []
    for model in request.models:
        times_s = [point.latency_ms / 1000 for point in model.points]
        job_s = durations_s.get(model.name)
        if job_s is None or not times_s:
            continue
        if job_s > UNIT_FACTOR * max(times_s) or job_s * UNIT_FACTOR < min(times_s):
            warnings.append(
                f"{model.name}: a job takes {job_s:.4g} s, and a request of its points {min(times_s):.4g} to "
                f"{max(times_s):.4g} s, so its demand in jobs/s is not one of such requests"
            )
    return tuple(warnings)


def _at_peak(model: PlanModel, levels: Sequence[DemandLevels], notes: list[str]) -> PlanModel:
    largest = max(max(level.mean, level.p95) for level in levels)
    if largest == 0:
        notes.append(f"{model.name} had no job in the observed hours: its demand_rps stays")
        return model
    return replace(model, demand_rps=largest)


def _positions(window: DemandWindow, hours: Sequence[int]) -> list[int]:
    first, minutes = window.minutes
    return [at for at, hour in enumerate(hours) if (hour - first // 60) % HOURS < minutes // 60]


def _levels(rates: Sequence[float]) -> DemandLevels:
    average, high = mean(rates), p95(rates)
    if average is None or high is None:
        raise InternalFault("a window without an observed hour")
    return DemandLevels(average, high)
