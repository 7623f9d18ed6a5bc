"""The placements of a workspace as a list, and the way to a new one."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.placements import new
from app.placements.words import gpus_used, headline, proof
from app.session import placements
from app.session.thing import PLACEMENT
from app.shell import things
from torchsplit_core.workspace.store import Workspace


def show(workspace: Workspace) -> None:
    """The whole page."""
    known = PLACEMENT.known(workspace)
    cards(workspace, known)
    if known:
        st.header("New placement", anchor=False)
    else:
        st.write(
            "Here you will see which layers of an LLM go on which GPUs of a fleet so that throughput is highest, "
            "drawn over its nodes, with the proof. Begin with an example."
        )
    new.show(workspace, first=not known)


def cards(workspace: Workspace, known: Sequence[str]) -> None:
    """A card for each of these."""
    things.cards(
        PLACEMENT,
        known,
        "Place",
        ":material/account_tree:",
        lambda name: words(placements.kept(workspace, name)),
    )


def words(kept: placements.Kept) -> str:
    """What was asked, and how good the answer is."""
    asked = f"{kept.request.model.layers} layers on {len(kept.request.gpus)} GPUs"
    if kept.outcome is None:
        return f"{asked}: not placed yet"
    if not kept.outcome.segments:
        return f"{asked}: {proof(kept.outcome)[0]}"
    old = "" if kept.answers else ", of an earlier request"
    used = gpus_used(kept.outcome)
    of_them = "" if used == len(kept.request.gpus) else f" on {used} of them"
    return f"{asked}: {headline(kept.outcome)}{of_them}, {proof(kept.outcome)[0]}{old}"
