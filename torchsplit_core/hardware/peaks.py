"""Peak figures of GPUs, from data/gpu_peaks.csv (dense figures, a source per row)."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from torchsplit_core.values import InputFault, quoted, suggestion


@dataclass(frozen=True, slots=True)
class GpuPeaks:
    """Dense peaks of a whole GPU; None if not sourced.

    Units: boost clock MHz, tera floating-point operations per second, GiB of memory, MiB of L2 cache, GB/s (10^9
    bytes), W. Datasheets write GB for GiB: nvidia-smi lists 79.25 GiB of an A100's 80, and its device query
    41,943,040 bytes of L2 for 40 MB. `source` names the datasheets and repositories of each figure.
    """

    name: str
    sm_count: int | None
    boost_mhz: float | None
    fp32_tflops: float | None
    tf32_tflops: float | None
    fp16_tflops: float | None
    bf16_tflops: float | None
    fp8_tflops: float | None
    int8_tops: float | None
    memory_gib: float | None
    memory_gb_per_s: float | None
    l2_mib: float | None
    nvlink_gb_per_s: float | None
    pcie_gb_per_s: float | None
    tdp_w: float | None
    source: str

    @property
    def before_tf32(self) -> bool:
        """Whether its tensor cores have no TF32, so that float32 always means FP32: TF32 and bfloat16 came in the same
        generation (NVIDIA A100 whitepaper, 2020). False if no FP16 peak is sourced either: then nothing is known.
        """
        return self.tf32_tflops is None and self.bf16_tflops is None and self.fp16_tflops is not None


def peaks(name: str) -> GpuPeaks:
    """The peaks of a GPU. Raises InputFault with the known names for any other name."""
    table = _table()
    if name not in table:
        raise InputFault("", f"unknown GPU type {quoted(name)}", suggestion(name, table, "GPU types"))
    return table[name]


def peak_names() -> tuple[str, ...]:
    """The GPUs in the table, with or without MIG."""
    return tuple(_table())


@cache
def _table() -> dict[str, GpuPeaks]:
    text = files("torchsplit_core.hardware").joinpath("data/gpu_peaks.csv").read_text(encoding="utf-8")
    return {row["gpu"]: _row(row) for row in csv.DictReader(text.splitlines())}


def _row(row: dict[str, str]) -> GpuPeaks:
    def number(column: str) -> float | None:
        return float(row[column]) if row[column] else None

    return GpuPeaks(
        name=row["gpu"],
        sm_count=int(row["sm_count"]) if row["sm_count"] else None,
        boost_mhz=number("boost_mhz"),
        fp32_tflops=number("fp32_tflops"),
        tf32_tflops=number("tf32_dense_tflops"),
        fp16_tflops=number("fp16_dense_tflops"),
        bf16_tflops=number("bf16_dense_tflops"),
        fp8_tflops=number("fp8_dense_tflops"),
        int8_tops=number("int8_dense_tops"),
        memory_gib=number("memory_gb"),
        memory_gb_per_s=number("memory_gb_per_s"),
        l2_mib=number("l2_mb"),
        nvlink_gb_per_s=number("nvlink_gb_per_s"),
        pcie_gb_per_s=number("pcie_gb_per_s"),
        tdp_w=number("tdp_w"),
        source=row["source"],
    )
