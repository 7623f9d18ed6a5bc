"""How to train a transformer on a fleet: the best of all choices that fit, found by a search with bounds."""

from torchsplit_core.strategy.search.solve import search_strategy

__all__ = ["search_strategy"]
