"""Training: what a step takes in seconds and memory, reckoned from sizes without the GPUs; tables of such rows.

`estimate` is a pure function of frozen values (some 20 µs); constants and their sources stand in data/constants.json.
"""

from torchsplit_core.training.step.estimate import GENERIC, estimate
from torchsplit_core.training.step.interval import Offset, calibrated

__all__ = ["GENERIC", "Offset", "calibrated", "estimate"]
