"""The large figures of a plan as HTML, with arrows to those of the other plan. No streamlit in here."""

from __future__ import annotations

from html import escape
from typing import Literal

from app.plans.presentation.slides import Slide
from app.plans.summary import Metric, metrics, status_badge, weighted
from torchsplit_core.latency_slo.verdict import Level
from torchsplit_core.pictures.numbers import THIN, UNKNOWN, short
from torchsplit_core.planning.comparison.plan_totals import PlanTotals, totals_of

Side = Literal["before", "after"]
Figure = Literal["least", "total_rps", "gpus_used"]
ARROWS = {True: ("▲", "rises"), False: ("▼", "falls")}
"""The arrow of a figure that rises or falls, and its text for screen readers."""
SIGNS = {"green": "✓", "amber": "!", "red": "✕"}
"""A sign beside the colour, for those who do not see colours."""


def verdict_html(level: Level, sentence: str) -> str:
    """The verdict in its colour."""
    return (
        f'<div class="present-verdict {level}"><i aria-hidden="true">{SIGNS[level]}</i>'
        f"<p>{escape(sentence)}</p></div>"
    )


def figures_html(shown: Slide, beside: Slide | None, side: Side) -> str:
    """The worst-served model, requests/s, GPUs, and how far the plan is proven.

    `beside` is the plan of the other side: the one before `shown` ("after"), or after it ("before").
    """
    now, other = _slide_figures(shown), _slide_figures(beside)
    least, total, used = (_arrow(now, other, side, figure) for figure in ("least", "total_rps", "gpus_used"))
    plan = shown.solved
    cards = metrics(plan, shown.request) if plan is not None else None
    label = "Least throughput ÷ weight · demand" if weighted(shown.request) else "Worst-served model gets"
    figures = [
        _figure(label, _text(now, "least"), least, cards[0].help if cards else ""),
        _figure("Requests/s, all models", _text(now, "total_rps"), total, cards[1].help if cards else ""),
        _figure(*_gpus(cards[2] if cards else None), used),
    ]
    if shown.plan is not None:
        proof = cards[0].note if cards else ""
        figures.append(_figure("Proof", escape(status_badge(shown.plan).text), escape(proof), kind="words"))
    return f'<div class="present-figures">{"".join(figures)}</div>'


def _slide_figures(slide: Slide | None) -> PlanTotals | None:
    return None if slide is None or slide.plan is None else totals_of(slide.plan)


def _gpus(card: Metric | None) -> tuple[str, str]:
    """Label and figure, the total in smaller letters."""
    if card is None:
        return "GPUs used", UNKNOWN
    used, separator, total = card.value.partition(" of ")
    return card.label, f"{escape(used)}<i>{separator}{escape(total)}</i>"


def _text(figures: PlanTotals | None, figure: Figure) -> str:
    value = None if figures is None else getattr(figures, figure)
    return f"{short(value)}{THIN}×" if figure == "least" and value is not None else short(value)


def _figure(label: str, value: str, below: str, title: str = "", kind: str = "number") -> str:
    hover = f' title="{escape(title)}"' if title else ""
    return (
        f'<div class="{kind}"{hover}><span>{escape(label)}</span><b>{value}</b>'
        f"<small>{below or '&nbsp;'}</small></div>"
    )


def _arrow(now: PlanTotals | None, other: PlanTotals | None, side: Side, figure: Figure) -> str:
    """An arrow from the figure before, or to the figure after."""
    current, compared = _text(now, figure), _text(other, figure)
    if now is None or other is None or UNKNOWN in (current, compared):
        return ""
    if current == compared:
        return "as before" if side == "after" else "stays"
    first, last = (compared, current) if side == "after" else (current, compared)
    earlier, later = (other, now) if side == "after" else (now, other)
    rises = bool(getattr(later, figure) > getattr(earlier, figure))
    sign, heard = ARROWS[rises]
    # More GPUs are no gain in themselves.
    colour = "neutral" if figure == "gpus_used" else "gain" if rises else "loss"
    words = f"from {first}" if side == "after" else f"to {last}"
    return f'<em class="{colour}"><i role="img" aria-label="{heard}">{sign}</i> {escape(words)}</em>'
