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
from torchsplit_core.values import (
    ModelBinding,
    PlanModel,
    PlannedModel,
    PlanOutcome,
    PlanRequest,
    TokenFigure,
)
from torchsplit_core.values.plan.outcome import ResponseBinding

WEIGHTED = (
    '<th class="n">weight</th><th class="n" title="what is raised, the least first">÷ weight · demand</th>'
)
"""Heads of the two columns for weights other than 1."""
INTERVAL = '<th class="n" title="of the throughput, with every instance at that end">90 % interval</th>'
"""Head of the column for plans whose figures have intervals."""
TIER = '<th class="n">tier</th>'
"""Head of the column for requests with tiers."""
WHOLE = "whole"
"""The variant of a model that is not cut."""
RESPONSE = (
    '<th class="n" title="simulated, waits included, at the arrivals of the request">response p95, ms</th>'
    '<th class="n">response limit, ms</th><th title="what most of a response at the limit is">mostly</th>'
)
"""Heads of the three columns for limited responses."""
TOKENS = (
    '<th class="n" title="to the first token, simulated, and its limit">first token, ms</th>'
    '<th class="n" title="for each further token, simulated, and its limit">per token, ms</th>'
    '<th class="n" title="given at the lesser of demand and throughput">tokens/s</th>'
)
"""Heads of the three columns for LLMs."""
MOSTLY: Mapping[ResponseBinding, str] = {"rate": "waiting", "fill": "its batch", "service": "service alone"}


def models_table(
    plan: PlanOutcome, request: PlanRequest | None, colours: Mapping[str, str], *, pick: bool = False
) -> str:
    """A row for each model, worst-served first. The mark on its bar is the demand; a model below it is marked.

    With `pick` a click on a name picks the model on the map too. A fair plan says which levels are proven, counted from
    the worst served; an explained plan says what holds each model back.
    """
    fair = goal_of(plan.objective).every_level
    explained = plan.explanation.models if plan.explanation else ()
    binding = {item.model: _binding_word(item) for item in explained}
    bounded = bounded_models(plan)
    # Columns with equal cells are left out.
    cut = any(_runs_as(model) != WHOLE for model in plan.models)
    waits = any(model.response_ms is not None for model in plan.models)
    tokens = any(model.ttft_ms is not None or model.output_tokens_per_s is not None for model in plan.models)
    requested = {model.name: model for model in request.models} if request else {}
    heavy = weighted(request)
    # Over the demand without the weight: the figure of the levels has a column of its own.
    shares = {model.name: _share(model, requested.get(model.name)) for model in plan.models}
    scale = max([1.0, *shares.values()])
    tiers = request is not None and has_tiers(request)
    before = tier_level_count(plan.objective)
    rows = []
    for level, model in enumerate(sorted(plan.models, key=lambda item: item.normalised), 1):
        colour = colours.get(model.name, "#888")
        share = shares[model.name]
        asked = requested.get(model.name)
        first = f'<td class="n">{_level(plan, level, before)}</td>' if fair else ""
        rank = f'<td class="n">{asked.tier}</td>' if asked and tiers else ""
        last = f"<td>{html.escape(binding.get(model.name, 'n/a'))}</td>" if binding else ""
        rows.append(
            f'<tr data-model="{html.escape(model.name)}"><td class="name">'
            f'<i class="swatch" style="background:{colour}"></i>{_named(model.name, pick)}</td>'
            f'<td><span class="bar" title="{exact(share)} × demand">'
            f'<i style="width:{100 * share / scale:.1f}%;background:{colour}"></i>'
            f'<b style="left:{100 / scale:.1f}%"></b></span></td>'
            f"{_format_ratio(share)}{_weight(asked.weight, model) if asked and heavy else ''}"
            f'<td class="n">{exact(round(model.throughput_rps, 2))}</td>'
            f"{_interval(model, bounded) if bounded else ''}"
            f"<td>{model.basis or 'n/a'}</td>"
            f'{rank}<td class="n">{exact(asked.demand_rps if asked else None)}</td>'
            f"{_tokens(model, asked) if tokens else ''}{_service(model, asked)}"
            f"{_response(model, asked) if waits else ''}"
            f"{f'<td>{html.escape(_runs_as(model))}</td>' if cut else ''}{last}{first}</tr>"
        )
    head = (
        '<th>model</th><th title="the mark is the demand">throughput ÷ demand</th><th class="n">×</th>'
        f"{WEIGHTED if heavy else ''}"
        f'<th class="n">req/s</th>{INTERVAL if bounded else ""}<th>basis</th>{TIER if tiers else ""}'
        f'<th class="n">demand</th>{TOKENS if tokens else ""}<th class="n">service p95, ms</th>'
        '<th class="n">limit, ms</th>'
        f"{RESPONSE if waits else ''}{'<th>runs as</th>' if cut else ''}"
    )
    head += '<th class="held" title="what is proven to hold it back">held back by</th>' if binding else ""
    head += '<th class="n">level</th>' if fair else ""
    return table_html(head, rows)


def _share(model: PlannedModel, requested: PlanModel | None) -> float:
    """Throughput over demand; without a request the plan's normalised throughput."""
    return model.throughput_rps / requested.demand_rps if requested else model.normalised


def _format_ratio(share: float) -> str:
    if share >= 1 or equal(share, 1.0):
        return f'<td class="n">{exact(round(share, 3))}</td>'
    # Rounded to 1 it would claim what it has not reached.
    text = exact(min(round(share, 3), 0.999)) if share >= 0.001 else short(share)
    return f'<td class="n below" title="less than its demand">{text} ▾</td>'


def _weight(weight: float, model: PlannedModel) -> str:
    return f'<td class="n">{exact(weight)}</td><td class="n">{exact(round(model.normalised, 3))}</td>'


def _response(model: PlannedModel, requested: PlanModel | None) -> str:
    """The response time beside its limit, and what most of it is."""
    times, limit = model.response_ms, requested.max_response_ms if requested else None
    share = "" if limit is None or requested is None else f" of {requested.response_percentile:g} %"
    mostly = "n/a" if model.response_bound_by is None else MOSTLY[model.response_bound_by]
    return (
        f'<td class="n">{"n/a" if times is None else exact(round(times.p95, 2))}</td>'
        f'<td class="n">{"none" if limit is None else exact(round(limit, 2)) + share}</td><td>{mostly}</td>'
    )


def _service(model: PlannedModel, requested: PlanModel | None) -> str:
    """The service time of a batch beside its limit; empty cells for an LLM, whose tokens have limits."""
    if requested is not None and requested.llm is not None:
        return '<td class="n"></td>' * 2
    limit = requested.max_latency_ms if requested else None
    return (
        f'<td class="n">{exact(round(model.latency_ms, 2)) if model.latency_ms is not None else "n/a"}</td>'
        f'<td class="n">{exact(round(limit, 2)) if limit is not None else "none"}</td>'
    )


def _tokens(model: PlannedModel, requested: PlanModel | None) -> str:
    """The times of an LLM's tokens beside their limits, and its tokens/s; empty cells for other models."""
    llm = None if requested is None else requested.llm
    if llm is None:
        return '<td class="n"></td>' * 3
    pairs = ((model.ttft_ms, llm.max_ttft_ms), (model.tpot_ms, llm.max_tpot_ms))
    cells = "".join(f'<td class="n"{_ends(figure)}>{_within(figure, limit)}</td>' for figure, limit in pairs)
    rate = model.output_tokens_per_s
    return f'{cells}<td class="n">{"n/a" if rate is None else exact(round(rate))}</td>'


def _within(figure: TokenFigure | None, limit: float | None) -> str:
    text = "n/a" if figure is None else short(figure.value)
    return text if limit is None else f"{text} of {short(limit)}"


def _ends(figure: TokenFigure | None) -> str:
    """A title with the interval."""
    if figure is None or figure.low is None or figure.high is None:
        return ""
    return f' title="95 % interval {exact(round(figure.low, 2))} to {exact(round(figure.high, 2))}"'


def _runs_as(model: PlannedModel) -> str:
    """The variant, and the bytes across its cuts."""
    carried = model.bytes_across_cuts_per_s
    across = "" if carried is None else f", {size(carried)}/s across its cuts"
    return f"{model.variant or 'not served'}{across}"


def _interval(model: PlannedModel, bounded: Collection[str]) -> str:
    text = f"{short(model.low_rps)} to {short(model.high_rps)}" if model.name in bounded else "n/a"
    return f'<td class="n">{text}</td>'


def _binding_word(binding: ModelBinding) -> str:
    """What is proven to hold the model back, or "not settled"."""
    answers = [limit.binds for limit in binding.limits]
    return "not settled" if not any(answers) and None in answers else describe_binding(binding)


def _level(plan: PlanOutcome, level: int, before: int) -> str:
    """A level of a fair plan and whether it is proven: then no model of it can have more without a model below having
    less. The levels of tiers come `before`."""
    proven = plan.objective.proven_levels - before
    if level <= proven:
        return f'<span title="level {level} from the worst served: proven">{level}, proven</span>'
    return f'<span title="level {level} from the worst served: not proven">{level}, open</span>'


def _named(model: str, pick: bool) -> str:
    name = html.escape(model)
    return f'<button type="button" data-pick="{name}" aria-pressed="false">{name}</button>' if pick else name
