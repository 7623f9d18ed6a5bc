"""Validation of the demand over the day: each minute belongs to one window, and models agree on them and on samples."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchsplit_core.values import DemandLevels, DemandWindow, InputFault, PlanModel, quoted
from torchsplit_core.values.limits import check_name, check_number
from torchsplit_core.values.plan.demand_over_day import DAY_MINUTES, TIME_OF_DAY


def check_demand_over_day(models: Sequence[PlanModel]) -> None:
    """Raise InputFault for windows that are not a day, or that differ between models, and for bad samples."""
    for model in models:
        _check_figures(model)
        if model.demand_windows:
            check_windows(f"model {model.name}, demand_windows", model.demand_windows)
    _check_same_windows(models)
    sampled = [model for model in models if model.demand_samples]
    for model in sampled[1:]:
        if len(model.demand_samples) != len(sampled[0].demand_samples):
            raise InputFault(
                f"model {model.name}, demand_samples",
                f"has {len(model.demand_samples)} entries, and model {sampled[0].name} has "
                f"{len(sampled[0].demand_samples)}",
                "Give both as many: the k-th entries of all models are one moment.",
            )


def check_windows(where: str, windows: Sequence[DemandWindow]) -> None:
    """Raise InputFault unless the names differ and every minute of the day belongs to one window."""
    holder: list[DemandWindow | None] = [None] * DAY_MINUTES
    names: set[str] = set()
    for window in windows:
        check_name(f"{where}, name", window.name)
        if window.name in names:
            raise InputFault(where, f"names the window {quoted(window.name)} twice", "Rename one.")
        names.add(window.name)
        for text in (window.start, window.end):
            if not re.fullmatch(TIME_OF_DAY, text):
                raise InputFault(where, f"{quoted(text)} is not a time of day", "Write for example 07:00.")
        first, count = window.minutes
        for minute in (at % DAY_MINUTES for at in range(first, first + count)):
            other = holder[minute]
            if other is not None:
                raise InputFault(
                    where,
                    f"{_time(minute)} belongs to {quoted(other.name)} and to {quoted(window.name)}",
                    "Let one end where the other begins.",
                )
            holder[minute] = window
    if None in holder:
        minute = holder.index(None)
        raise InputFault(
            where, f"{_time(minute)} belongs to no window", "Let the windows be the whole day together."
        )


def _time(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def _check_figures(model: PlanModel) -> None:
    for window in model.demand_windows:
        where = f"model {model.name}, window {window.name}"
        if isinstance(window.demand_rps, DemandLevels):
            check_number(f"{where}, demand_rps.mean", window.demand_rps.mean)
            check_number(f"{where}, demand_rps.p95", window.demand_rps.p95)
        else:
            check_number(f"{where}, demand_rps", window.demand_rps)
        if window.min_throughput_rps is not None:
            check_number(f"{where}, min_throughput_rps", window.min_throughput_rps)
    for index, rate in enumerate(model.demand_samples):
        check_number(f"model {model.name}, demand_samples[{index}]", rate)


def _check_same_windows(models: Sequence[PlanModel]) -> None:
    """The windows of the first model that has some are those of all, in any order."""
    first = next((model for model in models if model.demand_windows), None)
    if first is None:
        return
    expected = {window.name: window for window in first.demand_windows}
    for model in models:
        where = f"model {model.name}, demand_windows"
        windows = {window.name: window for window in model.demand_windows}
        if windows.keys() != expected.keys():
            names = ", ".join(map(quoted, windows)) or "none"
            raise InputFault(
                where,
                f"has the windows {names}, and model {first.name} has {', '.join(map(quoted, expected))}",
                "Give all models the same windows.",
            )
        for name, window in windows.items():
            other = expected[name]
            if window.minutes != other.minutes:
                raise InputFault(
                    where,
                    f"has {quoted(name)} from {window.start} to {window.end}, and model {first.name} has it "
                    f"from {other.start} to {other.end}",
                    "Give all models the same windows.",
                )
