"""A new placement: a ready example, or a decoder on a fleet of nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from app.placements.outcome_tables import SPLITS, shown_link, stored_link
from app.session.result_kind import PLACEMENT
from app.shell import frame, navigation
from app.shell.inputs import check_nodes, text_of
from torchsplit_core.files import read_file
from torchsplit_core.hardware import peak_names, peaks
from torchsplit_core.placement.request.build import NETWORK_GIB_PER_S, build_request
from torchsplit_core.placement.request.decoders import decoder_names, read_config
from torchsplit_core.placement.request.fleets import matrix_of_csv
from torchsplit_core.values import InputFault, PlacementRequest
from torchsplit_core.workspace.store import Workspace

FOLDER = Path(__file__).resolve().parents[2] / "examples"
FLEET = (
    {"nodes": 2, "GPUs a node": 4, "type": "H100-SXM5-80GB"},
    {"nodes": 2, "GPUs a node": 4, "type": "A100-80GB"},
)
LARGEST_TEXT_BYTES = 64 * 2**20
"""The largest uploaded matrix: 4,096 GPUs with three digits an entry. The command line takes larger ones."""
CUSTOM_CONFIG = "a config.json of mine"


def _example(path: str) -> PlacementRequest:
    request: PlacementRequest = read_file(FOLDER / path, expected="torchsplit.placement_request")[1]
    return request


def structured_fleet() -> PlacementRequest:
    """Llama 405B on 1,024 GPUs: 64 nodes of eight H100, 64 of eight A100."""
    fleet = "64x8xH100-SXM5-80GB,64x8xA100-80GB"
    return build_request("llama-3.1-405b", fleet, batch_size=256, max_gpus_per_segment=4)


EXAMPLES: Mapping[str, Callable[[], PlacementRequest]] = {
    "Llama 70B on 16 GPUs": lambda: _example("placements/decode_70b.json"),
    "Tiny published case, 4 GPUs": lambda: _example("placement_request.json"),
    "30 GPUs of three types": lambda: _example("placements/thirty_gpus.json"),
    "Llama 405B on 1,024 GPUs": structured_fleet,
}


def render(workspace: Workspace, *, first: bool) -> None:
    """The examples and the builder; a new request is stored and placed at once."""
    st.header("Ready examples", anchor=False)
    with st.container(horizontal=True), frame.fault_boundary():
        for place, (label, make) in enumerate(EXAMPLES.items()):
            prominent = first and place == 0
            if st.button(label, type="primary" if prominent else "secondary", key=f"example {place}"):
                _begin(workspace, label, make())
    st.header("Or a decoder on nodes of your own", anchor=False)
    left, right = st.columns(2, gap="medium")
    with left:
        model, config, options = _model()
    with right:
        fleet, matrix, links = _nodes()
    if st.button("Place this model", key="place-build", type="secondary" if first else "primary"):
        with frame.fault_boundary():
            texts = fleet_text(fleet), _text(config), _text(matrix)
            request = build_placement(model, *texts, {**options, **links})
            name = config.name if config is not None else model
            _begin(workspace, f"{name} on {len(request.gpus)} GPUs"[:100], request)


def _model() -> tuple[str, UploadedFile | None, dict[str, Any]]:
    """The decoder's name, the user's config.json, and the options of `build_request`."""
    names = [*decoder_names(), CUSTOM_CONFIG]
    model = st.selectbox("Model", names, names.index("llama-3.1-70b"), key="place-model")
    config = None
    if model == CUSTOM_CONFIG:
        config = st.file_uploader("config.json", type=["json"], key="place-config", max_upload_size=1)
    phase = st.radio(
        "Phase", ["decode", "prefill"], key="place-phase", horizontal=True,
        help="Prefill reads a prompt at once; decode makes one token at a time for each sequence.",
    )  # fmt: skip
    sequence = st.number_input("Sequence, tokens", 1, 10_000_000, 2048, key="place-sequence")
    batch = st.number_input("Batch, sequences", 1, 1_000_000, 64, key="place-batch")
    in_flight = None
    if phase == "decode":
        in_flight = st.number_input(
            "Sequences in flight", int(batch), 10_000_000, None, key=f"place-in-flight {batch}",
            placeholder="a batch for each segment",
            help="Under way in a pipeline, with their keys and values in memory; a pass makes a token of each.",
        )  # fmt: skip
    most = st.number_input("GPUs a segment at most", 1, 64, 2, key="place-most")
    label = "GPUs of a segment share"
    split = st.radio(label, list(SPLITS), key="place-split", format_func=SPLITS.__getitem__)
    options = {"phase": phase, "split": split, "sequences_in_flight": in_flight, "batch_size": int(batch)}
    sizes = {"sequence_length": int(sequence), "max_gpus_per_segment": int(most)}
    return model, config, options | sizes


def _nodes() -> tuple[list[dict[str, Any]], UploadedFile | None, dict[str, Any]]:
    """The rows of the fleet, the file of a matrix, and the link options of `build_request`."""
    known = [name for name in peak_names() if peaks(name).memory_gib is not None]
    column = st.column_config
    fleet = st.data_editor(
        list(FLEET), num_rows="dynamic", hide_index=True, key="place-fleet", alt="Nodes of the fleet",
        column_config={
            "nodes": column.NumberColumn(min_value=1, step=1, required=True),
            "GPUs a node": column.NumberColumn(min_value=1, step=1, required=True),
            "type": column.SelectboxColumn(options=known, required=True),
        },
    )  # fmt: skip
    network = st.number_input(
        "Between nodes, GB/s", 0.0, 100_000.0, shown_link(NETWORK_GIB_PER_S), key="place-network",
        help="12.5 GB/s are 100 Gbit/s. Files of placements have GiB/s, 2^30 bytes.",
    )  # fmt: skip
    inside = st.number_input(
        "Inside a node, GB/s", 0.0, 100_000.0, None, key="place-inside", placeholder="of the catalogue",
        help="Empty: one direction of the catalogue's NVLink, else of its PCIe.",
    )  # fmt: skip
    matrix = st.file_uploader(
        "Or a matrix (CSV): a line of GB/s for each GPU", type=["csv"], key="place-matrix", max_upload_size=64
    )
    links = {
        "network_gib_per_s": stored_link(float(network), NETWORK_GIB_PER_S),
        "inside_gib_per_s": None if inside is None else stored_link(float(inside)),
    }
    return fleet, matrix, links


def build_placement(
    model: str, fleet: str, config: str | None, matrix: str | None, options: Mapping[str, Any]
) -> PlacementRequest:
    """The request; `config` and `matrix` are the text of files. Raises InputFault."""
    if model == CUSTOM_CONFIG and config is None:
        problem = "is missing, and a model of your own is described by it"
        raise InputFault("config.json", problem, "Choose the file.")
    known = decoder_names()[0] if model == CUSTOM_CONFIG else model
    sizes = {"sequence_length": options["sequence_length"], "batch_size": options["batch_size"]}
    request = build_request(known, fleet, **options)
    if model == CUSTOM_CONFIG and config is not None:
        custom_model = read_config(config, "config.json", **sizes)
        in_flight = request.model.sequences_in_flight
        request = replace(request, model=replace(custom_model, sequences_in_flight=in_flight))
    if matrix is not None:
        request = replace(request, bandwidth_gib_per_s=matrix_of_csv(matrix, "the matrix"))
    return request


def fleet_text(rows: list[dict[str, Any]]) -> str:
    """The rows as the fleet text of `build_request`. Raises InputFault for an incomplete row."""
    check_nodes(rows)
    return ",".join(f"{int(row['nodes'])}x{int(row['GPUs a node'])}x{row['type']}" for row in rows)


def _text(file: UploadedFile | None) -> str | None:
    if file is None:
        return None
    if file.size > LARGEST_TEXT_BYTES:
        problem = f"has {file.size:,} bytes, above the most of 64 MiB"
        raise InputFault(file.name, problem, "Choose another file.")
    return text_of(file.getvalue(), file.name)


def _begin(workspace: Workspace, label: str, request: PlacementRequest) -> None:
    navigation.go("Place", PLACEMENT.start_new(workspace, label, request))
