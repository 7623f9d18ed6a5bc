"""The best division of the layers among the stages of a pipeline whose order and choices are given, exactly.

A step takes (m − 1) · longest stage + all stages + longest end + a constant. Thresholds on the longest stage and the
longest end limit each stage to an interval of layers, each at the stage's own price, so the least sum fills the
cheapest stages first. Every value that a stage or an end can take is a threshold, except those for which even the
least sum and the least end are no better than the best known step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.strategy.cost_model.estimate import USABLE
from torchsplit_core.strategy.search.hetero_pipeline.stage_configs import StageConfig, StageRole

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
EDGE = 1e-12
"""Relative slack of a threshold: sums in another order differ in their last digits."""
Stage = tuple[StageConfig, StageRole]


class LayerAssignment:
    """Figures of the stages of one pipeline. `room`: most layers that each can hold."""

    def __init__(self, stages: Sequence[Stage], layers: int, fixed_s: float) -> None:
        self.layers, self.m, self.fixed_s = layers, stages[0][0].m, fixed_s
        self.layer_s = np.array([config.layer_s for config, _ in stages])
        self.constant_s = np.array([config.stage_s(0, role) for config, role in stages])
        self.room = np.array([room_of(config, role, layers) for config, role in stages])
        self.able = bool(self.room.min() > 0 and self.room.sum() >= layers)
        self.stages = stages

    def best(self, known_s: float) -> tuple[int, ...] | None:
        """Layers by stage of the shortest step; None if none takes less than `known_s`."""
        if not self.able:
            return None
        ends = self._ends()
        allowed = ends <= np.inf
        allowed[np.arange(1, self.layers + 1) > self.room[:, None]] = False
        ends = np.where(allowed, ends, np.inf)
        by_price = np.argsort(self.layer_s, kind="stable")
        least_end = ends.min(axis=1).max()
        end_thresholds = np.unique(ends[np.isfinite(ends)])
        end_thresholds = end_thresholds[end_thresholds >= least_end]
        low, high = _intervals(ends, end_thresholds)
        times = self.layer_s[:, None] * np.arange(1, self.layers + 1) + self.constant_s[:, None]
        time_thresholds = np.unique(times[allowed])
        if self.m == 1:
            time_thresholds = time_thresholds[-1:]
        ones = np.ones_like(self.room)
        free = self._sum(self._fill(ones[None], self.room[None], by_price))[0]
        best: tuple[int, ...] | None = None
        for longest in time_thresholds[time_thresholds >= times[:, 0].max() * (1.0 - EDGE)]:
            passes_s = (self.m - 1) * longest + self.fixed_s
            if passes_s + free + least_end >= known_s:
                break
            within = np.floor((longest * (1.0 + EDGE) - self.constant_s) / self.layer_s * (1.0 + EDGE))
            most = np.minimum(high, np.minimum(within, self.layers).astype(np.int64))
            able = (
                (low <= most).all(axis=1)
                & (low.sum(axis=1) <= self.layers)
                & (most.sum(axis=1) >= self.layers)
            )
            able &= passes_s + free + end_thresholds < known_s
            if not able.any():
                continue
            filled = self._fill(low[able], most[able], by_price)
            steps = passes_s + self._sum(filled) + end_thresholds[able]
            place = int(np.argmin(steps))
            if steps[place] < known_s:
                known_s, best = float(steps[place]), tuple(filled[place].tolist())
        return best

    def _fill(self, low: Counts, high: Counts, by_price: Counts) -> Counts:
        """Layers with the least sum, row by row: the cheapest stages get as many as they may."""
        ordered = (high - low)[:, by_price]
        left = self.layers - low.sum(axis=1)
        before = np.cumsum(ordered, axis=1) - ordered
        added = np.clip(left[:, None] - before, 0, ordered)
        filled = low.copy()
        filled[:, by_price] += added
        return filled

    def _sum(self, layers: Counts) -> Floats:
        return np.asarray(layers @ self.layer_s + self.constant_s.sum())

    def _ends(self) -> Floats:
        """stage × layers: seconds that occur once a step."""
        known: dict[tuple[int, bool, bool], list[float]] = {}
        for config, role in self.stages:
            key = (id(config), role.first, role.last)
            if key not in known:
                known[key] = [sum(config.after_s(count, role)) for count in range(1, self.layers + 1)]
        return np.array([known[id(config), role.first, role.last] for config, role in self.stages])


def room_of(config: StageConfig, role: StageRole, layers: int) -> int:
    """Most layers of a stage that fit its devices and their hosts."""
    machine = config.search.machine
    end = role.first or role.last

    def lacks(count: int) -> bool:
        return (
            config.memory(count, role).total > USABLE * machine.device.memory_bytes
            or config.host_bytes(count, end) > machine.host_bytes
        )

    return bisect_right(range(1, layers + 1), False, key=lacks)


def _intervals(ends: Floats, thresholds: Floats) -> tuple[Counts, Counts]:
    """threshold × stage: fewest and most layers that end within it; the seconds of an end are convex in layers."""
    able = ends[None] <= thresholds[:, None, None] * (1.0 + EDGE)
    some = able.any(axis=2)
    low = np.where(some, able.argmax(axis=2) + 1, 1)
    high = np.where(some, ends.shape[1] - able[:, :, ::-1].argmax(axis=2), 0)
    return low, high
