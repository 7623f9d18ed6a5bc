"""What a rank says of itself while it trains: its step, its memory, where its time goes; once a second at most."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from torchsplit_core.files import move_into_place
from torchsplit_core.training.run_folder import WATCH

PUBLISH_INTERVAL_S = 1.0


class RankReporter:
    """Laps of a step by what they were for, and the file that says them: means over the steps since the file before.

    A file without a new step has the means of the one before. On a GPU a lap would end when the work was handed over,
    not when it was done: there, no parts are told.
    """

    def __init__(self, run: Path, rank: int, device: torch.device, model: torch.nn.Module, step: int) -> None:
        self.path = run / WATCH / f"rank-{rank}.json"
        self.rank, self.device, self.model = rank, device, model
        self.blocks_s: Mapping[str, float | None] = {}
        """Of a pipeline: this rank's blocks, with the seconds of a micro-batch in each where they are known."""
        self._parts: dict[str, float] = defaultdict(float)
        self._before_step: dict[str, float] = {}
        self._published_parts_s: dict[str, float] = {}
        self._steps, self._since = 0, time.perf_counter()
        self._phase_began = self._since
        self.publish(step)

    def start_phase(self) -> None:
        """A lap begins."""
        self._phase_began = time.perf_counter()

    def record_phase(self, part: str) -> None:
        """The time since the last lap was for that part."""
        now = time.perf_counter()
        self._parts[part] += now - self._phase_began
        self._phase_began = now

    def record_phases(self, rest: str, parts_s: Mapping[str, float]) -> None:
        """The time since the last lap was for these parts, what is left for `rest`."""
        left = time.perf_counter() - self._phase_began - sum(parts_s.values())
        for part, spent in (*parts_s.items(), (rest, max(0.0, left))):
            self._parts[part] += spent
        self.start_phase()

    def step_phases(self) -> dict[str, float]:
        """Seconds of the step that is ending, by phase; empty on a GPU, where a lap does not end with the work."""
        if self.device.type != "cpu":
            return {}
        return {name: spent - self._before_step.get(name, 0.0) for name, spent in self._parts.items()}

    def end_step(self, step: int) -> None:
        """A step is done."""
        self._steps += 1
        self._before_step = dict(self._parts)
        if time.perf_counter() - self._since >= PUBLISH_INTERVAL_S:
            self.publish(step)

    def publish(self, step: int, *, ended: bool = False) -> None:
        """Write the file now. That it cannot be written ends nothing."""
        record: dict[str, Any] = {
            "rank": self.rank,
            "node": socket.gethostname(),
            "pid": os.getpid(),
            "device": str(self.device),
            "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "step": step,
            "ended": ended,
            "peak_bytes": peak_bytes(self.device),
        }
        if self._steps and self.device.type == "cpu":
            self._published_parts_s = {name: spent / self._steps for name, spent in self._parts.items()}
        if self._published_parts_s:
            record["parts_s"] = self._published_parts_s
        if (share := communication_share(self.model)) is not None:
            record["communication_share"] = share
        if self.blocks_s:
            record["blocks_s"] = dict(self.blocks_s)
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(exist_ok=True)
            move_into_place(self.path, json.dumps(record) + "\n")
        self._parts.clear()
        self._before_step.clear()
        self._steps, self._since = 0, time.perf_counter()


def peak_bytes(device: torch.device) -> int:
    """The most memory so far: what tensors held on the GPU, else what the process held, shared pages included."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def communication_share(model: torch.nn.Module) -> float | None:
    """Of forward and backward pass, the share in which gradients are still exchanged when the backward pass is done.

    By the times that DDP takes itself: of its first ten steps, then of every hundredth, their mean
    (`Reducer::set_logging_data`). None where it has none yet, and for models that are not under DDP.
    """
    if not isinstance(model, DistributedDataParallel):
        return None
    logging_data = model._get_ddp_logging_data()
    try:
        passes = logging_data["avg_forward_compute_time"] + logging_data["avg_backward_compute_time"]
        left = logging_data["avg_backward_comm_time"] - logging_data["avg_backward_compute_comm_overlap_time"]
    except KeyError:
        return None
    return max(0.0, left) / (passes + left) if passes + left > 0 else None
