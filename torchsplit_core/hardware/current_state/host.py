"""The present state of this machine: core utilization, memory, the GPUs that answer. Read only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchsplit_core.hardware.current_state.dcgm import DcgmFigures, DcgmSampler
from torchsplit_core.hardware.discovery import HostGpu, open_nvml, read_gpu
from torchsplit_core.hardware.nvml import GpuState, Nvml, NvmlFault


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """Ticks summed over all cores since boot: busy ones, and all."""

    busy: int
    whole: int

    def share_since(self, earlier: CoreTimes) -> float | None:
        """The busy share of the cores' time since `earlier`, 0 to 1; None if no tick has passed."""
        passed = self.whole - earlier.whole
        return None if passed <= 0 else min(1.0, max(0.0, (self.busy - earlier.busy) / passed))


@dataclass(frozen=True, slots=True)
class LiveGpu:
    """A GPU now. `state` and `processes` (number computing on it or its slices) are None if the driver reports none.

    `counted`: DCGM's figures, all None without DCGM.
    """

    gpu: HostGpu
    state: GpuState | None
    processes: int | None
    counted: DcgmFigures


@dataclass(frozen=True, slots=True)
class LiveHost:
    """This machine now; None for what it does not report. `load`: mean number of runnable processes in the last minute.

    `message` says why there is no GPU, or what answers instead of a driver; else it is empty.
    """

    times: CoreTimes | None
    load: float | None
    memory_bytes: int | None
    available_bytes: int | None
    gpus: tuple[LiveGpu, ...]
    message: str


_DCGM = DcgmSampler()


def live_host(proc: Path = Path("/proc")) -> LiveHost:
    """Read the present state. Raises InputFault for a replayed listing that cannot be read."""
    memory = _memory(proc / "meminfo")
    gpus, message = live_gpus()
    return LiveHost(
        _times(proc / "stat"), _load(), memory.get("MemTotal"), memory.get("MemAvailable"), gpus, message
    )


def live_gpus() -> tuple[tuple[LiveGpu, ...], str]:
    """The GPUs now, and a message about them. Raises InputFault for a replayed listing that cannot be read."""
    try:
        with open_nvml() as nvml:
            # A replayed listing describes another machine than this one's DCGM.
            return _live_gpus(nvml, {} if nvml.origin else _DCGM.latest())
    except NvmlFault as fault:
        return (), f"No GPU: {fault.words}."


def _live_gpus(nvml: Nvml, counted: Mapping[int, DcgmFigures]) -> tuple[tuple[LiveGpu, ...], str]:
    gpus, messages = [], [nvml.origin] if nvml.origin else []
    count = nvml.gpu_count()
    for index in range(count):
        try:
            gpus.append(_live_gpu(nvml, index, counted.get(index, DcgmFigures())))
        except NvmlFault as fault:
            messages.append(f"GPU {index} does not answer ({fault.words}).")
    if not count:
        messages.append("No GPU: the NVIDIA driver is here but lists none.")
    return tuple(gpus), " ".join(messages)


def _live_gpu(nvml: Nvml, index: int, counted: DcgmFigures) -> LiveGpu:
    gpu = read_gpu(nvml, index)
    try:
        state = nvml.state(index)
    except NvmlFault:
        state = None
    try:
        processes = len(nvml.processes(index))
    except NvmlFault:
        processes = None
    return LiveGpu(gpu, state, processes, counted)


def _times(path: Path) -> CoreTimes | None:
    """From the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal (man 5 proc_stat)."""
    try:
        ticks = [int(word) for word in path.read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return CoreTimes(sum(ticks) - sum(ticks[3:5]), sum(ticks)) if len(ticks) == 8 else None


def _memory(path: Path) -> dict[str, int]:
    """Bytes by name from /proc/meminfo, which gives KiB."""
    try:
        rows = (line.split() for line in path.read_text().splitlines())
        return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) >= 2}
    except (OSError, ValueError):
        return {}


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
