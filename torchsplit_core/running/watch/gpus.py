"""The GPUs of a run's nodes, as their driver and DCGM tell of them while it goes on: a file a node."""

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
from torchsplit_core.running.beside import looking
from torchsplit_core.running.folder import WATCH
from torchsplit_core.running.watch.view import NodeGpu
from torchsplit_core.values import InputFault

EVERY_S = 5.0
MOST_BYTES = 2**18
VISIBLE = "CUDA_VISIBLE_DEVICES"
GPU_FIGURES: Mapping[str, tuple[str, Callable[[NodeGpu], float | None]]] = {
    "busy_ratio": (
        "Share of time in which a kernel ran",
        lambda one: None if one.state.busy_percent is None else one.state.busy_percent / 100,
    ),
    "sm_active_ratio": ("Share of time in which SMs had a warp", lambda one: one.counted.sm_active),
    "dram_active_ratio": (
        "Share of time in which its memory moved data",
        lambda one: one.counted.dram_active,
    ),
    "nvlink_sent_bytes_per_second": ("Sent over NVLink", lambda one: one.counted.nvlink_sent_bytes_per_s),
    "nvlink_received_bytes_per_second": (
        "Received over NVLink",
        lambda one: one.counted.nvlink_received_bytes_per_s,
    ),
    "memory_used_bytes": ("Its memory in use", lambda one: one.state.memory_used_bytes),
    "temperature_celsius": ("Its temperature", lambda one: one.state.temperature_c),
    "power_watts": ("Its power", lambda one: one.state.power_w),
}
"""Of a GPU of the run's nodes, by its driver and DCGM: what they are, and where they stand."""


class Means:
    """The figures of a node's GPUs, each the mean of what was told of it."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, int], tuple[float, int]] = {}
        self._indices: set[int] = set()

    def add(self, gpus: Sequence[NodeGpu]) -> None:
        """What they tell now."""
        self._indices |= {one.index for one in gpus}
        for one in gpus:
            for name, (_, told) in GPU_FIGURES.items():
                if (value := told(one)) is not None:
                    total, count = self._sums.get((name, one.index), (0.0, 0))
                    self._sums[name, one.index] = total + value, count + 1

    def by_name(self) -> dict[str, list[float]]:
        """In the order of the GPUs; a figure that one of them never told is left out."""
        found = {
            name: [self._sums.get((name, index)) for index in sorted(self._indices)] for name in GPU_FIGURES
        }
        return {
            f"gpu_{name}": [total / count for total, count in filter(None, sums)]
            for name, sums in found.items()
            if sums and None not in sums
        }


@contextlib.contextmanager
def gpus_told(run: Path, node: str) -> Iterator[Means]:
    """While a node trains: say how its GPUs run, and keep the means. A node without any says nothing."""
    means = Means()

    def tell(gpus: Sequence[LiveGpu]) -> None:
        said = datetime.now(UTC)
        _write(run / WATCH / f"gpus-{node}.json", node, said, gpus)
        means.add([_node_gpu(node, said, one) for one in gpus])

    if not (gpus := _seen()):
        yield means
        return
    tell(gpus)
    with looking(lambda: tell(_seen()), "gpus", EVERY_S):
        yield means


def _node_gpu(node: str, said: datetime, one: LiveGpu) -> NodeGpu:
    state = one.state or GpuState(None, None, None, None, None)
    return NodeGpu(node, one.gpu.index, one.gpu.name, said, state, one.counted)


def _seen() -> list[LiveGpu]:
    """The machine's GPUs that this process may use."""
    try:
        found = live_gpus()[0]
    except InputFault:
        return []
    named = os.environ.get(VISIBLE)
    if named is None:
        return list(found)
    # As CUDA has it: indices, or the beginnings of UUIDs (of a GPU, or of a MIG device on it).
    words = [word.strip() for word in named.split(",") if word.strip()]
    return [
        one
        for one in found
        if str(one.gpu.index) in words
        or any(
            uuid.startswith(word)
            for word in words
            if not word.isdecimal()
            for uuid in (one.gpu.uuid, *(part.uuid for part in one.gpu.instances))
        )
    ]


def _write(path: Path, node: str, said: datetime, gpus: Sequence[LiveGpu]) -> None:
    """Whole, in place of what was said before. That it cannot be written ends nothing."""
    told = {
        "node": node,
        "time": said.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "gpus": [
            {
                "index": one.gpu.index,
                "name": one.gpu.name,
                "uuid": one.gpu.uuid,
                **_known(asdict(one.state) if one.state else {}),
                **_known(asdict(one.counted)),
            }
            for one in gpus
        ],
    }
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        move_into_place(path, json.dumps(told) + "\n")


def _known(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if value is not None}


def read_gpus(folder: Path) -> tuple[NodeGpu, ...]:
    """What the nodes of a run said last, of its folder `watch`; what is none of theirs is passed over."""
    found = []
    for path in sorted(folder.glob("gpus-*.json")):
        with contextlib.suppress(OSError, KeyError, TypeError, ValueError, AttributeError):
            if path.stat().st_size <= MOST_BYTES:
                told = json.loads(path.read_bytes())
                found += [_gpu(told, one) for one in told["gpus"]]
    return tuple(found)


def _gpu(told: dict[str, Any], one: dict[str, Any]) -> NodeGpu:
    held = one.get("throttled_by")
    state = GpuState(
        **{name: _number(one.get(name)) for name in _STATE},
        throttled_by=None if held is None else tuple(map(str, held)),
    )
    counted = DcgmFigures(**{name: _number(one.get(name)) for name in DcgmFigures.__dataclass_fields__})
    return NodeGpu(
        str(told["node"]),
        int(one["index"]),
        str(one["name"]),
        datetime.fromisoformat(str(told["time"])),
        state,
        counted,
    )


_STATE = tuple(name for name in GpuState.__dataclass_fields__ if name != "throttled_by")


def _number(value: Any) -> Any:
    """A finite number or None. Raises ValueError or TypeError for anything else."""
    if value is not None and not math.isfinite(value):
        raise ValueError(value)
    return value
