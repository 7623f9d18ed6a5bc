"""What each model gets from a plan, as an HTML table. No streamlit in here."""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping

from app.format.html import table_html
from app.plans.explanation.descriptions import describe_binding
from app.plans.summary import weighted
from torchsplit_core.pictures.numbers import exact, short, size
from torchsplit_core.planning.confidence.formatting import bounded_models
from torchsplit_core.planning.request.objective import goal_of, has_tiers, tier_level_count
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import ModelBinding, PlanModel, PlannedModel, PlanOutcome, PlanRequest
from torchsplit_core.values.plan.outcome import ResponseBinding

WEIGHTED = (
    '<th class="n">weight</th><th class="n" title="what is raised, the least first">÷ weight · demand</th>'
)
"""Heads of the two columns that stand where weights differ from 1."""
INTERVAL = '<th class="n" title="of the throughput, with every instance at that end">90 % interval</th>'
"""Head of the column that stands where a figure has an interval."""
TIER = '<th class="n">tier</th>'
"""Head of the column that stands where tiers differ."""
WHOLE = "whole"
"""What a model that is not cut runs as."""
RESPONSE = (
    '<th class="n" title="simulated, waits included, at the arrivals of the request">response p95, ms</th>'
    '<th class="n">response limit, ms</th><th title="what most of a response at the limit is">mostly</th>'
)
"""Heads of the three columns that stand where responses are limited."""
MOSTLY: Mapping[ResponseBinding, str] = {"rate": "waiting", "fill": "its batch", "service": "service alone"}


def models_table(
    plan: PlanOutcome, request: PlanRequest | None, colours: Mapping[str, str], *, pick: bool = False
) -> str:
    """Worst-served first; the bar's mark is the demand, and who is below it is marked.

    With `pick` a click on a name picks it on the map too. A fair plan says which levels are proven, counted
    from the worst served; an explained one what holds each model.
    """
    fair = goal_of(plan.objective).every_level
    binding = (
        {item.model: _binding_word(item) for item in plan.explanation.models} if plan.explanation else {}
    )
    bounded = bounded_models(plan)
    # Columns that would say the same in every row leave their room to the others.
    cut = any(_runs_as(model) != WHOLE for model in plan.models)
    waits = any(model.response_ms is not None for model in plan.models)
    requested = {model.name: model for model in request.models} if request else {}
    heavy = weighted(request)
    # Over the demand alone: with weights the levels are of another figure, which has a column of its own.
    shares = {model.name: _share(model, requested.get(model.name)) for model in plan.models}
    scale = max([1.0, *shares.values()])
    tiers = request is not None and has_tiers(request)
    before = tier_level_count(plan.objective)
    rows = []
    for level, model in enumerate(sorted(plan.models, key=lambda item: item.normalised), 1):
        colour = colours.get(model.name, "#888")
        share = shares[model.name]
        width = 100 * share / scale
        asked = requested.get(model.name)
        limit = asked.max_latency_ms if asked else None
        first = f'<td class="n">{_level(plan, level, before)}</td>' if fair else ""
        rank = f'<td class="n">{asked.tier}</td>' if asked and tiers else ""
        last = f"<td>{html.escape(binding.get(model.name, 'n/a'))}</td>" if binding else ""
        rows.append(
            f'<tr data-model="{html.escape(model.name)}"><td class="name">'
            f'<i class="swatch" style="background:{colour}"></i>{_named(model.name, pick)}</td>'
            f'<td><span class="bar" title="{exact(share)} × demand">'
            f'<i style="width:{width:.1f}%;background:{colour}"></i><b style="left:{100 / scale:.1f}%"></b></span></td>'
            f"{_format_ratio(share)}{_weight(asked.weight, model) if asked and heavy else ''}"
            f'<td class="n">{exact(round(model.throughput_rps, 2))}</td>'
            f"{_interval(model, bounded) if bounded else ''}"
            f"<td>{model.basis or 'n/a'}</td>"
            f'{rank}<td class="n">{exact(asked.demand_rps if asked else None)}</td>'
            f'<td class="n">{exact(round(model.latency_ms, 2)) if model.latency_ms is not None else "n/a"}</td>'
            f'<td class="n">{exact(round(limit, 2)) if limit is not None else "none"}</td>'
            f"{_response(model, asked) if waits else ''}"
            f"{f'<td>{html.escape(_runs_as(model))}</td>' if cut else ''}{last}{first}</tr>"
        )
    head = (
        '<th>model</th><th title="the mark is the demand">throughput ÷ demand</th><th class="n">×</th>'
        f"{WEIGHTED if heavy else ''}"
        f'<th class="n">req/s</th>{INTERVAL if bounded else ""}<th>basis</th>{TIER if tiers else ""}'
        '<th class="n">demand</th><th class="n">service p95, ms</th><th class="n">limit, ms</th>'
        f"{RESPONSE if waits else ''}{'<th>runs as</th>' if cut else ''}"
    )
    head += '<th class="held" title="what is proven to hold it back">held back by</th>' if binding else ""
    head += '<th class="n">level</th>' if fair else ""
    return table_html(head, rows)


def _share(model: PlannedModel, requested: PlanModel | None) -> float:
    """Throughput over demand; where no request says the demand, what the plan has in its place."""
    return model.throughput_rps / requested.demand_rps if requested else model.normalised


def _format_ratio(share: float) -> str:
    if share >= 1 or equal(share, 1.0):
        return f'<td class="n">{exact(round(share, 3))}</td>'
    # Rounded to 1 it would read what it has not reached.
    text = exact(min(round(share, 3), 0.999)) if share >= 0.001 else short(share)
    return f'<td class="n below" title="less than its demand">{text} ▾</td>'


def _weight(weight: float, model: PlannedModel) -> str:
    return f'<td class="n">{exact(weight)}</td><td class="n">{exact(round(model.normalised, 3))}</td>'


def _response(model: PlannedModel, requested: PlanModel | None) -> str:
    """What clients wait beside what they may, and of what it is made most."""
    times, limit = model.response_ms, requested.max_response_ms if requested else None
    share = "" if limit is None or requested is None else f" of {requested.response_percentile:g} %"
    mostly = "n/a" if model.response_bound_by is None else MOSTLY[model.response_bound_by]
    return (
        f'<td class="n">{"n/a" if times is None else exact(round(times.p95, 2))}</td>'
        f'<td class="n">{"none" if limit is None else exact(round(limit, 2)) + share}</td><td>{mostly}</td>'
    )


def _runs_as(model: PlannedModel) -> str:
    """The variant, and what crosses its cuts."""
    carried = model.bytes_across_cuts_per_s
    return (model.variant or "not served") + (
        "" if carried is None else f", {size(carried)}/s across its cuts"
    )


def _interval(model: PlannedModel, bounded: Collection[str]) -> str:
    text = f"{exact(model.low_rps)} to {exact(model.high_rps)}" if model.name in bounded else "n/a"
    return f'<td class="n">{text}</td>'


def _binding_word(binding: ModelBinding) -> str:
    """What is proven to hold the model back, in a word where that is not settled."""
    if not any(limit.binds for limit in binding.limits) and any(
        limit.binds is None for limit in binding.limits
    ):
        return "not settled"
    return describe_binding(binding)


def _level(plan: PlanOutcome, level: int, before: int) -> str:
    """The level of a fair plan: nobody of it can have more unless somebody lower has less, where it is proven. Levels
    of tiers come `before` these."""
    proven = plan.objective.proven_levels - before
    if level <= proven:
        return f'<span title="level {level} from the worst served: proven">{level}, proven</span>'
    return f'<span title="level {level} from the worst served: not proven">{level}, open</span>'


def _named(model: str, pick: bool) -> str:
    name = html.escape(model)
    return f'<button type="button" data-pick="{name}" aria-pressed="false">{name}</button>' if pick else name
