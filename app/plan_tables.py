"""What each model gets from a plan, as an HTML table. No streamlit in here."""

from __future__ import annotations

import html
from collections.abc import Mapping

from app.frame import table_html
from app.numbers import exact
from torchsplit_core.values import PlanOutcome, PlanRequest


def models_table(
    plan: PlanOutcome, request: PlanRequest | None, colours: Mapping[str, str], *, pick: bool = False
) -> str:
    """Worst-served first; the bar's mark is the demand. With `pick` a click on a name picks it on the map too."""
    demands = {model.name: model.demand_rps for model in request.models} if request else {}
    limits = {model.name: model.max_latency_ms for model in request.models} if request else {}
    scale = max([1.0, *(model.normalised for model in plan.models)])
    rows = []
    for model in sorted(plan.models, key=lambda item: item.normalised):
        colour = colours.get(model.name, "#888")
        width = 100 * model.normalised / scale
        limit = limits.get(model.name)
        rows.append(
            f'<tr data-model="{html.escape(model.name)}"><td class="name">'
            f'<i class="swatch" style="background:{colour}"></i>{_named(model.name, pick)}</td>'
            f'<td><span class="bar" title="{exact(model.normalised)} × demand">'
            f'<i style="width:{width:.1f}%;background:{colour}"></i><b style="left:{100 / scale:.1f}%"></b></span></td>'
            f'<td class="n">{exact(round(model.normalised, 3))}</td>'
            f'<td class="n">{exact(round(model.throughput_rps, 2))}</td>'
            f'<td class="n">{exact(demands.get(model.name))}</td>'
            f'<td class="n">{exact(round(model.latency_ms, 2)) if model.latency_ms is not None else "n/a"}</td>'
            f'<td class="n">{exact(round(limit, 2)) if limit is not None else "none"}</td>'
            f"<td>{html.escape(model.variant or 'not served')}</td></tr>"
        )
    head = (
        '<th>model</th><th>throughput ÷ demand (mark: the demand)</th><th class="n">×</th><th class="n">req/s</th>'
        '<th class="n">demand</th><th class="n">service p95, ms</th><th class="n">limit, ms</th><th>runs as</th>'
    )
    return table_html(head, rows)


def _named(model: str, pick: bool) -> str:
    name = html.escape(model)
    return f'<button type="button" data-pick="{name}" aria-pressed="false">{name}</button>' if pick else name
