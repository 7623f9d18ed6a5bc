"""Samples the GPUs of a run's nodes from driver and DCGM while it trains; one file per node."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchsplit_core.files import move_into_place
from torchsplit_core.hardware import DcgmFigures, GpuState, LiveGpu, live_gpus
from torchsplit_core.training.monitor.run_view import NodeGpu
from torchsplit_core.training.periodic import run_periodically
from torchsplit_core.training.run_folder import WATCH
from torchsplit_core.values import InputFault

INTERVAL_S = 5.0
MOST_BYTES = 2**18
VISIBLE = "CUDA_VISIBLE_DEVICES"
GPU_FIGURES: Mapping[str, tuple[str, Callable[[NodeGpu], float | None]]] = {
    "busy_ratio": (
        "Share of time in which a kernel ran",
        lambda gpu: None if gpu.state.busy_percent is None else gpu.state.busy_percent / 100,
    ),
    "sm_active_ratio": ("Share of time in which SMs had a warp", lambda gpu: gpu.dcgm.sm_active),
    "dram_active_ratio": (
        "Share of time in which its memory moved data",
        lambda gpu: gpu.dcgm.dram_active,
    ),
    "nvlink_sent_bytes_per_second": ("Sent over NVLink", lambda gpu: gpu.dcgm.nvlink_sent_bytes_per_s),
    "nvlink_received_bytes_per_second": (
        "Received over NVLink",
        lambda gpu: gpu.dcgm.nvlink_received_bytes_per_s,
    ),
    "memory_used_bytes": ("Its memory in use", lambda gpu: gpu.state.memory_used_bytes),
    "temperature_celsius": ("Its temperature", lambda gpu: gpu.state.temperature_c),
    "power_watts": ("Its power", lambda gpu: gpu.state.power_w),
}
"""Figures of a node's GPU from driver and DCGM: the description of each, and how to read it."""


class GpuAverages:
    """The figures of a node's GPUs, each the mean of its samples."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int], tuple[float, int]] = {}
        self._indices: set[int] = set()

    def add(self, gpus: Sequence[NodeGpu]) -> None:
        """Add a sample of the GPUs."""
        self._indices |= {gpu.index for gpu in gpus}
        for gpu in gpus:
            for name, (_, value_of) in GPU_FIGURES.items():
                if (value := value_of(gpu)) is not None:
                    total, count = self._sums.get((name, gpu.index), (0.0, 0))
                    self._sums[name, gpu.index] = total + value, count + 1

    def by_name(self) -> dict[str, list[float]]:
        """The means, in the order of the GPUs; a figure that one of them never reported is left out."""
        sums_by_name = {
            name: [self._sums.get((name, index)) for index in sorted(self._indices)] for name in GPU_FIGURES
        }
        return {
            f"gpu_{name}": [total / count for total, count in filter(None, sums)]
            for name, sums in sums_by_name.items()
            if sums and None not in sums
        }


@contextlib.contextmanager
def sample_gpus(run: Path, node: str) -> Iterator[GpuAverages]:
    """Publish how a node's GPUs run while it trains, and average the figures. A node without GPUs writes no file."""
    averages = GpuAverages()

    def sample(gpus: Sequence[LiveGpu]) -> None:
        time = datetime.now(UTC)
        _write(run / WATCH / f"gpus-{node}.json", node, time, gpus)
        averages.add([_node_gpu(node, time, gpu) for gpu in gpus])

    if not (gpus := _visible_gpus()):
        yield averages
        return
    sample(gpus)
    with run_periodically(lambda: sample(_visible_gpus()), "gpus", INTERVAL_S):
        yield averages


def _node_gpu(node: str, time: datetime, live: LiveGpu) -> NodeGpu:
    state = live.state or GpuState(None, None, None, None, None)
    return NodeGpu(node, live.gpu.index, live.gpu.name, time, state, live.counted)


def _visible_gpus() -> list[LiveGpu]:
    """The machine's GPUs that this process may use."""
    try:
        gpus = live_gpus()[0]
    except InputFault:
        return []
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return list(gpus)
    # As CUDA reads it: indices, or prefixes of UUIDs (of a GPU, or of a MIG device on it).
    words = [word.strip() for word in visible.split(",") if word.strip()]
    return [
        gpu
        for gpu in gpus
        if str(gpu.gpu.index) in words
        or any(
            uuid.startswith(word)
            for word in words
            if not word.isdecimal()
            for uuid in (gpu.gpu.uuid, *(part.uuid for part in gpu.gpu.instances))
        )
    ]


def _write(path: Path, node: str, time: datetime, gpus: Sequence[LiveGpu]) -> None:
    """Replace the node's file atomically. A failure to write it is ignored."""
    record = {
        "node": node,
        "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "gpus": [
            {
                "index": gpu.gpu.index,
                "name": gpu.gpu.name,
                "uuid": gpu.gpu.uuid,
                **_without_missing(asdict(gpu.state) if gpu.state else {}),
                **_without_missing(asdict(gpu.counted)),
            }
            for gpu in gpus
        ],
    }
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        move_into_place(path, json.dumps(record) + "\n")


def _without_missing(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if value is not None}


def read_gpus(folder: Path) -> tuple[NodeGpu, ...]:
    """The last samples of a run's nodes, from its folder watch/; files that are not theirs are skipped."""
    gpus = []
    for path in sorted(folder.glob("gpus-*.json")):
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError, AttributeError):
            if path.stat().st_size <= MOST_BYTES:
                record = json.loads(path.read_bytes())
                gpus += [_gpu(record, entry) for entry in record["gpus"]]
    return tuple(gpus)


def _gpu(record: dict[str, Any], entry: dict[str, Any]) -> NodeGpu:
    throttled_by = entry.get("throttled_by")
    state = GpuState(
        **{name: _finite_or_none(entry.get(name)) for name in _STATE},
        throttled_by=None if throttled_by is None else tuple(map(str, throttled_by)),
    )
    counted = DcgmFigures(
        **{name: _finite_or_none(entry.get(name)) for name in DcgmFigures.__dataclass_fields__}
    )
    return NodeGpu(
        str(record["node"]),
        int(entry["index"]),
        str(entry["name"]),
        datetime.fromisoformat(str(record["time"])),
        state,
        counted,
    )


_STATE = tuple(name for name in GpuState.__dataclass_fields__ if name != "throttled_by")


def _finite_or_none(value: Any) -> Any:
    """A finite number or None. Raises ValueError or TypeError for anything else."""
    if value is not None and not math.isfinite(value):
        raise ValueError(value)
    return value
