"""Simulates models under load: requests arrive, queue and are served in batches."""

from torchsplit_core.simulation.replication import simulate_one, simulate_paced
from torchsplit_core.simulation.simulate import ModelRun, simulate, simulate_model

__all__ = ["ModelRun", "simulate", "simulate_model", "simulate_one", "simulate_paced"]
