"""The GPUs of a run's nodes, as their driver and DCGM tell of them while it goes on: a file a node."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Sequence
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


@contextlib.contextmanager
def gpus_told(run: Path, node: str) -> Iterator[None]:
    """While a node trains: say how its GPUs run. A node without any says nothing."""
    if not (gpus := _seen()):
        yield
        return
    path = run / WATCH / f"gpus-{node}.json"
    _write(path, node, gpus)
    with looking(lambda: _write(path, node, _seen()), "gpus", EVERY_S):
        yield


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


def _write(path: Path, node: str, gpus: Sequence[LiveGpu]) -> None:
    """Whole, in place of what was said before. That it cannot be written ends nothing."""
    told = {
        "node": node,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
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
