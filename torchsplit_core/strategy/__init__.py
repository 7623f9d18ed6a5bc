"""Training: what a step takes in seconds and memory, reckoned from sizes without the GPUs; tables of such rows.

`estimate` is a pure function of frozen values (some 20 µs); constants and their sources stand in data/constants.json.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torchsplit_core.strategy.cost_model.estimate import GENERIC, estimate
from torchsplit_core.strategy.cost_model.interval import Offset, calibrated

__all__ = ["GENERIC", "Offset", "calibrated", "estimate", "prepare"]


def __getattr__(name: str) -> Any:
    """`prepare`, which runs a training: it stands above, with torch, and is known by this room's name."""
    if name == "prepare":
        return import_module("torchsplit_core.training").prepare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
