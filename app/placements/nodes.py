"""Controls that add nodes to a fleet: what would another node bring?"""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from app.placements.outcome_tables import shown_link, stored_link
from torchsplit_core.hardware import peak_names, peaks
from torchsplit_core.placement.request.build import NETWORK_GIB_PER_S
from torchsplit_core.placement.request.fleets import Nodes, intra_node_gib_per_s, with_nodes
from torchsplit_core.values import InputFault, LinearThroughput, PlacementRequest, TableThroughput

SAMPLED_GPUS = 64
"""GPUs whose links are sampled to propose those of a new GPU: a matrix of 1,024 GPUs has a million."""
Grow = Callable[[PlacementRequest], PlacementRequest]


def render(request: PlacementRequest, mark: str) -> tuple[str, Grow]:
    """The controls; the added nodes in words ("" for none), and a function that adds them, which raises InputFault."""
    with st.expander("Add nodes"):
        count = st.number_input("Nodes", 0, 512, 0, key=f"add-nodes {mark}")
        gpus = st.number_input("GPUs a node", 1, 64, 4, key=f"add-gpus {mark}")
        kind = st.selectbox("Type", types_of(request), key=f"add-type {mark}")
        gib, key = memory_of(request, kind), f"add-memory {kind} {mark}"
        memory = st.number_input("Memory of each, GiB", 0.001, 100_000.0, gib, key=key)
        inside = st.number_input(
            "Inside the node, GB/s", 0.0, 100_000.0, _shown(intra_node_link(request, kind)), format="%.4g",
            key=f"add-inside {kind} {mark}",
        )  # fmt: skip
        network = st.number_input(
            "To all others, GB/s", 0.0, 100_000.0, _shown(slowest_link(request)), format="%.4g",
            key=f"add-network {mark}",
        )  # fmt: skip

    def grow(before: PlacementRequest) -> PlacementRequest:
        for label, value in (("memory", memory), ("links inside", inside), ("links to others", network)):
            if value is None:
                raise InputFault(f"Add nodes: {label}", "is empty", "Fill it in for the new GPUs.")
        return with_nodes(
            before, Nodes(int(count), int(gpus), kind), memory_gib=float(memory or 0.0),
            inside_gib_per_s=stored_link(float(inside or 0.0), intra_node_link(request, kind)),
            network_gib_per_s=stored_link(float(network or 0.0), slowest_link(request)),
        )  # fmt: skip

    words = f"{count} × {gpus} × {kind}, {memory}, {inside}, {network}" if count else ""
    return words, grow if count else lambda unchanged: unchanged


def _shown(gib_per_s: float | None) -> float | None:
    return None if gib_per_s is None else shown_link(gib_per_s)


def types_of(request: PlacementRequest) -> list[str]:
    """GPU types that the request's throughput knows, those of the fleet first."""
    speeds, fleet_types = request.throughput, dict.fromkeys(gpu.type for gpu in request.gpus)
    if isinstance(speeds, LinearThroughput):
        known = list(speeds.coefficients)
    elif isinstance(speeds, TableThroughput):
        known = [row.gpu_type for row in speeds.rows]
    else:
        known = [*speeds.gpus, *peak_names()]
    return list(dict.fromkeys((*fleet_types, *known)))


def memory_of(request: PlacementRequest, kind: str) -> float | None:
    """GiB of the fleet's GPUs of this type, else of the catalogue's; None where neither has it."""
    fleet_gib = next((gpu.memory_gib for gpu in request.gpus if gpu.type == kind), None)
    gib = fleet_gib if fleet_gib is not None or kind not in peak_names() else peaks(kind).memory_gib
    return None if gib is None else float(gib)


def intra_node_link(request: PlacementRequest, kind: str) -> float | None:
    """GiB/s between two GPUs of a node: the fleet's fastest between two of this type, else the catalogue's."""
    indices = [place for place, gpu in enumerate(request.gpus) if gpu.type == kind][:SAMPLED_GPUS]
    links = [request.bandwidth_gib_per_s[i][j] for i in indices for j in indices if i != j]
    if links:
        return float(max(links))
    return intra_node_gib_per_s(kind) if kind in peak_names() else None


def slowest_link(request: PlacementRequest) -> float:
    """The slowest link that the fleet's first GPUs have, GiB/s: what joins nodes, as a rule."""
    links = [value for row in request.bandwidth_gib_per_s[:SAMPLED_GPUS] for value in row if value > 0]
    return float(min(links, default=NETWORK_GIB_PER_S))
