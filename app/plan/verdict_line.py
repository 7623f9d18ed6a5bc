"""The verdict on a page, and the way out where fewest GPUs were asked for and nothing is owed to anybody."""

from __future__ import annotations

import streamlit as st

from app.format.numbers import plain
from app.plan.verdict import Verdict
from app.session import draft as drafts
from torchsplit_core.planning.request import edit
from torchsplit_core.planning.request.objective import owes_nothing, without_minimum
from torchsplit_core.values import PlanRequest
from torchsplit_core.workspace.store import Workspace


def verdict_line(verdict: Verdict) -> None:
    """One line in the verdict's colour, above everything that is said of the search."""
    if verdict.colour == "green":
        st.success(plain(verdict.text), icon=":material/check_circle:")
    elif verdict.colour == "red":
        st.error(plain(verdict.text), icon=":material/error:")
    else:
        st.warning(plain(verdict.text), icon=":material/warning:")


def owed_nothing(workspace: Workspace, name: str, stored: PlanRequest, asked: PlanRequest) -> None:
    """Fewest GPUs owe a model its minimum alone: say which have none, and offer the demands as minima."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(plain(_owed_words(asked)), width="stretch")
        if st.button("Take the demands as minima", key="demands-as-minima"):
            drafts.change(workspace, name, stored, edit.with_demands_as_minima(asked))
            st.rerun()


def _owed_words(request: PlanRequest) -> str:
    if owes_nothing(request):
        return "No model has a minimum, so the fewest GPUs is none: nothing is planned."
    free, total = without_minimum(request), len(request.models)
    verb = "has" if len(free) == 1 else "have"
    return (
        f"{len(free)} of {total} models {verb} no minimum, and fewest GPUs owe nothing else: "
        "such a model may get nothing at all."
    )
