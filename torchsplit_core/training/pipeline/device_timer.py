"""Times the work of a stage by the device's own clock."""

from __future__ import annotations

import time
from typing import Any

import torch

Timestamp = Any
"""Seconds on a CPU, on a GPU a `torch.cuda.Event`."""


class DeviceTimer:
    """Timestamps of a device. On a GPU they are events in its stream: two of them time the work between them, not what
    the stream waited for before the first, and nothing waits for them until they are read."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"

    def now(self) -> Timestamp:
        """A timestamp of this moment."""
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_s(self, first: Timestamp, last: Timestamp) -> float:
        """Seconds between two timestamps."""
        if not self._on_gpu:
            return float(last - first)
        last.synchronize()
        return float(first.elapsed_time(last)) / 1000
