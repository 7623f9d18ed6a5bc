"""The exact search for a placement: thresholds, packing, network."""

from torchsplit_core.placement.search.threshold_search import search_thresholds

__all__ = ["search_thresholds"]
