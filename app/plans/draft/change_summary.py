"""A draft in words and figures: what it changes and gains. No streamlit in here."""

from __future__ import annotations

import html
from collections.abc import Sequence

from torchsplit_core.pictures.numbers import counted, short
from torchsplit_core.planning.comparison.description import format_relative
from torchsplit_core.planning.comparison.plan_totals import totals_of
from torchsplit_core.planning.request.difference import RequestChange
from torchsplit_core.planning.request.objective import goal_of
from torchsplit_core.values import PlanOutcome
from torchsplit_core.workspace.drafts import DraftAuthor

MOST_CHANGES = 6
"""Changes that the bar names; the rest are counted."""


def describe_draft(origin: str, changes: Sequence[RequestChange]) -> str:
    """The changes of the draft in one line."""
    words = ([origin] if origin else []) + [change.description for change in changes]
    more = len(words) - MOST_CHANGES
    if more > 0:
        words = [*words[:MOST_CHANGES], f"{more} more"]
    return " · ".join(words)


def line_html(text: str, kind: str = "") -> str:
    """HTML of one line of the bar; the whole line shows on hover."""
    safe = html.escape(text)
    return f'<p class="draft-line {kind}" title="{safe}">{safe}</p>'


def describe_authors(others: Sequence[DraftAuthor], now: float) -> str:
    """Who else has drafts, the latest edit first."""
    latest = others[0]
    who = f"{latest.owner} has a draft" if latest.owner else "Another tab has a draft"
    more = f", and {counted(len(others) - 1, 'more tab')} too" if len(others) > 1 else ""
    minutes = max(1, round((now - latest.edited) / 60))
    return f"{who}, edited {counted(minutes, 'minute')} ago{more}."


def describe_gains(before: PlanOutcome | None, after: PlanOutcome | None) -> str:
    """The figures of the plan `after` beside those of `before`; empty where one of them is no plan."""
    old = None if before is None else totals_of(before)
    new = None if after is None else totals_of(after)
    if old is None or new is None:
        return ""
    gains = (
        _change("worst served", old.least, new.least),
        _change("requests/s", old.total_rps, new.total_rps),
        _change("GPUs used", old.gpus_used, new.gpus_used, relative=False),
    )
    return " · ".join(filter(None, gains))


def deltas(before: PlanOutcome | None, after: PlanOutcome) -> tuple[str | None, str | None, str | None, None]:
    """The differences of the four cards at the head of the page; None for no difference, and always for the last.

    The first is of the worst-served model, and None where the card has a number of GPUs or their cost.
    """
    old = None if before is None else totals_of(before)
    new = totals_of(after)
    if old is None or new is None:
        return None, None, None, None
    ratio = None
    if old.total_rps and new.total_rps is not None and short(old.total_rps) != short(new.total_rps):
        ratio = format_relative((new.total_rps - old.total_rps) / old.total_rps)
    first = None if goal_of(after.objective).by_cost else _delta(old.least, new.least)
    return first, ratio, _delta(old.gpus_used, new.gpus_used), None


def _delta(old: float | None, new: float | None) -> str | None:
    """The difference with its sign; None where both read the same."""
    if old is None or new is None or short(old) == short(new):
        return None
    return f"{'+' if new > old else '-'}{short(abs(new - old))}"


def _change(what: str, old: float | None, new: float | None, *, relative: bool = True) -> str:
    if old is None or new is None:
        return ""
    if short(old) == short(new):
        return f"{what} {short(new)}, as before"
    ratio = f" ({format_relative((new - old) / old)})" if relative and old else ""
    return f"{what} {short(old)} → {short(new)}{ratio}"
