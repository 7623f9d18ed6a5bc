"""A plan as one HTML file that opens offline: map, tables, curves, what is proven and estimated, the request.

It has no script and loads nothing; its policy forbids both. Every text from a user is escaped.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from app.charts.points_svg import points_svg
from app.plans import summary
from app.plans.confidence import confidence_of, describe_low_end, reasons
from app.plans.explanation.panel import sections
from app.plans.load import results
from app.plans.load.runs import FULL_REQUESTS, full, full_replications
from app.plans.load.settings import LoadSettings, build_simulation, request_limits
from app.plans.model_table import models_table
from app.plans.summary import SOLVED, basis_badge, metrics, status_badge
from app.plans.verdict import COLOURS, verdict_of
from torchsplit_core import workflow
from torchsplit_core.day_plans.replay import summary as replay_summary
from torchsplit_core.day_plans.summary import HEADINGS, day_verdict, window_rows
from torchsplit_core.files import write_text
from torchsplit_core.latency_slo.cost_and_tier_text import describe_cost, describe_power, describe_tiers
from torchsplit_core.latency_slo.verdict import PlanVerdict
from torchsplit_core.pictures.numbers import exact, short
from torchsplit_core.pictures.slice_map import fleet_svg, slice_table
from torchsplit_core.planning.outcome.instances import point_key, point_table
from torchsplit_core.values import (
    DayOutcome,
    DayReplay,
    InputFault,
    PlanOutcome,
    PlanRequest,
    Point,
    tenants_on,
)

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark; --ground: #fbfcfa; --ink: #1b1f24; --line: #dcdedb; --card: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ground: #0e1418; --ink: #e6eaee; --line: #2b343d; --card: #131a20; } }
body { background: var(--ground); color: var(--ink); font: 15px/1.5 "Source Sans", system-ui, sans-serif;
  max-width: 1180px; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; } h3 { font-size: 1rem; }
.verdict { border-left: 5px solid; border-radius: 4px; padding: .5rem .8rem; font-weight: 600;
  background: var(--card); }
.verdict.green { border-color: #0f766e; } .verdict.yellow { border-color: #d97706; }
.verdict.red { border-color: #d92d20; }
.below { color: color-mix(in srgb, #d92d20 70%, currentColor); font-weight: 600; }
.badge { border: 1px solid var(--line); border-radius: 6px; padding: .1rem .5rem; margin-right: .4rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(210px, 1fr)); gap: .8rem; margin-top: 1.2rem; }
.cards > div, figure { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem;
  margin: 0; }
.cards b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums; }
.curves { display: flex; flex-wrap: wrap; gap: .8rem; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .87rem; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; } th, td { padding: .3rem .5rem; border-bottom: 1px solid var(--line); }
th.n, td.n { text-align: right; white-space: nowrap; } td.name { white-space: nowrap; }
i.swatch { display: inline-block; width: .7em; height: .7em; border-radius: 2px; margin-right: .5em; }
span.bar { display: block; position: relative; height: .8rem; min-width: 5rem; border-radius: 3px;
  background: color-mix(in srgb, currentColor 9%, transparent); }
span.bar i { display: block; height: 100%; border-radius: 3px; }
span.bar b { position: absolute; top: -.2rem; bottom: -.2rem; width: 2px; background: currentColor; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem; overflow: auto;
  max-height: 30rem; font-size: .78rem; }
"""


def report(
    name: str,
    request: PlanRequest | None,
    plan: PlanOutcome,
    colours: Mapping[str, str],
    day: DayOutcome | None = None,
    replay: DayReplay | None = None,
) -> str:
    """The whole file as text, without curves and request if `request` is None. `day`: planned from this request, and
    `replay`: simulated over a trace."""
    sure = confidence_of(request, plan)
    parts = [_head(name, request, plan), _verdict(verdict_of(request, plan))]
    if plan.status in SOLVED:
        parts.append(_cards(request, plan))
        if request is not None:
            sentences = [
                describe(request, plan) for describe in (describe_tiers, describe_cost, describe_power)
            ]
            parts += [f"<p>{html.escape(line[0].upper() + line[1:])}.</p>" for line in sentences if line]
        slices = fleet_svg(plan, colours, request) + _slices(plan, request)
        parts.append(_section("Slices", slices))
        parts.append(_section("What each model gets", models_table(plan, request, colours)))
        if request is not None:
            parts.append(_section("Under load, simulated", _under_load(request, plan, colours)))
    if day is not None and request is not None:
        parts.append(_section("Over the day", _day(request, day)))
        if replay is not None:
            parts.append(_section("The day under a trace, simulated", _replay(replay)))
    if sure is not None:
        parts.append(_section("How sure it is", _list_html((describe_low_end(sure), *reasons(sure)))))
    if plan.explanation is not None:
        chapters = sections(plan.explanation, plan)
        inner = "".join(f"<h3>{html.escape(title)}</h3>{text}" for title, text in chapters)
        parts.append(_section("Why this plan", inner))
    parts.append(_section("What is proven, what is estimated", _proof(request, plan)))
    if request is not None:
        parts.append(_section("What the models can do", _curves(request, plan, colours)))
        # Without indents, so that a thousand points stay small.
        text = "\n".join(line.strip() for line in write_text(request).splitlines())
        parts.append(_section("The request", _details_html("As JSON", f"<pre>{html.escape(text)}</pre>")))
    title = html.escape(f"{name} · TorchSplit plan")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def _head(name: str, request: PlanRequest | None, plan: PlanOutcome) -> str:
    badges = filter(None, (status_badge(plan), basis_badge(plan, request)))
    shown = "".join(f'<span class="badge">{html.escape(badge.text)}</span>' for badge in badges)
    fleet = ""
    if request is not None:
        fleet = ", ".join(f"{entry.count} × {entry.type}" for entry in request.gpus)
        fleet = f"<p>{len(request.models)} models on {html.escape(fleet)}</p>"
    return f"<h1>{html.escape(name)}</h1>{fleet}<p>{shown}</p>"


def _day(request: PlanRequest, day: DayOutcome) -> str:
    """Both sides of a day: whether changing pays, and every window beside the one plan."""
    verdict = day_verdict(day)
    table = _table_html(HEADINGS, window_rows(request, day))
    return f"<p>{html.escape(verdict[0].upper() + verdict[1:])}.</p>{table}"


def _replay(replay: DayReplay) -> str:
    """What clients would see of the day: every side and model, and the hours of each model."""
    words = replay_summary.SIDE_WORDS
    sides = [
        f"{words[side.name].capitalize()}: {replay_summary.side_text(replay, side)}." for side in replay.sides
    ]
    parts = [_list_html(sides), _table_html(replay_summary.HEADINGS, replay_summary.replay_rows(replay))]
    head = ("UTC", *(f"{words[side.name]}, p95 ms" for side in replay.sides))
    for name in dict.fromkeys(model.name for side in replay.sides for model in side.models):
        hours = _table_html(head, replay_summary.p95_rows(replay, name))
        parts.append(_details_html(f"{name} by the hour", hours))
    notes = (f"{replay_summary.basis_text(replay)}.", *replay.warnings)
    return "".join(parts) + "".join(f"<p>{html.escape(text)}</p>" for text in notes)


def _table_html(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>" for cells in rows
    )
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _verdict(verdict: PlanVerdict) -> str:
    """The verdict and its facts."""
    facts = _list_html([f"{fact.question}: {fact.text}" for fact in verdict.facts]) if verdict.facts else ""
    return f'<p class="verdict {COLOURS[verdict.level]}">{html.escape(verdict.sentence)}</p>{facts}'


def _cards(request: PlanRequest | None, plan: PlanOutcome) -> str:
    cards = "".join(
        f"<div>{html.escape(item.label)}<b>{html.escape(item.value)}</b>{html.escape(item.note)}</div>"
        for item in metrics(plan, request)
    )
    return f'<div class="cards">{cards}</div>'


def _slices(plan: PlanOutcome, request: PlanRequest | None) -> str:
    rows = slice_table(plan, request)
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(key)}</th>" for key in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_format_value(value))}</td>" for value in row.values()) + "</tr>"
        for row in rows
    )
    table = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    return _details_html("The same as a table", table)


def _under_load(request: PlanRequest, plan: PlanOutcome, colours: Mapping[str, str]) -> str:
    """Response times at the demand, against the limits of the request, and their basis."""
    limits = request_limits(request)
    try:
        question = build_simulation(plan, request, LoadSettings("planned", limits_ms=limits))
        result = workflow.simulate(full(question))
    except InputFault as fault:
        return f"<p>n/a: {html.escape(str(fault))}</p>"
    lines = [
        "Arrivals as the request says, else Poisson at each model's demand; waits are included. The limits are those "
        "of the request: of the response where it has one, else of the service time.",
        f"{exact(FULL_REQUESTS)} requests in each of {full_replications(question)} runs a model; ± is the 95 % "
        "interval over the runs.",
        results.describe_basis(plan, request),
    ]
    if unstable := results.describe_unstable(result.models):
        lines.append(unstable)
    if gone := workflow.without_instance(plan, request):
        lines.append(f"Without a slice, and left out: {', '.join(gone)}.")
    return results.table_of(result.models, limits, colours) + _list_html(lines)


def _proof(request: PlanRequest | None, plan: PlanOutcome) -> str:
    goal = plan.objective
    lines = []
    if plan.status == "optimal":
        lines.append("No plan is better: every level of the objective is proven.")
    elif plan.status == "feasible":
        bound = "no bound is known" if goal.bound is None else f"no plan can be above {short(goal.bound)}"
        lines.append(f"The plan is verified; {bound} at the first level that is not proven.")
    elif plan.status == "timeout":
        lines.append("No plan was found in the time given, and none was ruled out.")
    for conflict in plan.conflicts:
        lines.append(": ".join(summary.describe_conflict(conflict)) + ".")
    lines += [f"Would help: {summary.describe_relaxation(change)}." for change in plan.least_relaxation or ()]
    if plan.status in SOLVED:
        lines.append(
            "Layouts, placements, memory, service times and demands were checked without the solver."
        )
        lines.append("The service time is the p95 of one batch, without waiting.")
    if request is not None:
        count = Counter(point.basis for model in request.models for point in model.allowed_points)
        counts = ", ".join(
            f"{exact(number)} {basis}" for basis, number in sorted(count.items(), reverse=True)
        )
        lines.append(f"Of the points behind it, {counts or 'none is known'}.")
    lines += [f"Warning: {warning}" for warning in plan.warnings]
    lines.append(f"Solver: {plan.statistics.solver}; request {plan.request_sha256[:16]}.")
    return _list_html(lines)


def _list_html(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"


def points_in_use(request: PlanRequest, plan: PlanOutcome) -> dict[tuple[str, ...], list[Point]]:
    """The points that a plan uses, by model, variant and stage."""
    points = point_table(request)
    used: dict[tuple[str, ...], list[Point]] = {}
    for key in dict.fromkeys(
        point_key(gpu.type, item.profile, tenant) for gpu, item, tenant in tenants_on(plan.gpus)
    ):
        stage_points = used.setdefault(key[:3], [])
        if key in points:
            stage_points.append(points[key])
    return used


def _curves(request: PlanRequest, plan: PlanOutcome, colours: Mapping[str, str]) -> str:
    used = points_in_use(request, plan)
    figures = []
    for model in request.models:
        stages = [(variant, stage) for variant in model.variants for stage in variant.stages]
        for variant, stage in stages:
            place, cut = (model.name, variant.name, stage.name), len(variant.stages) > 1
            if place not in used and (cut or not variant.allowed):
                continue  # cuts and variants that are not allowed only where the plan uses them
            name = f"{model.name} · {stage.name}" if cut else model.name
            colour, limit = colours.get(model.name, "#7f8790"), model.max_latency_ms
            if drawn := points_svg(name, stage.points, colour, limit, used.get(place, ())):
                figures.append(f"<figure><figcaption>{html.escape(name)}</figcaption>{drawn}</figure>")
    note = "<p>Filled: measured. Hollow: estimated or emulated. Large: what the plan uses. Dotted: the limit.</p>"
    return f'{note}<div class="curves">{"".join(figures)}</div>'


def _section(title: str, inner: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{inner}</section>"


def _details_html(title: str, inner: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary>{inner}</details>"


def _format_value(value: object) -> str:
    if value is None:
        return "n/a"
    return exact(value) if isinstance(value, float) else str(value)
