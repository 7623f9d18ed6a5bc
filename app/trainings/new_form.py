"""A new training: a ready example, a published model, a config.json, sizes, or a model traced here, on nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from app.session.result_kind import TRAINING
from app.session.workspace import names
from app.shell import frame, navigation
from app.shell.inputs import check_nodes, text_of
from torchsplit_core.hardware import peak_names, peaks
from torchsplit_core.strategy.presets import preset, preset_names, read_config
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.request import (
    SourceSizes,
    StrategyNodes,
    StrategyRequest,
    TransformerSizes,
)
from torchsplit_core.values.training import TrainingJob
from torchsplit_core.workspace.store import Workspace

PUBLISHED, CONFIG, SIZES, TRACED = "published", "config.json", "sizes", "traced here"
PRECISIONS = ("bf16", "fp16", "fp32", "tf32", "fp8")
OPTIMIZERS = ("adamw", "sgd")
FLEET = ({"nodes": 8, "GPUs a node": 8, "type": "A100-80GB"},)
EXAMPLES = {
    "Llama 3 8B on 8 H100": ("llama3-8", 8192, 1, "H100-SXM5-80GB", 128),
    "Llama 3 70B on 64 nodes of 8 H100": ("llama3-70", 8192, 64, "H100-SXM5-80GB", 1024),
    "Mixtral 8x7B on 4 nodes of 8 A100": ("mixtral-8x7", 4096, 4, "A100-80GB", 256),
}
"""Name: the published model, its sequence, nodes of eight GPUs, their type, sequences a step."""


def render(workspace: Workspace, *, first: bool) -> None:
    """Draw the examples and the builder; both store the request and search at once."""
    st.header("Ready examples", anchor=False)
    with st.container(horizontal=True), frame.fault_boundary():
        for place, label in enumerate(EXAMPLES):
            kind = "primary" if first and place == 0 else "secondary"
            if st.button(label, type=kind, key=f"training-example {place}"):  # type: ignore[arg-type]
                _begin(workspace, label, example(label))
    st.header("Or a model of yours", anchor=False)
    left, right = st.columns(2, gap="medium")
    with left, frame.fault_boundary():
        form = _model(workspace)
    with right:
        fleet = fleet_editor(list(FLEET), "new")
        training = job_inputs(TrainingJob(512), "new")
    if st.button("Find a strategy", key="training-build", type="secondary" if first else "primary"):
        with frame.fault_boundary():
            name, model = sizes_of(form)
            request = StrategyRequest(model, nodes_of(fleet), training)
            gpus = sum(entry.nodes * entry.gpus_per_node for entry in request.fleet)
            _begin(workspace, f"{name} on {gpus}", request)


def example(label: str) -> StrategyRequest:
    """The request of a ready example."""
    name, sequence, nodes, kind, batch = EXAMPLES[label]
    return StrategyRequest(preset(name, sequence), (StrategyNodes(nodes, 8, kind),), TrainingJob(batch))


def _model(workspace: Workspace) -> dict[str, Any]:
    """Draw the inputs of the model for the chosen kind; return their values."""
    traced = names(workspace, "graph")
    kinds = [PUBLISHED, CONFIG, SIZES, *([TRACED] if traced else [])]
    kind = st.radio("Model", kinds, horizontal=True, key="training-kind")
    form: dict[str, Any] = {"kind": kind}
    if kind == PUBLISHED:
        known = preset_names()
        form["name"] = st.selectbox("Published model", known, known.index("llama3-8"), key="training-preset")
    elif kind == CONFIG:
        file = st.file_uploader("config.json", type=["json"], key="training-config", max_upload_size=1)
        form["file"] = file.name if file else None
        form["text"] = text_of(file.getvalue(), file.name) if file else None
    elif kind == TRACED:
        form["source"] = st.selectbox("Traced model", traced, key="training-source")
        st.caption(
            "Estimated from its graph, and from its measured profile where that is of the fleet's device."
        )
        return form
    else:
        start = preset("gpt3-175", 2048)
        left, right = st.columns(2)
        for place, name in enumerate(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts")):
            with left if place % 2 == 0 else right:
                label = name.replace("_", " ").capitalize()
                form[name] = int(
                    st.number_input(label, 1, 2**20, getattr(start, name), key=f"training-{name}")
                )
        form["experts_per_token"] = int(
            st.number_input(
                "Experts a token", 1, form["experts"], 1, key=f"training-chosen {form['experts']}"
            )
        )
        form["gated"] = st.checkbox("Gated feed-forward", key="training-gated")
        form["tied_embeddings"] = st.checkbox("One matrix for words in and out", True, key="training-tied")
    form["sequence"] = int(st.number_input("Sequence, tokens", 1, 2**24, 4096, key="training-sequence"))
    return form


def sizes_of(form: Mapping[str, Any]) -> tuple[str, TransformerSizes | SourceSizes]:
    """A short name and the model of these inputs. Raises InputFault."""
    if form["kind"] == TRACED:
        return str(form["source"]), SourceSizes(form["source"])
    if form["kind"] == PUBLISHED:
        return form["name"], preset(form["name"], form["sequence"])
    if form["kind"] == CONFIG:
        if form.get("text") is None:
            raise InputFault(
                "config.json", "is missing, and a model of your own is described by it", "Choose the file."
            )
        return form["file"], read_config(form["text"], form["file"], form["sequence"])
    values = {name: value for name, value in form.items() if name != "kind"}
    sizes = TransformerSizes(**values)
    sizes.transformer()
    return f"{sizes.layers} layers of {sizes.hidden}", sizes


def fleet_editor(rows: list[dict[str, Any]], mark: str) -> list[dict[str, Any]]:
    """Draw the editor of the fleet; return its rows."""
    known = [name for name in peak_names() if peaks(name).memory_gib is not None]
    present = {row["type"] for row in rows}
    cores = [f"CPU-{count}c" for count in (16, 32, 64, 128)]
    options = [*known, *cores, *sorted(present - {*known, *cores})]
    column = st.column_config
    edited: list[dict[str, Any]] = st.data_editor(
        rows, num_rows="dynamic", hide_index=True, key=f"training-fleet {mark}", alt="Nodes of the fleet",
        column_order=("type", "nodes", "GPUs a node", "GB/s between nodes"),
        column_config={
            "nodes": column.NumberColumn(min_value=1, step=1, required=True, width=72),
            "GPUs a node": column.NumberColumn("GPUs", min_value=1, step=1, required=True, width=76, help="Of a node."),
            "type": column.SelectboxColumn(options=options, required=True, width=124),
            "GB/s between nodes": column.NumberColumn(min_value=0.0, help="Empty: the catalogue's."),
        },
    )  # fmt: skip
    return edited


def job_inputs(now: TrainingJob, mark: str) -> TrainingJob:
    """Draw batch, precision and optimizer; return the job."""
    batch = st.number_input(
        "Global batch size, sequences", 1, 2**20, now.global_batch, key=f"training-batch {mark}"
    )
    left, right = st.columns(2)
    with left:
        precision = st.selectbox(
            "Precision", PRECISIONS, PRECISIONS.index(now.precision), key=f"training-precision {mark}"
        )
    with right:
        optimizer = st.selectbox(
            "Optimizer", OPTIMIZERS, OPTIMIZERS.index(now.optimizer), key=f"training-optimizer {mark}"
        )
    return TrainingJob(int(batch), precision, optimizer)  # type: ignore[arg-type]


def rows_of(request: StrategyRequest) -> list[dict[str, Any]]:
    """The fleet as rows of the editor."""
    return [
        {
            "nodes": entry.nodes,
            "GPUs a node": entry.gpus_per_node,
            "type": entry.type,
            "GB/s between nodes": entry.between_gb_per_s,
        }
        for entry in request.fleet
    ]


def nodes_of(rows: list[dict[str, Any]]) -> tuple[StrategyNodes, ...]:
    """The rows as nodes. Raises InputFault for a fleet without a row, or a row with a gap."""
    check_nodes(rows)
    return tuple(
        StrategyNodes(
            int(row["nodes"]), int(row["GPUs a node"]), row["type"], None, row.get("GB/s between nodes")
        )
        for row in rows
    )


def _begin(workspace: Workspace, label: str, request: StrategyRequest) -> None:
    navigation.go("Train", TRAINING.start_new(workspace, label[:100], request))
