"""The exact search for a placement: thresholds, packing, network."""

from torchsplit_core.placement.search.driver import search

__all__ = ["search"]
