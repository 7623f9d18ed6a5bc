"""How to train: seconds and memory of a step, estimated from sizes without GPUs, and the search over strategies.

`estimate` is a pure function of frozen values (about 20 µs); data/constants.json gives each constant with its source.
"""

from __future__ import annotations

from torchsplit_core.strategy.cost_model.estimate import GENERIC, estimate
from torchsplit_core.strategy.cost_model.interval import Offset, calibrated

__all__ = ["GENERIC", "Offset", "calibrated", "estimate"]
