"""Validation of the demand over the day: each minute belongs to one window, and models agree on them and on samples."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchsplit_core.planning.request.objective import goal_of, has_penalties, reads_samples
from torchsplit_core.values import (
    DemandLevels,
    DemandWindow,
    InputFault,
    Objective,
    PlanModel,
    PlanRequest,
    quoted,
)
from torchsplit_core.values.limits import check_name, check_number
from torchsplit_core.values.plan.demand_over_day import DAY_MINUTES, TIME_OF_DAY

MOST_SAMPLES = 100_000
"""Samples of a request: by the minute more than two months."""


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


def check_samples(request: PlanRequest) -> None:
    """Raise InputFault for an objective of samples that no plan could answer."""
    objective = request.objective
    _check_share(objective)
    if not reads_samples(request):
        return
    for model in request.models:
        where = f"model {model.name}, demand_samples"
        if not model.demand_samples:
            raise InputFault(
                where,
                f"is empty, and {_asks(objective)} reads the samples of every model",
                "Give every model its requests/s at the same moments: torchsplit request --demand-samples TRACE.csv.",
            )
        if len(model.demand_samples) > MOST_SAMPLES:
            raise InputFault(
                where,
                f"has {len(model.demand_samples):,} entries, at most {MOST_SAMPLES:,} are planned for",
                "Give a rate by the minute or ten, or every second entry.",
            )
        if model.max_response_ms is not None:
            raise InputFault(
                f"model {model.name}, max_response_ms",
                f"is given, and {_asks(objective)} holds throughputs at many demands: waiting is simulated at one",
                "Leave max_response_ms out, or limit the service time (max_latency_ms).",
            )
    if goal_of(request).by_share and has_penalties(objective):
        name = "separation_weight" if objective.separation_weight > 0 else "memory_violation_penalty"
        raise InputFault(
            f"objective.{name}",
            f"is {getattr(objective, name):g}, and a share of samples has nothing to pay it with",
            f"Leave {name} out, or plan with min_gpus and an attainment.",
        )


def _check_share(objective: Objective) -> None:
    share = objective.attainment
    if share is None:
        return
    check_number("objective.attainment", share, positive=True)
    if share > 1:
        raise InputFault("objective.attainment", f"is {share:g}, above 1", "Give a part of 1: 0.95 is 95 %.")
    if not goal_of(objective).by_cost:
        raise InputFault(
            "objective.attainment",
            f"is {share:g}, and {objective.kind} does not look for the least cost of a share",
            "Plan with min_gpus, or leave the attainment out.",
        )


def _asks(objective: Objective) -> str:
    return f"the objective {objective.kind}" + (" with an attainment" if objective.attainment else "")
