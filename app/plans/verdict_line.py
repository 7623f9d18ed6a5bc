"""The verdict on a page, and two offers: demands as minima for fewest GPUs, limits of the response for queues."""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st

from app.session import draft as drafts
from torchsplit_core.latency_slo.verdict import PlanVerdict
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.planning.request import edit
from torchsplit_core.planning.request.objective import has_no_minimum, models_without_minimum
from torchsplit_core.values import PlanRequest
from torchsplit_core.workspace.store import Workspace


def render_verdict(verdict: PlanVerdict) -> None:
    """The verdict in its colour."""
    if verdict.level == "green":
        st.success(escape_markdown(verdict.sentence), icon=":material/check_circle:")
    elif verdict.level == "red":
        st.error(escape_markdown(verdict.sentence), icon=":material/error:")
    else:
        st.warning(escape_markdown(verdict.sentence), icon=":material/warning:")


def render_facts(verdict: PlanVerdict, more: Iterable[str] = ()) -> None:
    """The facts of the verdict, and `more` about the plan; the verdict's sentence names the models that fail."""
    answers = ((fact.question, "no" if fact.answer == "no" else fact.text) for fact in verdict.facts)
    facts = [f"{question}: {answer}" for question, answer in answers]
    st.caption(escape_markdown(" · ".join((*facts, *filter(None, more)))), width="stretch")


def offer_response_limits(workspace: Workspace, name: str, stored: PlanRequest, request: PlanRequest) -> None:
    """Offer a plan whose response times keep the limits, where only service times do."""
    if st.button("Plan for the response time", key="plan-for-response"):
        drafts.change(workspace, name, stored, edit.with_response_limits(request))
        st.rerun()


def offer_minimum_demands(workspace: Workspace, name: str, stored: PlanRequest, request: PlanRequest) -> None:
    """For fewest GPUs, say how many models have no minimum, and offer the demands as minima."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(escape_markdown(_describe_without_minimum(request)), width="stretch")
        if st.button("Take the demands as minima", key="demands-as-minima"):
            drafts.change(workspace, name, stored, edit.with_demands_as_minima(request))
            st.rerun()


def _describe_without_minimum(request: PlanRequest) -> str:
    if has_no_minimum(request):
        return "No model has a minimum, so the fewest GPUs are none. Nothing is planned."
    free, total = models_without_minimum(request), len(request.models)
    verb = "has" if len(free) == 1 else "have"
    text = f"{len(free)} of {total} models {verb} no minimum."
    return f"{text} With Fewest GPUs such a model may get nothing at all."
