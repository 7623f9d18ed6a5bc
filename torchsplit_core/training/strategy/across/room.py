"""Layers that fit a stage by memory: a stage's bytes are affine in its layers, by its role and what it keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.training.strategy.across.ways import Way

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

MIDDLE, FIRST, LAST = 0, 1, 2
"""Roles of a stage in the pipeline."""
EDGE = 1e-12
"""A threshold allows that share more: sums of another order differ in their last digits."""


class Room:
    """The memory of an entry's ways for stages of up to `layers` layers."""

    def __init__(self, ways: Sequence[Way], layers: int) -> None:
        self.ways, self.most = ways, layers
        self.states = lines(
            [[sum(way.states(0, end)), sum(way.states(1, end))] for way in ways for end in (False, True)]
        )
        self.host = lines(
            [[way.host_bytes(0, end), way.host_bytes(1, end)] for way in ways for end in (False, True)]
        )
        self.working, self.logits, self.kept = (
            np.array([getattr(way, name) for way in ways]) for name in ("working", "logit_bytes", "kept")
        )

    def layers(self, more_bytes: float = 0.0) -> Counts:
        """way × (micro-batches kept − 1) × role: layers that fit, were every device that much larger."""
        return np.maximum(0, np.minimum(self._by_device(more_bytes), self._by_host()[:, None, :]))

    def _by_device(self, more_bytes: float) -> Counts:
        free = self.ways[0].search.room + more_bytes
        flying = np.minimum(np.arange(1, self.most + 1), self.ways[0].m)
        each = self.states[:, 0, 1][:, None] + self.kept[:, None] * flying
        found = np.empty((len(self.ways), self.most, 3))
        for role in (MIDDLE, FIRST, LAST):
            fixed = self.states[:, int(role != MIDDLE), 0] + self.working
            fixed = fixed + (self.logits if role == LAST else 0.0)
            found[:, :, role] = whole((free - fixed)[:, None], each)
        return np.minimum(found, self.most).astype(np.int64)

    def _by_host(self) -> Counts:
        """way × role."""
        free = self.ways[0].search.machine.host_bytes
        found = np.full((len(self.ways), 3), self.most)
        for role in (MIDDLE, FIRST, LAST):
            fixed, each = self.host[:, int(role != MIDDLE), 0], self.host[:, 0, 1]
            told = each > 0
            fitting = whole(free - fixed[told], each[told])
            found[told, role] = np.minimum(self.most, fitting).astype(np.int64)
        return found


def lines(pairs: Sequence[Sequence[float]]) -> Floats:
    """way × (inside, end) × (constant, a layer), from the figures at no layer and at one."""
    found = np.array(pairs).reshape(-1, 2, 2)
    found[:, :, 1] -= found[:, :, 0]
    return found


def whole(left: Floats, each: Floats) -> Floats:
    """Whole times that one goes into the other."""
    return np.asarray(np.floor(left / each * (1.0 + EDGE)))
