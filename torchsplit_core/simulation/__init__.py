"""Models under load: requests that arrive, queue and are served in batches."""

from torchsplit_core.simulation.replicate import simulate_one
from torchsplit_core.simulation.simulate import simulate

__all__ = ["simulate", "simulate_one"]
