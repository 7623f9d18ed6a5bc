"""A fleet as nodes of equal GPUs, with tiers of links or a given matrix."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, replace
from itertools import count, islice

from torchsplit_core.hardware import peak_names, peaks
from torchsplit_core.placement.request.validate import MAX_GPUS
from torchsplit_core.values import InputFault, PlacementGpu, PlacementRequest, quoted, suggestion
from torchsplit_core.values.units import GB, GIB

MOST_ENTRIES = (MAX_GPUS + 2) ** 2
"""Delimiters and line ends of the largest matrix, including both ends of a line."""

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Nodes:
    """`count` nodes of `gpus` GPUs each."""

    count: int
    gpus: int
    type: str


def parse_nodes(text: str) -> tuple[Nodes, ...]:
    """`2x8xH100-SXM5-80GB,1x4xA100-80GB`: two nodes of eight, one of four. Raises InputFault."""
    groups = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,4})x(\d{1,4})x(.+)", part.strip())
        if not match or not int(match[1]) or not int(match[2]):
            raise InputFault(
                "--fleet", f"{quoted(part)} is not NODESxGPUSxTYPE", "Write for example 2x8xH100-SXM5-80GB."
            )
        if match[3] not in peak_names():
            remedy = suggestion(match[3], peak_names(), "GPU types")
            raise InputFault("--fleet", f"unknown GPU type {quoted(match[3])}", remedy)
        groups.append(Nodes(int(match[1]), int(match[2]), match[3]))
    _check_gpu_count("--fleet", sum(nodes.count * nodes.gpus for nodes in groups))
    return tuple(groups)


def _check_gpu_count(where: str, total: int) -> None:
    if total > MAX_GPUS:
        raise InputFault(
            where,
            f"has {total} GPUs, more than the {MAX_GPUS} that a placement takes",
            "Place it on a part of them.",
        )


def list_gpus(fleet: tuple[Nodes, ...]) -> tuple[PlacementGpu, ...]:
    """Every GPU as nodeN/gpuM, with the memory of the catalogue. Raises InputFault if that is not sourced."""
    gpus = []
    for node, nodes in enumerate(_expand_nodes(fleet)):
        memory = peaks(nodes.type).memory_gib
        if memory is None:
            raise InputFault(
                "--fleet",
                f"the catalogue does not know the memory of {nodes.type}",
                "Write the fleet in a request.",
            )
        gpus += [PlacementGpu(f"node{node}/gpu{number}", nodes.type, memory) for number in range(nodes.gpus)]
    return tuple(gpus)


def tiered_links(
    fleet: tuple[Nodes, ...], *, network_gib_per_s: float, inside_gib_per_s: float | None = None
) -> Matrix:
    """GiB/s from each GPU to each other, in the order of `list_gpus`.

    Within a node one direction of NVLink, else of PCIe, or `inside_gib_per_s`; across nodes the network. The
    catalogue's figures are GB/s of both directions together.
    """
    rows: list[tuple[float, ...]] = []
    nodes = list(_expand_nodes(fleet))
    total = sum(node.gpus for node in nodes)
    first = 0
    for node in nodes:
        inside = _require_intra_node_gib_per_s(node.type) if inside_gib_per_s is None else inside_gib_per_s
        for number in range(node.gpus):
            row = [network_gib_per_s] * total
            row[first : first + node.gpus] = [inside] * node.gpus
            row[first + number] = 0.0
            rows.append(tuple(row))
        first += node.gpus
    return tuple(rows)


def with_nodes(
    request: PlacementRequest,
    added: Nodes,
    *,
    memory_gib: float,
    inside_gib_per_s: float,
    network_gib_per_s: float,
) -> PlacementRequest:
    """The request with more nodes after its fleet; their links to the earlier GPUs are the network's, both ways.

    Raises InputFault for a fleet that would be too large.
    """
    before, more = len(request.gpus), added.count * added.gpus
    _check_gpu_count("Fleet", before + more)
    taken = {str(gpu.id).partition("/")[0] for gpu in request.gpus}
    names = (name for number in count() if (name := f"node{number}") not in taken)
    gpus = [
        PlacementGpu(f"{node}/gpu{number}", added.type, memory_gib)
        for node in islice(names, added.count)
        for number in range(added.gpus)
    ]
    rows = [(*row, *(network_gib_per_s,) * more) for row in request.bandwidth_gib_per_s]
    for number_added in range(more):
        row = [network_gib_per_s] * (before + more)
        first = before + number_added // added.gpus * added.gpus
        row[first : first + added.gpus] = [inside_gib_per_s] * added.gpus
        row[before + number_added] = 0.0
        rows.append(tuple(row))
    return replace(request, gpus=(*request.gpus, *gpus), bandwidth_gib_per_s=tuple(rows))


def intra_node_gib_per_s(name: str) -> float | None:
    """GiB/s between two GPUs of a node by the catalogue; None if it has neither NVLink nor PCIe."""
    peak = peaks(name)
    both = peak.nvlink_gb_per_s or peak.pcie_gb_per_s
    return None if both is None else both / 2 * (GB / GIB)


def matrix_of_csv(text: str, origin: str) -> Matrix:
    """GiB/s from a matrix of GB/s (10^9 bytes), a row a line, without headings.

    Raises InputFault with the position of an entry that is no number.
    """
    if text.count(",") + text.count("\n") + text.count("\r") > MOST_ENTRIES:
        raise InputFault(
            origin,
            f"has more entries than a matrix of the most GPUs that a placement takes, {MAX_GPUS}",
            "Choose the file of the matrix.",
        )
    rows: list[tuple[float, ...]] = []
    try:
        for line, cells in enumerate(csv.reader(io.StringIO(text)), 1):
            if cells:
                rows.append(tuple(_entry(cell, origin, line, column) for column, cell in enumerate(cells, 1)))
    except csv.Error as error:
        raise InputFault(
            origin, f"is not CSV: {error}", "Write GB/s from each GPU to each other, separated by commas."
        ) from error
    return tuple(rows)


def _entry(cell: str, origin: str, line: int, column: int) -> float:
    try:
        return float(cell) * GB / GIB
    except ValueError:
        raise InputFault(
            f"{origin}: line {line}, column {column}",
            f"{quoted(cell)} is not a number",
            "Write GB/s from each GPU to each other, without headings.",
        ) from None


def _expand_nodes(fleet: tuple[Nodes, ...]) -> list[Nodes]:
    return [nodes for nodes in fleet for _ in range(nodes.count)]


def _require_intra_node_gib_per_s(name: str) -> float:
    gib_per_s = intra_node_gib_per_s(name)
    if gib_per_s is None:
        raise InputFault(
            "--fleet", f"the catalogue does not know the links of {name}", "Give --inside, in GB/s."
        )
    return gib_per_s
