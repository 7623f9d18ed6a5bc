"""Pipelines that sequences in flight limit as a whole, by their memory and by the time of a pass."""

from torchsplit_core.placement.latency.in_flight.pipeline_search import best_pipeline

__all__ = ["best_pipeline"]
