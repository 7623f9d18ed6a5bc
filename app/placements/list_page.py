"""The placements of a workspace as a list, and the way to a new one."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.placements import new_form
from app.placements.outcome_tables import gpus_used, headline, proof
from app.session import placements
from app.session.result_kind import PLACEMENT
from app.shell import result_list
from torchsplit_core.workspace.store import Workspace


def render(workspace: Workspace) -> None:
    """The whole page."""
    known = PLACEMENT.names(workspace)
    render_cards(workspace, known)
    if known:
        st.header("New placement", anchor=False)
    else:
        st.write(
            "Here you will see which layers of an LLM go on which GPUs of a fleet so that throughput is highest, "
            "drawn over its nodes, with the proof. Begin with an example."
        )
    new_form.render(workspace, first=not known)


def render_cards(workspace: Workspace, known: Sequence[str]) -> None:
    """A card for each of these."""
    result_list.render_cards(
        PLACEMENT,
        known,
        "Place",
        ":material/account_tree:",
        lambda name: describe(placements.load(workspace, name)),
    )


def describe(placement: placements.StoredPlacement) -> str:
    """What was asked, and how good the answer is."""
    problem = f"{placement.request.model.layers} layers on {len(placement.request.gpus)} GPUs"
    if placement.outcome is None:
        return f"{problem}: not placed yet"
    if not placement.outcome.segments:
        return f"{problem}: {proof(placement.outcome)[0]}"
    old = "" if placement.is_current else ", of an earlier request"
    used = gpus_used(placement.outcome)
    of_them = "" if used == len(placement.request.gpus) else f" on {used} of them"
    return f"{problem}: {headline(placement.outcome)}{of_them}, {proof(placement.outcome)[0]}{old}"
