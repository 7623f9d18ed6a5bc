"""A plan under load in words and figures: the verdict, the tables, their basis. No streamlit in here."""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from app.charts.response_times import DistributionLine, PercentileRow
from app.format.badges import Badge
from app.format.html import table_html
from app.plans.load.runs import ModelRun, SimulationRuns
from app.plans.summary import estimated_models
from torchsplit_core import workflow
from torchsplit_core.pictures.numbers import THIN, exact, percent, short
from torchsplit_core.values import HighestLoad, ModelLoad, PlanOutcome, PlanRequest, profile_words, tenants_on

Percentile = Literal[50, 95, 99]
Utilisation = dict[tuple[str, int, str, str], float]
"""The utilisation of a tenant, by GPU, start of the slice, model and stage."""
NOT_A_MEASUREMENT = "Simulated; nothing here was measured under load."


def of_percentile(load: ModelLoad, percentile: Percentile) -> float | None:
    """A model's p50, p95 or p99 of the response time, ms; None where it has none."""
    times = load.response_ms
    return {50: times.p50, 95: times.p95, 99: times.p99}[percentile]


def verdict_badge(
    loads: Sequence[ModelLoad],
    limits: Mapping[str, float],
    percentile: Percentile,
    of_service: Collection[str] = (),
) -> Badge:
    """Whether every model keeps its limit, in a sentence that names the worst one.

    `of_service`: the models whose limit is of the service time; the plan promised nothing of their response.
    """
    over = []
    for load in loads:
        time, limit = of_percentile(load, percentile), limits.get(load.name)
        if time is not None and limit is not None and time > limit:
            over.append((time / limit, load.name, time, limit))
    lost = [load for load in loads if load.stable is False]
    if lost:
        worst = max(lost, key=lambda load: (load.offered_rps or 0) / load.capacity_rps)
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        late = f" {len(over)} of the others exceed their limit at p{percentile}." if over else ""
        return Badge(
            f"Not stable: {worst.name}{more}. {exact(_figures(worst.offered_rps), 'req/s')} arrive and at most "
            f"{exact(_figures(worst.capacity_rps), 'req/s')} can be served, so its queue grows without end.{late}",
            "red",
        )
    if over:
        _, name, time, limit = max(over)
        return Badge(
            f"{len(over)} of {len(loads)} models {'exceeds its' if len(over) == 1 else 'exceed their'} limit at "
            f"p{percentile}; furthest {name}: {short(time, 'ms')} against {short(limit, 'ms')}.",
            "yellow" if {model for _, model, _, _ in over} <= set(of_service) else "red",
        )
    limited = [load for load in loads if load.name in limits]
    if not limited:
        return Badge("Every model is stable. None has a response-time limit to compare with.", "gray")
    close = [
        f"{load.name} ({_describe_certainty(load, percentile)} against {short(limits[load.name], 'ms')})"
        for load in limited
        if (high := _high(load, percentile)) is not None and high > limits[load.name]
    ]
    if close:
        text = f"Every model keeps its limit at p{percentile}, but not for certain: {', '.join(close)}."
        return Badge(text, "yellow")
    rest = len(loads) - len(limited)
    without = f" {rest} without a limit on responses {'is' if rest == 1 else 'are'} stable." if rest else ""
    all_of_them = (
        f"The {len(limited)} models with one keep" if rest and len(limited) > 1 else "All models keep"
    )
    statement = "The model keeps its limit" if len(loads) == 1 else f"{all_of_them} their limits"
    return Badge(f"{statement} at p{percentile}, with the whole interval.{without}", "green")


def describe_basis(plan: PlanOutcome, request: PlanRequest) -> str:
    """Where the service times come from."""
    estimated, total = estimated_models(plan, request)
    times = f"estimated for {estimated} of {total} models, measured for the others"
    if estimated in (0, total):
        times = "estimated" if estimated else "measured"
    if any(point.pace for model in request.models for point in model.points):
        return (
            f"{NOT_A_MEASUREMENT} Service times: {times}; on cores they are drawn as the profile's runs vary and as "
            "the host changed its speed then, and 90 % of the runs lie between low and high."
        )
    return f"{NOT_A_MEASUREMENT} Service times: {times}, taken as fixed for a batch."


def basis_badge(plan: PlanOutcome, request: PlanRequest) -> Badge:
    """That the figures are simulated, and from which service times."""
    estimated, _ = estimated_models(plan, request)
    if estimated:
        return Badge("simulated from estimated service times", "yellow")
    return Badge("simulated from measured service times", "blue")


def describe_sample_size(
    runs: SimulationRuns, quick_requests: int, full_requests: int, replications: int
) -> str:
    """How many requests the figures are from."""
    full = f"{exact(full_requests)} requests in each of {replications} runs a model"
    if runs.complete:
        return full
    return (
        f"quick look at {exact(quick_requests)} requests a run; the full run ({full}) follows: "
        f"{runs.full} of {len(runs.models)} models done"
    )


def table(runs: SimulationRuns, limits: Mapping[str, float]) -> list[dict[str, Any]]:
    """A row for each model with every figure, for the CSV file; None is n/a."""
    rows = []
    for run in runs.models:
        load = run.load
        times, widths = load.response_ms, load.response_ci95_ms
        rows.append(
            {
                "model": load.name,
                "stable": {True: "yes", False: "no", None: "n/a"}[load.stable],
                "offered req/s": load.offered_rps,
                "capacity req/s": load.capacity_rps,
                "served req/s": load.throughput_rps,
                "mean wait ms": load.wait_ms.mean,
                "p50 ms": times.p50,
                "p50 ±": widths.p50,
                "p95 ms": times.p95,
                "p95 ±": widths.p95,
                "p95 low ms": None if load.response_low_ms is None else load.response_low_ms.p95,
                "p95 high ms": None if load.response_high_ms is None else load.response_high_ms.p95,
                "p99 ms": times.p99,
                "p99 ±": widths.p99,
                "limit ms": limits.get(load.name),
                "within the limit %": None if load.slo_attainment is None else 100 * load.slo_attainment,
                "mean batch": load.mean_batch,
                "basis": "simulated",
            }
        )
    return rows


def table_of(loads: Sequence[ModelLoad], limits: Mapping[str, float], colours: Mapping[str, str]) -> str:
    """The same as HTML, for reading."""
    head = (
        '<th>model</th><th class="n">p50, ms</th><th class="n">p95, ms</th><th class="n">p99, ms</th>'
        '<th class="n">limit, ms</th><th class="n">within the limit</th><th class="n">mean wait, ms</th>'
        '<th class="n">offered, req/s</th><th class="n">capacity, req/s</th>'
        '<th class="n" title="Requests of a run over its time, from the first arrival to the last end: random '
        'arrivals are a little more or less than their rate">served, req/s</th>'
        '<th class="n">mean batch</th>'
    )
    return table_html(head, [_row(load, limits.get(load.name), colours) for load in loads])


def _row(load: ModelLoad, limit: float | None, colours: Mapping[str, str]) -> str:
    name = html.escape(load.name)
    note = '<br><span class="below">not stable</span>' if load.stable is False else ""
    times, widths = load.response_ms, load.response_ci95_ms
    percentiles = (
        format_with_interval(getattr(times, name), getattr(widths, name)) + _between(load, name)
        for name in ("p50", "p95", "p99")
    )
    cells = (
        *percentiles,
        "none" if limit is None else exact(limit),
        format_attainment(load.slo_attainment),
        short(load.wait_ms.mean),
        exact(_figures(load.offered_rps)),
        exact(_figures(load.capacity_rps)),
        exact(_figures(load.throughput_rps)),
        short(load.mean_batch),
    )
    inner = "".join(f'<td class="n">{cell}</td>' for cell in cells)
    swatch = f'<i class="swatch" style="background:{colours.get(load.name, "#888")}"></i>'
    return f'<tr><td class="name">{swatch}{name}{note}</td>{inner}</tr>'


def format_with_interval(value: float | None, width: float | None) -> str:
    """A time with the half-width of its interval, where it has one."""
    if value is None or width is None:
        return short(value)
    half = "0" if width == 0 else f"{float(f'{width:.2g}'):g}"
    return f"{short(value)}{THIN}±{THIN}{half}"


def _between(load: ModelLoad, name: str) -> str:
    """The range of 90 % of the runs, below a time, where the speed of servers is drawn at random."""
    low, high = load.response_low_ms, load.response_high_ms
    if low is None or high is None:
        return ""
    ends = f"{short(getattr(low, name))} to {short(getattr(high, name))}"
    return f'<br><span class="range" title="90 % of the runs, as the host changes its speed">{ends}</span>'


def format_attainment(share: float | None) -> str:
    """A share of responses; only all of them read as 100 %."""
    if share is not None and share < 1 and round(1000 * share) >= 1000:
        return f">{THIN}99.9{THIN}%"
    return percent(share)


def describe_unstable(loads: Sequence[ModelLoad]) -> str:
    """Why models have no times; empty if all have."""
    lost = [load.name for load in loads if load.response_ms.mean is None]
    if not lost:
        return ""
    return (
        f"n/a for {', '.join(lost)}: more arrives than can be served, so the queue grows as long as the run lasts, and "
        "any figure would only say how long that was. Lower the load, or plan with a higher demand."
    )


def percentile_rows(
    runs: Sequence[ModelRun], limits: Mapping[str, float], colours: Mapping[str, str], *, plan_name: str = ""
) -> list[PercentileRow]:
    """A row for each model of the chart of percentiles; `plan_name` names the compared plan, if they are of that."""
    rows = []
    for run in runs:
        load, times, widths = run.load, run.load.response_ms, run.load.response_ci95_ms
        known = times.p50 is not None and times.p95 is not None and times.p99 is not None
        label, colour = (
            f"{load.name} · {plan_name}" if plan_name else load.name,
            colours.get(load.name, "#7f8790"),
        )
        percentiles = (times.p50 or 0.0, times.p95 or 0.0, times.p99 or 0.0) if known else None
        halves, limit = (widths.p50, widths.p95, widths.p99), limits.get(load.name)
        rows.append(PercentileRow(label, colour, percentiles, halves, limit, bool(plan_name)))
    return rows


def distribution_lines(
    runs: Sequence[ModelRun], limits: Mapping[str, float], colours: Mapping[str, str]
) -> list[DistributionLine]:
    """A line for each model of the chart of distributions."""
    drawn = ((run.load.name, run.percents, run.times_ms) for run in runs if run.percents)
    return [
        DistributionLine(name, colours.get(name, "#7f8790"), percents, times_ms, limits.get(name))
        for name, percents, times_ms in drawn
    ]


def tenant_utilisation(plan: PlanOutcome, runs: SimulationRuns) -> Utilisation:
    """The utilisation of every tenant of the plan."""
    loads = {server.id: server.utilisation for run in runs.models for server in run.servers}
    return {
        (gpu.id, item.start, tenant.model, tenant.stage): loads[id]
        for gpu, item, tenant in tenants_on(plan.gpus)
        if (id := workflow.server_id(gpu, item, tenant)) in loads
    }


def utilisation_table(plan: PlanOutcome, runs: SimulationRuns) -> list[dict[str, Any]]:
    """A row for each tenant: its utilisation, and its batches."""
    loads = {server.id: server for run in runs.models for server in run.servers}
    rows = []
    for gpu, item, tenant in tenants_on(plan.gpus):
        load = loads.get(workflow.server_id(gpu, item, tenant))
        rows.append(
            {
                "GPU": gpu.id,
                "slice": profile_words(item.profile),
                "start": item.start,
                "model": tenant.model,
                "stage": tenant.stage,
                "processes": tenant.processes,
                "at work %": None if load is None else round(100 * load.utilisation, 2),
                "mean batch": None if load is None else load.mean_batch,
                "largest batch": tenant.batch_size,
                "basis": "simulated",
            }
        )
    return rows


def describe_max_load(result: HighestLoad, models: int) -> str:
    """The highest load of a plan with so many models, in words."""
    if result.low is None or result.high is None:
        return f"{result.message[:1].upper()}{result.message[1:]} (p{result.percentile:g})."
    text = (
        f"The plan takes {short(result.low)} × the demand: there every model that has a limit keeps it "
        f"at p{result.percentile:g}, and at {short(result.high)} × one exceeds it."
    )
    if models > 1:
        return text + " All rates grow together."
    return text


def comparison_table(
    first: Sequence[ModelRun],
    second: Sequence[ModelRun],
    titles: tuple[str, str],
    limits: Mapping[str, float],
) -> str:
    """HTML of two plans under the same arrivals: both sides' percentiles and shares within the limit, by model."""
    names = [html.escape(title) for title in titles]
    figures = ("p50, ms", "p95, ms", "p99, ms", "within the limit")
    head = '<th rowspan="2">model</th><th class="n" rowspan="2">limit, ms</th>'
    head += "".join(f'<th class="n" colspan="2">{what}</th>' for what in figures)
    # With a title of its own the glossary does not explain a scenario's name.
    below = "".join(f'<th class="n" title="{name}">{name}</th>' for _ in range(4) for name in names)
    rows = []
    for run, other in zip(first, second, strict=True):
        cells = []
        for name in ("p50", "p95", "p99"):
            for side in (run, other):
                value = getattr(side.load.response_ms, name)
                cells.append(format_with_interval(value, getattr(side.load.response_ci95_ms, name)))
        cells += [format_attainment(side.load.slo_attainment) for side in (run, other)]
        limit = limits.get(run.load.name)
        inner = "".join(f'<td class="n">{cell}</td>' for cell in cells)
        rows.append(
            f'<tr><td class="name">{html.escape(run.load.name)}</td>'
            f'<td class="n">{"none" if limit is None else exact(limit)}</td>{inner}</tr>'
        )
    return table_html(f"{head}</tr><tr>{below}", rows)


def _width(load: ModelLoad, percentile: Percentile) -> float | None:
    widths = load.response_ci95_ms
    return {50: widths.p50, 95: widths.p95, 99: widths.p99}[percentile]


def _high(load: ModelLoad, percentile: Percentile) -> float | None:
    """The upper end of 90 % of the runs where the speed of servers is drawn, else of the mean's interval."""
    if load.response_high_ms is not None:
        high: float | None = getattr(load.response_high_ms, f"p{percentile}")
        return high
    time, width = of_percentile(load, percentile), _width(load, percentile)
    return None if time is None or width is None else time + width


def _describe_certainty(load: ModelLoad, percentile: Percentile) -> str:
    time = short(of_percentile(load, percentile), "ms")
    if load.response_high_ms is not None:
        return f"{time}, up to {short(_high(load, percentile), 'ms')}"
    return f"{time} ± {short(_width(load, percentile), 'ms')}"


def _figures(rps: float | None) -> float | None:
    """Requests/s to four figures."""
    return None if rps is None else float(f"{rps:.4g}")
