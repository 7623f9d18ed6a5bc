"""The trainings of a workspace as a list, the way to a new one, and how wrong the estimate was."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.session import trainings
from app.session.result_kind import TRAINING
from app.shell import result_list
from app.trainings import accuracy, new_form
from app.trainings.strategy_tables import describe_request, proof
from torchsplit_core.pictures.numbers import short
from torchsplit_core.workspace.store import Workspace

INTRODUCTION = (
    "Here you will see how a model is best trained on a fleet that you need not have yet: how devices divide data, "
    "tensors and layers, what is sharded and recomputed, how long a step takes and in what parts, and how sure that is."
)


def render(workspace: Workspace) -> None:
    """The whole page."""
    known = TRAINING.names(workspace)
    render_cards(workspace, known)
    if known:
        st.header("New training", anchor=False)
    else:
        st.write(f"{INTRODUCTION} Begin with an example.")
    new_form.render(workspace, first=not known)
    accuracy.render()


def render_cards(workspace: Workspace, known: Sequence[str]) -> None:
    """A card for each of these."""
    result_list.render_cards(
        TRAINING,
        known,
        "Train",
        ":material/model_training:",
        lambda name: describe(trainings.load(workspace, name)),
    )


def describe(training: trainings.StoredTraining) -> str:
    """What was asked, and how good the answer is."""
    problem = describe_request(training.request)
    if training.outcome is None:
        return f"{problem}: not searched yet"
    if not training.outcome.candidates:
        return f"{problem}: {proof(training.outcome)[0]}"
    old = "" if training.is_current else ", of an earlier request"
    return f"{problem}: {short(training.outcome.candidates[0].seconds_per_step, 's')} a step, {proof(training.outcome)[0]}{old}"
