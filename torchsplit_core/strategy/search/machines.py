"""Converts entries of a fleet to the devices and clusters for which a step is estimated."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchsplit_core.hardware.catalogue import gpu_type
from torchsplit_core.hardware.peaks import peak_names, peaks
from torchsplit_core.profiling.host_rates import HostRates
from torchsplit_core.strategy.table_input.gpu_text import read_machine
from torchsplit_core.values.errors import InputFault, quoted, suggestion
from torchsplit_core.values.strategy.request import StrategyNodes
from torchsplit_core.values.training import Precision, TrainingCluster, TrainingDevice
from torchsplit_core.values.units import GB, GIB

CORE_FLOPS = 5e10
"""Single-precision FLOP/s of a core: 16 numbers × 2 operations × 1.6 GHz, a server's all-core rate under AVX-512 with
one unit. An assumption: nothing was measured."""
CORE_BYTES_PER_S = 5e9
"""Memory bandwidth of a core: 32 cores share eight channels of DDR4-2933 (188 GB/s). An assumption."""
CORE_MEMORY_BYTES = 4.0 * GIB
"""Memory of a host for each of its cores, as clouds sell them. An assumption."""
HOST_MEMORY_OF_GPU = 2.0
"""Memory of a host over that of its GPUs by default: clouds sell 1.7 to 3.6 times (eight A100 of 80 GB with 1,360 GB,
of 40 GB with 1,152 GB, eight H100 with 2,048 GB). An assumption."""
ETHERNET_GB_PER_S = 12.5
"""Default for a node of cards without NVLink, or for a host: 100 Gb/s."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Equal nodes of the fleet. `fleet`: the entry's position, from 0; `host`: cores, not GPUs.

    `host_bytes`: host memory for each device. `rates`: of this host's cores, if they were measured.
    """

    fleet: int
    type: str
    devices: int
    device: TrainingDevice
    cluster: TrainingCluster
    host_bytes: float
    host: bool = False
    rates: HostRates | None = None


def host_threads(fleet: tuple[StrategyNodes, ...]) -> int | None:
    """Cores of a device of a fleet that has cores alone; None for any other fleet."""
    cores = [re.fullmatch(r"CPU-(\d+)c", nodes.type) for nodes in fleet]
    return int(cores[0][1]) if len(cores) == 1 and cores[0] else None


def read_fleet(fleet: tuple[StrategyNodes, ...], precision: Precision) -> tuple[Machine, ...]:
    """The machines of a fleet. Raises InputFault for unknown types, links of 0, a precision that a card lacks."""
    if not fleet:
        raise InputFault("fleet", "is empty", "Add nodes.")
    return tuple(_machine(place, nodes, precision, len(fleet) > 1) for place, nodes in enumerate(fleet))


def _machine(place: int, nodes: StrategyNodes, precision: Precision, several: bool) -> Machine:
    where = f"fleet[{place}]"
    cores = re.fullmatch(r"CPU-(\d+)c", nodes.type)
    _check_type(where, nodes.type)
    if cores:
        device, inside, between = _host(nodes.type, int(cores[1]))
    else:
        _check_precision(where, nodes.type, precision)
        device, usual = read_machine(nodes.type)
        inside, between = usual.inside_bytes_per_s, usual.between_bytes_per_s
        between *= nodes.gpus_per_node / usual.gpus_per_node
        if not peaks(nodes.type).nvlink_gb_per_s:
            between = ETHERNET_GB_PER_S * GB
    if nodes.inside_gb_per_s is not None:
        _check_link(f"{where}.inside_gb_per_s", nodes.inside_gb_per_s, nodes.gpus_per_node > 1)
        inside = (nodes.inside_gb_per_s or 1.0) * GB
    if nodes.between_gb_per_s is not None:
        _check_link(f"{where}.between_gb_per_s", nodes.between_gb_per_s, nodes.nodes > 1 or several)
        between = (nodes.between_gb_per_s or 1.0) * GB
    host = 25e9 if cores else (peaks(nodes.type).pcie_gb_per_s or 32.0) / 2 * 0.7 * GB
    cluster = TrainingCluster(nodes.gpus_per_node, inside, between, host)
    if nodes.host_memory_gib is not None:
        host_bytes = nodes.host_memory_gib * GIB / nodes.gpus_per_node
    else:
        host_bytes = 0.0 if cores else HOST_MEMORY_OF_GPU * device.memory_bytes
    devices = nodes.nodes * nodes.gpus_per_node
    return Machine(place, nodes.type, devices, device, cluster, host_bytes, bool(cores))


def _check_type(where: str, name: str) -> None:
    try:
        gpu_type(name)
    except InputFault as fault:
        raise InputFault(f"{where}.type", fault.problem, fault.remedy) from None
    cores, memory, _ = name.partition("c.")
    if memory and name.startswith("CPU-"):
        raise InputFault(
            f"{where}.type",
            f"{quoted(name)} gives the memory of a host, which is assumed from its cores",
            f"Write {cores}c.",
        )
    if not name.startswith("CPU-") and (name not in peak_names() or peaks(name).memory_gib is None):
        raise InputFault(
            f"{where}.type",
            f"{quoted(name)} has no known peak figures",
            suggestion(name, peak_names(), "GPU types with peak figures"),
        )


def _check_precision(where: str, name: str, precision: Precision) -> None:
    table = peaks(name)
    has = {
        "fp32": True,
        "tf32": table.tf32_tflops is not None,
        "fp16": table.fp16_tflops is not None or table.bf16_tflops is not None,
        "bf16": table.bf16_tflops is not None,
        "fp8": table.fp8_tflops is not None,
    }
    if not has[precision]:
        able = ", ".join(word for word, yes in has.items() if yes)
        raise InputFault(
            "training.precision",
            f"is {quoted(precision)}, which {name} ({where}) does not have",
            f"Choose one of {able}, or other cards.",
        )


def _check_link(where: str, value: float, used: bool) -> None:
    if value == 0 and used:
        raise InputFault(
            where, "is 0, but the link joins devices", "Give its GB/s, or null for the catalogue's."
        )


def _host(name: str, cores: int) -> tuple[TrainingDevice, float, float]:
    """A host of `cores` cores as a device. Half precision counts as single: most cores have no other."""
    speed = CORE_FLOPS * cores
    device = TrainingDevice(
        name=name,
        generation="ampere",
        half_flops=speed,
        eight_bit_flops=0.0,
        single_flops=speed,
        bytes_per_s=CORE_BYTES_PER_S * cores,
        memory_bytes=CORE_MEMORY_BYTES * cores,
        multiprocessors=0,
    )
    return device, ETHERNET_GB_PER_S * GB, ETHERNET_GB_PER_S * GB
