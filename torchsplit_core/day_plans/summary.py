"""A day in lines of text: its windows, both sides, and whether changing pays."""

from __future__ import annotations

from collections.abc import Iterator

from torchsplit_core.day_plans.day_figures import lost_in, worst_served
from torchsplit_core.day_plans.least_change import used_gpus
from torchsplit_core.day_plans.window_requests import windows_of
from torchsplit_core.planning.energy.power import RULE
from torchsplit_core.transition.table import aligned
from torchsplit_core.values import BothSides, DayOutcome, DayWindow, PlanOutcome, PlanRequest
from torchsplit_core.values.day.outcome import EnergyRange

HEADINGS = (
    "window", "from", "to", "hours", "status", "GPUs", "worst served",
    "touched GPUs to the next", "begins", "model-seconds lost", "requests lost",
)  # fmt: skip


def day_lines(request: PlanRequest, outcome: DayOutcome) -> Iterator[str]:
    """The lines of a summary: windows, reasons where one has no plan, GPU-hours and costs, the verdict."""
    yield from aligned([HEADINGS, *window_rows(request, outcome)])
    for window in outcome.windows:
        yield from _reasons(f"window {window.name}", window.plan)
    yield from _reasons("one plan for all day", outcome.static)
    yield (
        f"GPU-hours a day: {_figure(outcome.gpu_hours.windows)} by window, "
        f"{_figure(outcome.gpu_hours.static)} with one plan"
    )
    for words, sides in (
        ("cost a day", outcome.cost_per_day),
        ("cost per million requests", outcome.cost_per_million_requests),
        ("cost per million output tokens", outcome.cost_per_million_output_tokens),
    ):
        if sides is not None:
            yield f"{words}: {_figure(sides.windows)} by window, {_figure(sides.static)} with one plan"
    if outcome.energy_kwh_per_day is not None:
        energy = outcome.energy_kwh_per_day
        yield (
            f"energy a day, kWh: {_range(energy.windows)} by window, {_range(energy.static)} with one plan "
            f"(estimated: {RULE})"
        )
    for warning in outcome.warnings:
        yield f"warning: {warning}"
    yield day_verdict(outcome)


def window_rows(request: PlanRequest, outcome: DayOutcome) -> Iterator[tuple[str, ...]]:
    """The cells of HEADINGS for every window, then for the one plan."""
    for times, window in zip(windows_of(request), outcome.windows, strict=True):
        yield (
            window.name, times.start, times.end, f"{times.hours:.4g}", window.plan.status,
            *_plan_cells(window.plan), *_change_cells(window),
        )  # fmt: skip
    static = outcome.static
    changes = ("0", "", "0", "0") if static.gpus else ("n/a",) * 4
    yield ("one plan", "", "", "24", static.status, *_plan_cells(static), *changes)


def day_verdict(outcome: DayOutcome) -> str:
    """One sentence: whether changing between plans pays, with what it saves and loses."""
    missing = [window.name for window in outcome.windows if not window.plan.gpus]
    if missing:
        return f"no plan for {', '.join(missing)}"
    hours, lost = outcome.gpu_hours, _figure(outcome.lost_requests)
    if hours.static is None:
        return f"changing is needed: no one plan holds all day; it loses {lost} requests a day (estimated)"
    saved = _saved(hours)
    if saved > 0:
        share = saved / hours.static
        return (
            f"changing pays: it saves {_figure(saved)} GPU-hours a day ({share:.0%}) and loses {lost} requests "
            "(estimated)"
        )
    worst = outcome.worst_normalised
    if (worst.windows or 0.0) > (worst.static or 0.0) * (1 + 1e-6):
        return (
            f"changing saves no GPU-hours; it serves the worst model at {_figure(worst.windows)} instead of "
            f"{_figure(worst.static)} of its demand, and loses {lost} requests (estimated)"
        )
    return f"changing does not pay: one plan needs {_figure(hours.static)} GPU-hours a day, and so do these"


def _saved(hours: BothSides) -> float:
    """GPU-hours that changing saves, 0 where it saves none."""
    saved = (hours.static or 0.0) - (hours.windows or 0.0)
    return saved if saved > 1e-9 * (hours.static or 0.0) else 0.0


def _plan_cells(plan: PlanOutcome) -> tuple[str, str]:
    if not plan.gpus:
        return "n/a", "n/a"
    return str(used_gpus(plan)), _figure(worst_served([plan]))


def _change_cells(window: DayWindow) -> tuple[str, str, str, str]:
    change = window.transition
    if change is None or change.status == "infeasible":
        return "n/a", "n/a", "n/a", "n/a"
    seconds = sum(item.model_seconds_below_demand or 0.0 for item in change.during)
    begins = "ahead" if window.ahead else "with it"
    return str(change.touched_gpus), begins, _figure(seconds), _figure(lost_in(change))


def _reasons(what: str, plan: PlanOutcome) -> Iterator[str]:
    if plan.gpus:
        return
    yield f"{what}: {plan.status}"
    for conflict in plan.conflicts:
        yield f"{what}: conflict: {conflict.message}"
    for warning in plan.warnings:
        yield f"{what}: {warning}"


def _figure(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


def _range(energy: EnergyRange | None) -> str:
    return "n/a" if energy is None else f"{energy.low:.4g} to {energy.high:.4g}"
