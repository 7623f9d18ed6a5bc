"""What a rank publishes while it trains: its step, its memory, its seconds by phase; once a second at most."""

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
    """Times the phases of a step, and publishes the means over the steps since the last file.

    A file without a new step repeats the means of the last one. On a GPU a phase would end when the work was queued,
    not when it was done: there, no phases are published.
    """

    def __init__(self, run: Path, rank: int, device: torch.device, model: torch.nn.Module, step: int) -> None:
        self.path = run / WATCH / f"rank-{rank}.json"
        self.rank, self.device, self.model = rank, device, model
        self.blocks_s: Mapping[str, float | None] = {}
        """For a pipeline: seconds of a micro-batch in each block of this rank, None if they are not known."""
        self._parts: dict[str, float] = defaultdict(float)
        self._communication: dict[str, float] = defaultdict(float)
        self._published_communication_s: dict[str, float] = {}
        self._published_steps = 0
        self._before_step: dict[str, float] = {}
        self._published_parts_s: dict[str, float] = {}
        self._steps, self._since = 0, time.perf_counter()
        self._phase_began = self._since
        self.publish(step)

    def start_phase(self) -> None:
        """Start the clock of a phase."""
        self._phase_began = time.perf_counter()

    def record_phase(self, part: str) -> None:
        """Add the time since the last phase to `part`."""
        now = time.perf_counter()
        self._parts[part] += now - self._phase_began
        self._phase_began = now

    def record_phases(self, rest: str, parts_s: Mapping[str, float]) -> None:
        """Add the time since the last phase to these parts, and what is left of it to `rest`."""
        left = time.perf_counter() - self._phase_began - sum(parts_s.values())
        for part, spent in (*parts_s.items(), (rest, max(0.0, left))):
            self._parts[part] += spent
        self.start_phase()

    def record_communication(self, kinds_s: Mapping[str, float]) -> None:
        """Add a step's seconds of communication by kind; they lie within the phases."""
        for kind, spent in kinds_s.items():
            self._communication[kind] += spent

    def step_phases(self) -> dict[str, float]:
        """Seconds of the step that is ending, by phase; empty on a GPU, where a phase does not end with its work."""
        if self.device.type != "cpu":
            return {}
        return {name: spent - self._before_step.get(name, 0.0) for name, spent in self._parts.items()}

    def end_step(self, step: int) -> None:
        """Count a completed step; publish if the last file is old enough."""
        self._steps += 1
        self._before_step = dict(self._parts)
        if time.perf_counter() - self._since >= PUBLISH_INTERVAL_S:
            self.publish(step)

    def publish(self, step: int, *, ended: bool = False) -> None:
        """Write the file now. A failure to write it is ignored."""
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
            self._published_communication_s = {
                kind: spent / self._steps for kind, spent in self._communication.items()
            }
            self._published_steps = self._steps
        if self._published_communication_s:
            record["communication_s"] = self._published_communication_s
        if self._published_parts_s:
            record["parts_s"] = self._published_parts_s
            record["averaged_steps"] = self._published_steps
        if (share := communication_share(self.model)) is not None:
            record["communication_share"] = share
        if self.blocks_s:
            record["blocks_s"] = dict(self.blocks_s)
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(exist_ok=True)
            move_into_place(self.path, json.dumps(record) + "\n")
        self._parts.clear()
        self._communication.clear()
        self._before_step.clear()
        self._steps, self._since = 0, time.perf_counter()


def peak_bytes(device: torch.device) -> int:
    """Peak memory so far: of tensors on a GPU, otherwise of the process, shared pages included."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def communication_share(model: torch.nn.Module) -> float | None:
    """Share of forward and backward pass in which gradients are still exchanged after the backward pass is done.

    By DDP's own timings: the mean of its first ten steps, then of every hundredth (`Reducer::set_logging_data`). None
    if it has none yet, and for models that are not under DDP.
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
