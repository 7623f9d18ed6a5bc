"""The left column of a training's page: fleet, batch, precision, and every choice free or fixed."""

from __future__ import annotations

from dataclasses import fields, replace

import streamlit as st

from app.session import trainings
from app.session.trainings import Kept
from app.shell import frame
from app.training.new import fleet_editor, job_inputs, nodes_of, rows_of
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
"""Choices that a traced model does not have."""


def show(workspace: Workspace, kept: Kept) -> None:
    """The controls as stored, and the way to search with them."""
    request, mark = kept.request, kept.sha256[:12]
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
        fix = _fixes(request.fix, isinstance(request.model, SourceSizes), mark)
    if st.button("Find a strategy", type="primary", width="stretch", key="training-find"):
        with frame.telling():
            model = request.model
            if isinstance(model, TransformerSizes) and sequence is not None:
                model = replace(model, sequence=int(sequence))
            edited = replace(
                request, model=model, fleet=_same_nodes(kept, rows), training=training, fix=fix()
            )
            trainings.put(workspace, kept.name, edited)
            trainings.start(workspace, kept.name)
            st.rerun()


def _same_nodes(kept: Kept, rows: list[dict[str, object]]) -> tuple:  # type: ignore[type-arg]
    """The nodes of the rows; what the table does not show stays as the request has it, row by row."""
    nodes = nodes_of(rows)
    before = kept.request.fleet
    return tuple(
        replace(
            one, inside_gb_per_s=before[place].inside_gb_per_s, host_memory_gib=before[place].host_memory_gib
        )
        if place < len(before) and before[place].type == one.type
        else one
        for place, one in enumerate(nodes)
    )


def _fixes(now: StrategyFix, traced: bool, mark: str):  # type: ignore[no-untyped-def]
    """The controls of the choices; a function that reads them, which raises InputFault."""
    left, right = st.columns(2)
    told: dict[str, str] = {}
    for place, name in enumerate(field.name for field in fields(StrategyFix)):
        if traced and name in OF_SIZES:
            continue
        value = getattr(now, name)
        said, key = name.replace("_", " ").capitalize(), f"training-fix {name} {mark}"
        with left if place % 2 == 0 else right:
            if name in COUNTS:
                told[name] = st.text_input(
                    said, "" if value is None else str(value), key=key, placeholder=FREE
                )
            else:
                shown = {True: "yes", False: "no"}.get(value, value) if value is not None else FREE
                options = (FREE, *NAMED[name])
                told[name] = st.selectbox(said, options, options.index(shown), key=key)

    def read() -> StrategyFix:
        return StrategyFix(**{name: _value(name, text) for name, text in told.items()})  # type: ignore[arg-type]

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
