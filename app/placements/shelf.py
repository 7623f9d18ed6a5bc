"""The placements of a workspace as a list, and the way to a new one."""

from __future__ import annotations

import streamlit as st

from app.format.numbers import plain
from app.placements import new
from app.placements.words import gpus_used, headline, proof
from app.session import placements
from app.shell import navigation
from torchsplit_core.workspace.store import Workspace


def show(workspace: Workspace) -> None:
    """The whole page."""
    known = placements.known(workspace)
    for name in known:
        with st.container(border=True, key=f"placement-{name}", gap="xsmall"):
            navigation.link("Place", plain(name), name, icon=":material/account_tree:")
            st.caption(plain(words(placements.kept(workspace, name))))
    if known:
        st.header("New placement", anchor=False)
    else:
        st.write(
            "Here you will see which layers of an LLM go on which GPUs of a fleet so that throughput is highest, "
            "drawn over its nodes, with the proof. Begin with an example."
        )
    new.show(workspace, first=not known)


def words(kept: placements.Kept) -> str:
    """What was asked, and how good the answer is."""
    asked = f"{kept.request.model.layers} layers on {len(kept.request.gpus)} GPUs"
    if kept.outcome is None:
        return f"{asked}: not placed yet"
    if not kept.outcome.segments:
        return f"{asked}: {proof(kept.outcome)[0]}"
    old = "" if kept.answers else ", of an earlier request"
    return (
        f"{asked}: {headline(kept.outcome)} on {gpus_used(kept.outcome)} GPUs, {proof(kept.outcome)[0]}{old}"
    )
