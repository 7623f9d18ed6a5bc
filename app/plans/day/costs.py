"""What a day costs, on both sides, and where its prices are from. No streamlit in here."""

from __future__ import annotations

from torchsplit_core.pictures.numbers import short
from torchsplit_core.planning.energy.power import types_without_limit
from torchsplit_core.planning.prices.price_table import (
    currency_of,
    missing_prices,
    price_lines,
    today,
    with_prices,
)
from torchsplit_core.values import BothSides, DayOutcome, PlanRequest
from torchsplit_core.values.day.outcome import EnergyRange
from torchsplit_core.values.plan.prices import PriceTable

Card = tuple[str, str, str]


def pair(sides: BothSides) -> str:
    """A figure by window and with one plan all day."""
    return f"{short(sides.windows)} · {short(sides.static)}"


def cost_card(request: PlanRequest, outcome: DayOutcome, table: PriceTable | None) -> Card:
    """The cost of the day, and of a million of what it serves."""
    if outcome.cost_per_day is None:
        return ("Cost a day", "n/a", "give each type a price an hour")
    currency = "" if table is None else currency_of(request, table)
    notes = [
        f"{pair(sides)} per million {what}"
        for what, sides in (
            ("requests", outcome.cost_per_million_requests),
            ("output tokens", outcome.cost_per_million_output_tokens),
        )
        if sides is not None
    ]
    label = f"Cost a day, {currency}" if currency else "Cost a day"
    return (label, pair(outcome.cost_per_day), "; ".join(notes) or "by window · one plan all day")


def energy_card(outcome: DayOutcome) -> Card:
    """The energy of the day, estimated, or why it is not known."""
    energy = outcome.energy_kwh_per_day
    if energy is None:
        plans = (outcome.static, *(window.plan for window in outcome.windows))
        missing = dict.fromkeys(kind for plan in plans for kind in types_without_limit(plan))
        reason = f"no limit of {', '.join(missing)} is known" if missing else "no plan, or not computed then"
        return ("Energy a day, kWh", "n/a", reason)
    note = f"estimated, by window; {_range_words(energy.static)} with one plan all day"
    return ("Energy a day, kWh", _range_words(energy.windows), note)


def _range_words(energy: EnergyRange | None) -> str:
    return "n/a" if energy is None else f"{short(energy.low)}–{short(energy.high)}"


def price_text(request: PlanRequest, outcome: DayOutcome, table: PriceTable | None) -> str:
    """Where the prices of the day are from, or why there are none; "" where they are the request's own."""
    table = table or PriceTable("")
    lines = list(price_lines(request, table, today()))
    if with_prices(request, table) != request:
        lines.append("the workspace's table has other prices: plan the day again to use them")
    elif missing := missing_prices(request, table):
        lines.append(f"no price of {', '.join(missing)}, neither the request's nor the workspace's")
    return f"Prices: {'; '.join(lines)}." if lines else ""
