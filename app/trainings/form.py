"""The left column of a training's page: fleet, batch, precision, and every choice free or fixed."""

from __future__ import annotations

from dataclasses import fields, replace

import streamlit as st

from app.session.result_kind import TRAINING
from app.session.trainings import StoredTraining
from app.shell import frame
from app.trainings.new_form import fleet_editor, job_inputs, nodes_of, rows_of
from torchsplit_core.strategy.supported import LIMITS
from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.strategy.request import SourceSizes, StrategyFix, TransformerSizes
from torchsplit_core.workspace.store import Workspace

FREE = "free"
COUNTS = ("data", "tensor", "pipeline", "context", "expert", "micro_batch", "interleave")
NAMED = {
    "shard": ("none", "zero1", "zero2", "fsdp", "hsdp"),
    "recompute": ("none", "selective", "full"),
    "sequence_parallel": ("no", "yes"),
    "offload": ("none", "optimizer", "parameters"),
}
OF_SIZES = ("tensor", "context", "expert", "interleave", "sequence_parallel")
"""Choices that traced models do not have."""


def render(workspace: Workspace, stored_training: StoredTraining) -> None:
    """Draw the controls with the stored values, and the button that searches with them."""
    request, mark = stored_training.request, stored_training.sha256[:12]
    with st.container(border=True):
        st.header("Fleet", anchor=False)
        rows = fleet_editor(rows_of(request), mark)
    with st.container(border=True):
        st.header("Step", anchor=False)
        training = job_inputs(request.training, mark)
        sequence = None
        if isinstance(request.model, TransformerSizes):
            sequence = st.number_input(
                "Sequence, tokens", 1, 2**24, request.model.sequence, key=f"training-sequence {mark}"
            )
    with st.container(border=True):
        st.header("Choices", anchor=False)
        st.caption("Free choices are searched; a fixed one holds for every candidate.")
        fix = _render_fixes(request.fix, isinstance(request.model, SourceSizes), mark)
        may_need = st.multiselect(
            "May need", sorted({limit.choice for limit in LIMITS} | {*request.may_need}), request.may_need,
            key=f"training-may-need {mark}",
            help="Choices that a strategy may have although a run or a file does not carry them out yet.",
        )  # fmt: skip
        calibrate = None
        if isinstance(request.model, SourceSizes):
            calibrate = st.checkbox(
                "Calibrate by finished runs", request.model.calibrate_by_runs, key=f"training-calibrate {mark}",
                help="Measured steps of finished runs of this model on this host correct the estimated seconds.",
            )  # fmt: skip
    if st.button("Find a strategy", type="primary", width="stretch", key="training-find"):
        with frame.fault_boundary():
            model = request.model
            if isinstance(model, TransformerSizes) and sequence is not None:
                model = replace(model, sequence=int(sequence))
            elif isinstance(model, SourceSizes) and calibrate is not None:
                model = replace(model, calibrate_by_runs=calibrate)
            edited = replace(
                request,
                model=model,
                fleet=_merge_nodes(stored_training, rows),
                training=training,
                fix=fix(),
                may_need=tuple(may_need),
            )
            TRAINING.start(workspace, stored_training.name, edited)
            st.rerun()


def _merge_nodes(training: StoredTraining, rows: list[dict[str, object]]) -> tuple:  # type: ignore[type-arg]
    """The nodes of the rows; values that the table lacks stay as in the request, row by row."""
    nodes = nodes_of(rows)
    before = training.request.fleet
    return tuple(
        replace(
            node, inside_gb_per_s=before[place].inside_gb_per_s, host_memory_gib=before[place].host_memory_gib
        )
        if place < len(before) and before[place].type == node.type
        else node
        for place, node in enumerate(nodes)
    )


def _render_fixes(now: StrategyFix, traced: bool, mark: str):  # type: ignore[no-untyped-def]
    """Draw the controls of the choices; return a function that reads them and may raise InputFault."""
    left, right = st.columns(2)
    entered: dict[str, str] = {}
    for place, name in enumerate(field.name for field in fields(StrategyFix)):
        if traced and name in OF_SIZES:
            continue
        value = getattr(now, name)
        label, key = name.replace("_", " ").capitalize(), f"training-fix {name} {mark}"
        with left if place % 2 == 0 else right:
            if name in COUNTS:
                entered[name] = st.text_input(
                    label, "" if value is None else str(value), key=key, placeholder=FREE
                )
            else:
                shown = {True: "yes", False: "no"}.get(value, value) if value is not None else FREE
                options = (FREE, *NAMED[name])
                entered[name] = st.selectbox(label, options, options.index(shown), key=key)

    def read() -> StrategyFix:
        return StrategyFix(**{name: _value(name, text) for name, text in entered.items()})  # type: ignore[arg-type]

    return read


def _value(name: str, text: str) -> int | str | bool | None:
    if text.strip() in ("", FREE):
        return None
    if name == "sequence_parallel":
        return text == "yes"
    if name not in COUNTS:
        return text
    if not text.strip().isdecimal() or not 1 <= int(text) <= 2**20:
        raise InputFault(
            name.replace("_", " ").capitalize(),
            f"is {quoted(text)}, not a whole number from 1 to {2**20:,}",
            "Correct it, or leave it empty.",
        )
    return int(text)
