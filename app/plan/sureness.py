"""How sure a plan is, on the page and in the report: what holds at the low end, and what to measure next.

The words are the command line's.
"""

from __future__ import annotations

import streamlit as st

from app.shell import navigation
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.planning.sureness import words
from torchsplit_core.planning.sureness.verdict import Sureness, sureness
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest


def sureness_of(request: PlanRequest | None, plan: PlanOutcome) -> Sureness | None:
    """How sure a plan is; None where its request is not here or is another one."""
    if request is None:
        return None
    try:
        return sureness(request, plan)
    except InputFault:
        return None  # The page says of such a plan that it answers an earlier request.


def low_end(found: Sureness) -> str:
    """Yes, no or unknown, and why."""
    why = words.low_words(found)
    return f"Meets its demand even at the low end: {found.low_end}{f' ({why})' if why else ''}."


def reasons(found: Sureness) -> tuple[str, ...]:
    """What stands behind that, a sentence each."""
    told = [f"The plan is made for {words.figures_words(found)}."]
    if not found.meets:
        told.append(f"Meets its demand as planned: no ({words.nominal_words(found)}).")
    if not found.meets_low:
        told.append(f"Surest to fail: {words.surest_words(found)}.")
    if found.next_measurement is not None:
        told.append(f"Best measured next: {words.measurement_words(found.next_measurement)}.")
    return tuple(told)


def show(found: Sureness | None) -> None:
    """What holds at the low end and its reasons, with the way to measure."""
    if found is None:
        return
    with st.container(border=True, key="sureness", gap="xsmall"):
        st.markdown(f"**{escape_markdown(low_end(found))}**")
        for reason in reasons(found):
            st.caption(escape_markdown(reason))
        if found.next_measurement is not None:
            navigation.link("Profile", "Measure it under Profile")
