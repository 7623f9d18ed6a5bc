"""The figures of a GPU from the driver and DCGM, as cells of a row."""

from __future__ import annotations

from torchsplit_core.hardware import DcgmFigures, GpuState
from torchsplit_core.pictures.numbers import UNKNOWN, memory_size, percent, short, size

NOTE = (
    "n/a: the driver does not tell it; in MIG mode it tells no time at work. SMs and memory at work and NVLink are "
    "DCGM's (dcgmi), n/a without it. Untested on hardware."
)


def gpu_cells(state: GpuState | None, counted: DcgmFigures) -> dict[str, str]:
    """The cells by the titles of their columns."""
    busy = None if state is None or state.busy_percent is None else state.busy_percent / 100
    reasons = state.throttled_by if state else None
    return {
        "in use": memory_size(state.memory_used_bytes if state else None),
        "at work": percent(busy),
        "SMs at work": percent(counted.sm_active),
        "memory at work": percent(counted.dram_active),
        "NVLink out": _rate(counted.nvlink_sent_bytes_per_s),
        "NVLink in": _rate(counted.nvlink_received_bytes_per_s),
        "SM clock": short(state.sm_clock_mhz if state else None, "MHz"),
        "temperature": short(state.temperature_c if state else None, "°C"),
        "power": short(state.power_w if state else None, "W"),
        "held down by": UNKNOWN if reasons is None else ", ".join(reasons) or "nothing",
    }


def _rate(bytes_per_s: float | None) -> str:
    return UNKNOWN if bytes_per_s is None else f"{size(bytes_per_s)}/s"
