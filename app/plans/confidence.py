"""How sure a plan is, on the page and in the report: what holds at the low end, and what to measure next.

The command line has the same words.
"""

from __future__ import annotations

import streamlit as st

from app.shell import navigation
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.planning.confidence import formatting
from torchsplit_core.planning.confidence.assessment import PlanConfidence, assess_confidence
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest


def confidence_of(request: PlanRequest | None, plan: PlanOutcome) -> PlanConfidence | None:
    """How sure a plan is; None without its request."""
    if request is None:
        return None
    try:
        return assess_confidence(request, plan)
    except InputFault:
        return None  # The page says that the plan answers an earlier request.


def describe_low_end(plan_confidence: PlanConfidence) -> str:
    """Yes, no or unknown, and why."""
    why = formatting.format_low_shortfalls(plan_confidence)
    return f"Meets its demand even at the low end: {plan_confidence.low_end}{f' ({why})' if why else ''}."


def reasons(plan_confidence: PlanConfidence) -> tuple[str, ...]:
    """The reasons for that, a sentence each."""
    lines = [f"The plan is made for {formatting.format_figures_used(plan_confidence)}."]
    if not plan_confidence.meets:
        shortfalls = formatting.format_nominal_shortfalls(plan_confidence)
        lines.append(f"Meets its demand as planned: no ({shortfalls}).")
    if not plan_confidence.meets_low:
        lines.append(f"Surest to fail: {formatting.format_surest_to_fail(plan_confidence)}.")
    if plan_confidence.next_measurement is not None:
        measurement = formatting.format_measurement(plan_confidence.next_measurement)
        lines.append(f"Best measured next: {measurement}.")
    return tuple(lines)


def render(plan_confidence: PlanConfidence | None) -> None:
    """What holds at the low end, the reasons, and a link to measure."""
    if plan_confidence is None:
        return
    with st.container(border=True, key="sureness", gap="xsmall"):
        st.markdown(f"**{escape_markdown(describe_low_end(plan_confidence))}**")
        for reason in reasons(plan_confidence):
            st.caption(escape_markdown(reason))
        if plan_confidence.next_measurement is not None:
            navigation.link("Profile", "Measure it under Profile")
