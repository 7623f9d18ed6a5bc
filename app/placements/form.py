"""The left column of a placement's page: model, fleet, rules. An edit is tried at once where that is quick."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from app.placements import nodes
from app.placements.outcome_tables import SPLITS, UNITS, describe_changes
from app.placements.remembered import remembered
from app.session.placements import StoredPlacement
from app.session.result_kind import PLACEMENT
from app.shell import frame
from torchsplit_core.placement.model.memory import is_decode
from torchsplit_core.values import (
    InputFault,
    PlacementOutcome,
    PlacementRequest,
    PlacementSolver,
    RooflineThroughput,
)
from torchsplit_core.workflow import place
from torchsplit_core.workspace.store import Workspace

QUICK_S = 1.0
"""Seconds of search for a trial, whose outcome may be unproven."""
QUICK_GPUS = 1024
MOST_TRIED = 32


@dataclass(frozen=True)
class TrialPlacement:
    """An edited request that is not stored, with its quick outcome, or None and a fault."""

    request: PlacementRequest
    changes: tuple[str, ...]
    outcome: PlacementOutcome | None
    fault: str = ""


def render(workspace: Workspace, placement: StoredPlacement) -> TrialPlacement | None:
    """The controls; a trial where they differ from the stored request."""
    request, mark = placement.request, f"{placement.sha256} {st.session_state.get(_turn(workspace), 0)}"
    with st.container(border=True):
        st.header("Rules", anchor=False)
        most = st.number_input(
            "GPUs a segment at most", 1, max(64, request.max_gpus_per_segment), request.max_gpus_per_segment,
            key=f"most {mark}", help="Each takes a part of the batch, or holds a part of every layer.",
        )  # fmt: skip
        replicas = st.number_input(
            "Pipelines at once, at most", 1, max(1024, request.max_replicas), request.max_replicas,
            key=f"replicas {mark}",
            help="Each holds the whole model on GPUs of its own; the sum of their throughputs counts.",
        )  # fmt: skip
        # Tensor parallelism is estimated from peaks: other throughputs divide only the batch.
        peaked = isinstance(request.throughput, RooflineThroughput)
        splits = [mode for mode in SPLITS if peaked or mode != "tensor"]
        split = st.radio(
            "GPUs of a segment share", splits, splits.index(request.split), key=f"split {mark}",
            format_func=SPLITS.__getitem__,
        )  # fmt: skip
        same = st.checkbox("One GPU type in a segment", request.same_type_segments, key=f"same {mark}")
        units = st.radio(
            "Links compared in", list(UNITS), list(UNITS).index(request.units), key=f"units {mark}",
            format_func=UNITS.__getitem__,
        )  # fmt: skip
        limit = st.number_input(
            "Seconds at most", 0.1, 36_000.0, float(request.solver.time_limit_s), key=f"limit {mark}"
        )
    numbers = _model(request, mark)
    fleet, added, grow = _fleet(request, mark)
    trial = None
    with frame.fault_boundary():
        edited = replace(
            grow(with_fleet(request, fleet)), model=replace(request.model, **numbers), split=split, units=units,
            max_gpus_per_segment=int(most), same_type_segments=same, max_replicas=int(replicas),
        )  # fmt: skip
        changed = describe_changes(request, edited)
        trial = _try_request(workspace, placement, edited, changed, added) if changed else None
        if st.button("Place", type="primary", width="stretch", key="place"):
            solver = replace(request.solver, time_limit_s=limit)
            PLACEMENT.start(workspace, placement.name, replace(edited, solver=solver))
            st.rerun()
    return trial


def discard_edits(workspace: Workspace) -> None:
    """Reset the controls to the stored request."""
    st.session_state[_turn(workspace)] = st.session_state.get(_turn(workspace), 0) + 1
    st.rerun()


def place_quickly(
    workspace: Workspace, key: str, request: PlacementRequest, before: PlacementOutcome | None
) -> PlacementOutcome:
    """A short exact search from the outcome `before`; the session remembers it under the key. Raises InputFault."""
    limit = min(QUICK_S, request.solver.time_limit_s)
    quick = replace(request, solver=PlacementSolver("exact", limit))
    return remembered(
        f"placements tried in {workspace.id}", key, MOST_TRIED, lambda: place(quick, warm_start=before)
    )


def _try_request(
    workspace: Workspace,
    placement: StoredPlacement,
    edited: PlacementRequest,
    changed: tuple[str, ...],
    added: str,
) -> TrialPlacement:
    if len(edited.gpus) > QUICK_GPUS:
        fault = "A fleet this large is searched in the background: press Place."
        return TrialPlacement(edited, changed, None, fault)
    memory = tuple(dict.fromkeys((gpu.type, gpu.memory_gib) for gpu in edited.gpus))
    key = f"{placement.sha256} {changed} {memory} {added}"
    try:
        return TrialPlacement(edited, changed, place_quickly(workspace, key, edited, placement.outcome))
    except InputFault as fault:
        return TrialPlacement(edited, changed, None, str(fault))


def _model(request: PlacementRequest, mark: str) -> dict[str, Any]:
    model = request.model
    with st.container(border=True):
        st.header("Model", anchor=False)
        batch = st.number_input("Batch, sequences", 1, 1_000_000, model.batch_size, key=f"batch {mark}")
        length, most = model.sequence_length, 10_000_000
        sequence = st.number_input("Sequence, tokens", 1, most, length, key=f"sequence {mark}")
        in_flight, chunk = model.sequences_in_flight, model.prefill_chunk
        if is_decode(request):
            in_flight = st.number_input(
                "Sequences in flight", int(batch), 10_000_000, in_flight and max(in_flight, int(batch)),
                key=f"in flight {mark} {batch}", placeholder="a batch for each segment",
                help="Under way in a pipeline, with their keys and values in memory; a pass makes a token of each.",
            )  # fmt: skip
            chunk = st.number_input(
                "Prompt piece beside it, tokens", 1, 10_000_000, chunk, key=f"chunk {mark}", placeholder="none",
                help="Prompts read in pieces while others decode: activations are those of a piece.",
            )  # fmt: skip
        with st.expander("Sizes"):
            layers = st.number_input("Layers", 1, 10_000, model.layers, key=f"layers {mark}")
            gib, key = float(model.layer_weight_gib), f"weight {mark}"
            weight = st.number_input("Weights of a layer, GiB", 0.0, 100_000.0, gib, format="%.4g", key=key)
            hidden = st.number_input("Hidden size", 1, most, model.hidden_size, key=f"hidden {mark}")
            ffn = st.number_input("Feed-forward size", 1, most, model.ffn_size, key=f"ffn {mark}")
    return {
        "batch_size": int(batch), "sequence_length": int(sequence), "layers": int(layers),
        "layer_weight_gib": float(weight), "hidden_size": int(hidden), "ffn_size": int(ffn),
        "sequences_in_flight": in_flight, "prefill_chunk": chunk,
    }  # fmt: skip


def _fleet(
    request: PlacementRequest, mark: str
) -> tuple[list[dict[str, Any]], str, Callable[[PlacementRequest], PlacementRequest]]:
    """The edited rows, and the added nodes of `nodes.render`."""
    column = st.column_config
    with st.container(border=True):
        st.header("Fleet", anchor=False)
        rows: list[dict[str, Any]] = st.data_editor(
            fleet_rows(request), hide_index=True, key=f"fleet {mark}", alt="GPUs of the fleet", disabled=["type"],
            column_config={
                "type": column.TextColumn("type", width=100),
                "GPUs": column.NumberColumn("GPUs", min_value=0, step=1, required=True, width=60),
                "GiB": column.NumberColumn("GiB", min_value=0.001, required=True, width=55, help="Memory of each."),
            },
        )  # fmt: skip
        st.caption("Fewer than there are: the first of the type stay.")
        return rows, *nodes.render(request, mark)


def fleet_rows(request: PlacementRequest) -> list[dict[str, Any]]:
    """A row for each type and memory, in the order of the fleet."""
    counts: dict[tuple[str, float], int] = {}
    for gpu in request.gpus:
        counts[gpu.type, gpu.memory_gib] = counts.get((gpu.type, gpu.memory_gib), 0) + 1
    return [{"type": kind, "GPUs": count, "GiB": memory} for (kind, memory), count in counts.items()]


def with_fleet(request: PlacementRequest, rows: Sequence[Mapping[str, Any]]) -> PlacementRequest:
    """The request on the first GPUs of each row, with its memory. Raises InputFault for more GPUs than there are."""
    before = fleet_rows(request)
    if list(rows) == before:
        return request
    remaining: dict[tuple[str, float], int] = {}
    memory: dict[tuple[str, float], float] = {}
    for old, new in zip(before, rows, strict=True):
        count = int(new["GPUs"] or 0)
        if count > old["GPUs"]:
            problem = f"asks for {count} GPUs, and the fleet has {old['GPUs']} with known links"
            raise InputFault(
                f"Fleet: {old['type']}", problem, "Add nodes: they come with links of their own."
            )
        key = (old["type"], old["GiB"])
        remaining[key], memory[key] = count, float(new["GiB"] or old["GiB"])
    places, gpus = [], []
    for index, gpu in enumerate(request.gpus):
        key = (gpu.type, gpu.memory_gib)
        remaining[key] -= 1
        if remaining[key] >= 0:
            places.append(index)
            gpus.append(replace(gpu, memory_gib=memory[key]))
    links = tuple(tuple(request.bandwidth_gib_per_s[p][q] for q in places) for p in places)
    return replace(request, gpus=tuple(gpus), bandwidth_gib_per_s=links)


def _turn(workspace: Workspace) -> str:
    return f"turn of placements {workspace.id}"
