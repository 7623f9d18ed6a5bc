"""Layers that fit a stage by memory: a stage's bytes are affine in its layers, by its role and what it keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.strategy.search.hetero_pipeline.stage_configs import StageConfig

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

MIDDLE, FIRST, LAST = 0, 1, 2
"""Roles of a stage in the pipeline."""
EDGE = 1e-12
"""A threshold allows that share more: sums of another order differ in their last digits."""


class StageCapacity:
    """The memory of an entry's ways for stages of up to `layers` layers."""

    def __init__(self, ways: Sequence[StageConfig], layers: int) -> None:
        self.ways, self.max_stage_layers = ways, layers
        self.states = affine_coefficients(
            [[sum(way.states(0, end)), sum(way.states(1, end))] for way in ways for end in (False, True)]
        )
        self.host = affine_coefficients(
            [[way.host_bytes(0, end), way.host_bytes(1, end)] for way in ways for end in (False, True)]
        )
        self.working, self.logits, self.activations = (
            np.array([getattr(way, name) for way in ways]) for name in ("working", "logit_bytes", "kept")
        )

    def layers(self, more_bytes: float = 0.0) -> Counts:
        """way × (micro-batches kept − 1) × role: layers that fit, were every device that much larger."""
        return np.maximum(0, np.minimum(self._by_device(more_bytes), self._by_host()[:, None, :]))

    def _by_device(self, more_bytes: float) -> Counts:
        free = self.ways[0].search.usable_bytes + more_bytes
        flying = np.minimum(np.arange(1, self.max_stage_layers + 1), self.ways[0].m)
        each = self.states[:, 0, 1][:, None] + self.activations[:, None] * flying
        layers = np.empty((len(self.ways), self.max_stage_layers, 3))
        for role in (MIDDLE, FIRST, LAST):
            fixed = self.states[:, int(role != MIDDLE), 0] + self.working
            fixed = fixed + (self.logits if role == LAST else 0.0)
            layers[:, :, role] = max_layers((free - fixed)[:, None], each)
        return np.minimum(layers, self.max_stage_layers).astype(np.int64)

    def _by_host(self) -> Counts:
        """way × role."""
        free = self.ways[0].search.machine.host_bytes
        layers = np.full((len(self.ways), 3), self.max_stage_layers)
        for role in (MIDDLE, FIRST, LAST):
            fixed, each = self.host[:, int(role != MIDDLE), 0], self.host[:, 0, 1]
            positive = each > 0
            fitting = max_layers(free - fixed[positive], each[positive])
            layers[positive, role] = np.minimum(self.max_stage_layers, fitting).astype(np.int64)
        return layers


def affine_coefficients(pairs: Sequence[Sequence[float]]) -> Floats:
    """way × (inside, end) × (constant, a layer), from the figures at no layer and at one."""
    coefficients = np.array(pairs).reshape(-1, 2, 2)
    coefficients[:, :, 1] -= coefficients[:, :, 0]
    return coefficients


def max_layers(left: Floats, each: Floats) -> Floats:
    """Whole times that one goes into the other."""
    return np.asarray(np.floor(left / each * (1.0 + EDGE)))
