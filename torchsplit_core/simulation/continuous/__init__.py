"""Engines that batch continuously: requests join and leave a running batch at the steps of an engine."""

from torchsplit_core.simulation.continuous.engines import EngineRun, EngineUse, run_engines

__all__ = ["EngineRun", "EngineUse", "run_engines"]
