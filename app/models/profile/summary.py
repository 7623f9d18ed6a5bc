"""The answer at the top of the Profile page: how much was measured, and how sure the figures are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import streamlit as st

from app.format.badges import Colour
from app.shell import widgets
from torchsplit_core.pictures.numbers import THIN, UNKNOWN, counted, exact, percent, short
from torchsplit_core.values import Profile, ProfileRow

BASES: Mapping[str, Colour] = {"measured": "green", "emulated": "gray", "estimated": "yellow"}
"""The bases of rows, and the colours of their badges."""


def render(profiles: Mapping[str, Profile]) -> None:
    """Three figures, and badges of the rows behind them."""
    rows = [row for profile in profiles.values() for row in profile.rows]
    tried = [row for row in rows if row.basis != "estimated"]
    estimated = [row for row in rows if row.basis == "estimated"]
    failures = [item for profile in profiles.values() for item in profile.failures]
    failed = sum(item.tried for item in failures)
    untried = len(failures) - failed
    factor = _median_of(estimated, "90 % interval, as a factor either way")
    cards = (
        (
            "Points measured",
            exact(len(tried)),
            f"of {exact(len(rows))} in {counted(len(profiles), 'profile')}",
        ),
        ("A measured figure is sure within", _half_width(tried), _median_of(tried, "90 % interval")),
        ("An estimate is sure within", _factor(estimated), factor),
    )
    widgets.metric_cards(cards)
    with st.container(horizontal=True, vertical_alignment="center"):
        for basis, colour in BASES.items():
            if count := sum(row.basis == basis for row in rows):
                widgets.badge(f"{exact(count)} rows {basis}", colour)
        if failed:
            widgets.badge(counted(failed, "point failed", "points failed"), "red")
        if untried:
            widgets.badge(counted(untried, "point not tried", "points not tried"), "gray")


def _median_of(rows: Sequence[ProfileRow], what: str) -> str:
    """What the median is of: imported measurements may have no interval."""
    known = len(list(_ratios(rows)))
    if known == len(rows):
        return f"median {what}"
    return f"median {what}, of the {exact(known)} of {exact(len(rows))} points that have one"


def _half_width(rows: Iterable[ProfileRow]) -> str:
    ratios = list(_ratios(rows))
    if not ratios:
        return UNKNOWN
    typical = median(ratios)
    return f"±{THIN}{percent(typical - 1)}" if typical < 2 else f"×{THIN}{short(typical)}"


def _factor(rows: Iterable[ProfileRow]) -> str:
    ratios = list(_ratios(rows))
    return f"×{THIN}{short(median(ratios))}" if ratios else UNKNOWN


def _ratios(rows: Iterable[ProfileRow]) -> Iterable[float]:
    """The half-width of each known interval as a factor."""
    for row in rows:
        if row.low_rps and row.high_rps:
            yield math.sqrt(row.high_rps / row.low_rps)
