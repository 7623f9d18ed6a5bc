"""The trainings of a workspace as a list, the way to a new one, and how wrong the estimate was."""

from __future__ import annotations

import streamlit as st

from app.format.numbers import plain, short
from app.session import trainings
from app.shell import navigation
from app.training import judged, new
from app.training.words import asked, proof
from torchsplit_core.workspace.store import Workspace

INTRODUCTION = (
    "Here you will see how a model is best trained on a fleet, without its GPUs: how devices divide data, tensors and "
    "layers, what is sharded and run again, how long a step takes and in what parts, and how sure that is."
)


def show(workspace: Workspace) -> None:
    """The whole page."""
    known = trainings.known(workspace)
    for name in known:
        with st.container(border=True, key=f"training-{name}", gap="xsmall"):
            navigation.link("Train", plain(name), name, icon=":material/model_training:")
            st.caption(plain(words(trainings.kept(workspace, name))))
    if known:
        st.header("New training", anchor=False)
    else:
        st.write(f"{INTRODUCTION} Begin with an example.")
    new.show(workspace, first=not known)
    judged.show()


def words(kept: trainings.Kept) -> str:
    """What was asked, and how good the answer is."""
    said = asked(kept.request)
    if kept.outcome is None:
        return f"{said}: not searched yet"
    if not kept.outcome.candidates:
        return f"{said}: {proof(kept.outcome)[0]}"
    old = "" if kept.answers else ", of an earlier request"
    return f"{said}: {short(kept.outcome.candidates[0].seconds_per_step, 's')} a step, {proof(kept.outcome)[0]}{old}"
