"""How to train a transformer on a fleet: the best of all choices that fit, found by a search with bounds."""

from torchsplit_core.training.strategy.solve import strategy

__all__ = ["strategy"]
