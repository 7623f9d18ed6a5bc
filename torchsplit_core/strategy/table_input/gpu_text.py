"""A GPU and the cluster around it from free text: "A100-80GB (Selene, 8xHDR)", "H200 NVLink + 400Gb/s per GPU"."""

from __future__ import annotations

import re

from torchsplit_core.hardware.peaks import GpuPeaks, peaks
from torchsplit_core.strategy.table_input.errors import RowError
from torchsplit_core.values.training import Generation, TrainingCluster, TrainingDevice
from torchsplit_core.values.units import GB, GIB

_GPUS: tuple[tuple[str, str, Generation], ...] = (
    (r"gb300", "GB300-279GB", "blackwell"),
    (r"b300", "B300-270GB", "blackwell"),
    (r"gb200", "GB200-186GB", "blackwell"),
    (r"b200", "B200-180GB", "blackwell"),
    (r"gh200.*144", "GH200-144GB-HBM3e", "hopper"),
    (r"gh200", "GH200-96GB", "hopper"),
    (r"h200", "H200-141GB", "hopper"),
    (r"h20(?!\d)(?!.*141)", "H20-96GB", "hopper"),
    (r"h100.*nvl(?!ink)", "H100-NVL-94GB", "hopper"),
    (r"h100.*pcie|pcie.*h100", "H100-PCIe-80GB", "hopper"),
    (r"h100|h800", "H100-SXM5-80GB", "hopper"),
    (r"a100.*(?<!\d)40\s*g|dgx[- ]?a100.*(?<!\d)40\s*g", "A100-40GB", "ampere"),
    (r"a100|a800", "A100-80GB", "ampere"),
    (r"v100", "V100-SXM2-32GB", "volta"),
    (r"a30(?!\d)", "A30-24GB", "ampere"),
    (r"a40(?!\d)", "A40-48GB", "ampere"),
    (r"a10(?!\d)", "A10-24GB", "ampere"),
    (r"l40s", "L40S-48GB", "ampere"),
    (r"l20(?!\d)", "L20-48GB", "ampere"),
    (r"l4(?!\d)", "L4-24GB", "ampere"),
    (r"(rtx)?[- _]?4090", "RTX4090-24GB", "ampere"),
    (r"rtx[- _]?pro[- _]?6000.*max-?q", "RTX-PRO-6000-Blackwell-Max-Q-96GB", "blackwell"),
    (r"rtx[- _]?pro[- _]?6000.*workstation", "RTX-PRO-6000-Blackwell-Workstation-96GB", "blackwell"),
    (r"rtx[- _]?pro[- _]?6000", "RTX-PRO-6000-Blackwell-96GB", "blackwell"),
    (r"rtx[- _]?pro[- _]?5000", "RTX-PRO-5000-Blackwell-48GB", "blackwell"),
    (r"rtx[- _]?pro[- _]?4500", "RTX-PRO-4500-Blackwell-32GB", "blackwell"),
    (r"(?<![a-z])t4(?!\d)", "T4-16GB", "volta"),
)
"""Text to search for, the GPU in the catalogue, and the generation for its constants; the first match counts."""

_NODE_GBIT = {"volta": 800.0, "ampere": 1600.0, "hopper": 3200.0, "blackwell": 3200.0}
"""Gb/s of a node's network cards by default: DGX-2 and DGX A100 have eight of 100 and 200 Gb/s, DGX H100 and B200
eight of 400 (NVIDIA's user guides of the systems)."""

_MEMORIES = frozenset((16, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 144, 180, 186, 192, 270, 279, 288))
"""GiB of data-centre GPUs on the market: any other number of G in a text is the network."""
_BANDWIDTHS = {"hbm2e": 2039.0}
"""GB/s of an H100 with the memory of an A100-80GB."""


def read_machine(gpu: str, hint: str = "") -> tuple[TrainingDevice, TrainingCluster]:
    """The device and cluster that a text describes. Raises RowError for a GPU missing from the catalogue.

    `hint`: further text (the set's name) that may identify the cluster.
    """
    description = gpu.lower()
    for pattern, name, generation in _GPUS:
        if re.search(pattern, description):
            table = peaks(name)
            return _device(table, generation, description), _cluster(
                table, generation, f"{description} {hint.lower()}"
            )
    raise RowError(f"gpu is {gpu[:40]!r}, and the catalogue has no such GPU" if gpu else "gpu is empty")


def _device(table: GpuPeaks, generation: Generation, description: str) -> TrainingDevice:
    half = table.bf16_tflops or table.fp16_tflops
    if half is None or table.memory_gb_per_s is None or table.sm_count is None or table.memory_gib is None:
        raise RowError(f"no 16-bit FLOP/s, memory bandwidth or SMs are published of {table.name}")
    bandwidth = table.memory_gb_per_s
    for word, value in _BANDWIDTHS.items():
        if word in description and generation == "hopper":
            bandwidth = value
    sizes = [int(size) for size in re.findall(r"(?<!\d)(\d{2,3})\s*gi?b?(?![a-z/])", description)]
    memory = next((size for size in sizes if size in _MEMORIES), table.memory_gib)
    watts = re.search(r"(?<!\d)(\d{2,4})\s*w(?![a-z])", description)
    power = float(watts[1]) / table.tdp_w if watts and table.tdp_w else 1.0
    return TrainingDevice(
        name=table.name,
        generation=generation,
        half_flops=half * 1e12,
        eight_bit_flops=(table.fp8_tflops or 0.0) * 1e12,
        single_flops=(table.tf32_tflops or table.fp32_tflops or half / 8) * 1e12,
        bytes_per_s=bandwidth * GB,
        memory_bytes=memory * GIB,
        multiprocessors=table.sm_count,
        power_share=min(1.0, power),
    )


def _cluster(table: GpuPeaks, generation: Generation, description: str) -> TrainingCluster:
    per_node = 16 if "dgx-2" in description or "dgx2" in description else 8
    if table.name.startswith("GB200"):
        per_node = 72  # NVL72: one domain of NVLink, a card of 400 Gb/s for each GPU
    # Datasheets count both directions of a link.
    inside = (table.nvlink_gb_per_s or table.pcie_gb_per_s or 32.0) / 2
    each = re.search(r"(\d+(?:\.\d+)?)\s*gb(?:it|ps)?(?:/s)?\s*(?:per|/|a)\s*gpu", description)
    cards = re.search(r"(\d+)\s*x\s*(?:(\d+)\s*gb?(?:/s|ps|it|e)|(edr|hdr|ndr))", description)
    rate = re.search(r"(\d+(?:\.\d+)?)\s*(?:gb/s|gbps|gbit)", description)
    words = {"edr": 100.0, "hdr": 200.0, "ndr": 400.0}
    if each:
        gbit = float(each[1]) * per_node
    elif cards:
        gbit = float(cards[1]) * (float(cards[2]) if cards[2] else words[cards[3]])
    elif rate:
        gbit = float(rate[1])
    elif "vtrain" in description:
        gbit = 800.0  # vTrain's cluster, by its paper
    else:
        gbit = _NODE_GBIT[generation] * max(1, per_node // 8 if generation == "blackwell" else 1)
    return TrainingCluster(per_node, inside * GB, gbit / 8 * GB, (table.pcie_gb_per_s or 32.0) / 2 * 0.7 * GB)
