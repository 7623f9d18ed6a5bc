"""Models under load: requests that arrive, queue and are served in batches."""

from torchsplit_core.simulation.replication import simulate_one, simulate_paced
from torchsplit_core.simulation.simulate import ModelRun, simulate, simulate_model
from torchsplit_core.simulation.slice_service import SliceService, service_from_two_points
from torchsplit_core.simulation.streams import Batcher, serve_by_streams

__all__ = [
    "Batcher",
    "ModelRun",
    "SliceService",
    "serve_by_streams",
    "service_from_two_points",
    "simulate",
    "simulate_model",
    "simulate_one",
    "simulate_paced",
]
