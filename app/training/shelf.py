"""The trainings of a workspace as a list, the way to a new one, and how wrong the estimate was."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.session import trainings
from app.session.thing import TRAINING
from app.shell import things
from app.training import judged, new
from app.training.words import asked, proof
from torchsplit_core.pictures.numbers import short
from torchsplit_core.workspace.store import Workspace

INTRODUCTION = (
    "Here you will see how a model is best trained on a fleet that you need not have yet: how devices divide data, "
    "tensors and layers, what is sharded and recomputed, how long a step takes and in what parts, and how sure that is."
)


def show(workspace: Workspace) -> None:
    """The whole page."""
    known = TRAINING.known(workspace)
    cards(workspace, known)
    if known:
        st.header("New training", anchor=False)
    else:
        st.write(f"{INTRODUCTION} Begin with an example.")
    new.show(workspace, first=not known)
    judged.show()


def cards(workspace: Workspace, known: Sequence[str]) -> None:
    """A card for each of these."""
    things.cards(
        TRAINING,
        known,
        "Train",
        ":material/model_training:",
        lambda name: words(trainings.kept(workspace, name)),
    )


def words(kept: trainings.Kept) -> str:
    """What was asked, and how good the answer is."""
    said = asked(kept.request)
    if kept.outcome is None:
        return f"{said}: not searched yet"
    if not kept.outcome.candidates:
        return f"{said}: {proof(kept.outcome)[0]}"
    old = "" if kept.answers else ", of an earlier request"
    return f"{said}: {short(kept.outcome.candidates[0].seconds_per_step, 's')} a step, {proof(kept.outcome)[0]}{old}"
