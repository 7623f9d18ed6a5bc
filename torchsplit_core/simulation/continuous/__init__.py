"""Engines that batch continuously: requests join and leave a running batch at the steps of an engine."""

from torchsplit_core.simulation.continuous.engines import EngineRun, EngineUse, run_engines
from torchsplit_core.simulation.continuous.gaps import TokenGaps

__all__ = ["EngineRun", "EngineUse", "TokenGaps", "run_engines"]
