"""The GPU types of the catalogue as a table of the page Help, with their sources."""

from __future__ import annotations

import streamlit as st

from app.components import saving
from torchsplit_core.hardware import catalogue, peaks, without_mig
from torchsplit_core.values import GpuType

Cell = str | float | None


def table_rows() -> list[dict[str, Cell]]:
    """A row for each type, those with MIG first; None for figures without a source."""
    return [_row(gpu) for gpu in (*catalogue().values(), *without_mig().values())]


def _row(gpu: GpuType) -> dict[str, Cell]:
    peak = peaks(gpu.name)
    profiles = ", ".join(f"{profile.max_instances}× {profile.name}" for profile in gpu.profiles)
    sources = dict.fromkeys([*(profile.source for profile in gpu.profiles), f"Peaks: {peak.source}"])
    return {
        "GPU type": gpu.name,
        "memory GiB": peak.memory_gib,
        "GB/s": peak.memory_gb_per_s,
        "SMs": gpu.sm_mig_off,
        "SMs with MIG": gpu.sm_mig_on,
        "FP32": peak.fp32_tflops,
        "TF32": peak.tf32_tflops,
        "FP16": peak.fp16_tflops,
        "BF16": peak.bf16_tflops,
        "FP8": peak.fp8_tflops,
        "INT8": peak.int8_tops,
        "MIG profiles": profiles or "none",
        "not published": gpu.note,
        "sources": " · ".join(sources),
    }


def render() -> None:
    """The table."""
    st.caption(
        "Peaks are dense TFLOP/s (INT8: TOP/s) of the whole GPU, from published tables; memory and SMs of every slice "
        "are what nvidia-smi lists. n/a: no source was found, or the GPU has no such unit. The table can be searched "
        "by the glass in its corner."
    )
    saving.table(table_rows(), "gpu-types", key="help-gpu-types", alt="The GPU types of the catalogue")
