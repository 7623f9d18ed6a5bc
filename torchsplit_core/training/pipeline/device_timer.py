"""Seconds of what a stage does, by the device's own time."""

from __future__ import annotations

import time
from typing import Any

import torch

Timestamp = Any
"""Seconds on a CPU, on a GPU a `torch.cuda.Event`."""


class DeviceTimer:
    """Moments of a device. A GPU's are marks in its stream: they tell what it did there, without what it waited for
    before the first of two, and nothing waits for them until they are read."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"

    def now(self) -> Timestamp:
        """This moment."""
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_s(self, first: Timestamp, last: Timestamp) -> float:
        """Seconds from one to the other."""
        if not self._on_gpu:
            return float(last - first)
        last.synchronize()
        return float(first.elapsed_time(last)) / 1000
