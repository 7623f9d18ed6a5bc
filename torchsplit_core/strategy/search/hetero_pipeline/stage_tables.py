"""What an entry's ways allow a stage, as arrays: layers by memory, seconds, and what comes after the micro-batches.

Ways that another of as many stages beats in everything are left out.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from torchsplit_core.strategy.cost_model.estimate import HIDING
from torchsplit_core.strategy.search.hetero_pipeline.memory_capacity import (
    EDGE,
    FIRST,
    LAST,
    MIDDLE,
    Counts,
    Floats,
    StageCapacity,
    affine_coefficients,
    max_layers,
)
from torchsplit_core.strategy.search.hetero_pipeline.stage_configs import StageConfig
from torchsplit_core.strategy.search.software import SOFTWARE


class StageTable:
    """The ways of an entry that may be in a best pipeline of `layers` layers.

    `room[way, k − 1, role]`: layers that fit a stage that keeps k micro-batches (at most m); `after[way, role, l − 1]`:
    seconds once a step of a stage of l layers.
    """

    def __init__(self, ways: Iterable[StageConfig], layers: int) -> None:
        configs = list(ways)
        self.layers = layers
        self.ways: list[StageConfig] = configs
        if not configs:
            return
        self._fill(configs)
        undominated = _undominated(self._figures(), self.stages)
        self._fill([configs[place] for place in undominated])

    def _fill(self, ways: list[StageConfig]) -> None:
        self.ways = ways
        self.stages = np.array([way.choices.pipeline for way in ways])
        self.layer_s, self.logits_s, self.near_s, self.far_s = (
            np.array([getattr(way, name) for way in ways])
            for name in ("layer_s", "logits_s", "near_s", "far_s")
        )
        self.after = self._after()
        self.room = StageCapacity(ways, self.layers).layers()

    def _after(self) -> Floats:
        """way × role × layers. The exchange is linear in the weights, with a constant."""
        count = np.arange(1, self.layers + 1)
        exchange, optimizer = (
            affine_coefficients(
                [
                    [getattr(way, name)(0, end), getattr(way, name)(1, end)]
                    for way in self.ways
                    for end in (False, True)
                ]
            )
            for name in ("exchange_s", "optimizer_s")
        )
        busy = self.layer_s[:, None] * count
        sharding = np.array([way.m * way.sharding_s for way in self.ways])[:, None] * count
        hidden_share = 1.0 - self.ways[0].search.c.data_exposed if SOFTWARE.data_overlap else 0.0
        after = np.empty((len(self.ways), 3, self.layers))
        for role in (MIDDLE, FIRST, LAST):
            end = int(role != MIDDLE)
            taken = _at(exchange[:, end], count)
            micro = busy + (self.logits_s[:, None] if role == LAST else 0.0)
            hidden = np.minimum(hidden_share * taken, HIDING * micro)
            after[:, role] = taken - hidden + sharding + _at(optimizer[:, end], count)
        return after

    def _figures(self) -> Floats:
        """Of each way what is better where it is less."""
        flat = len(self.ways), -1
        columns = (self.layer_s, self.logits_s, self.near_s, self.far_s)
        return np.column_stack(
            [*columns, self.after.reshape(flat), -self.room.reshape(flat).astype(np.float64)]
        )

    def stage_times(self) -> Floats:
        """Seconds of every stage that may be, with repetitions."""
        busy = self.layer_s[:, None] * np.arange(1, self.layers + 1)
        plain = np.stack([busy, busy + self.logits_s[:, None]])
        return np.concatenate([(plain + s[:, None]).ravel() for s in (self.near_s, self.far_s)])

    def by_time(self, longest: float) -> Counts:
        """way × (not last, last) × (near, far): layers of a stage within so many seconds."""
        layers = np.empty((len(self.ways), 2, 2))
        for last in (0, 1):
            for far, sends in enumerate((self.near_s, self.far_s)):
                left = longest * (1.0 + EDGE) - sends - (self.logits_s if last else 0.0)
                layers[:, last, far] = max_layers(left, self.layer_s)
        return np.clip(layers, 0, self.layers).astype(np.int64)

    def by_after(self, longest: float) -> tuple[Counts, Counts]:
        """way × role: the fewest and the most layers of a stage that ends its step within so many seconds.

        Those in between do too: what comes after is convex in the layers.
        """
        able = self.after <= longest * (1.0 + EDGE)
        some = able.any(axis=2)
        least = np.where(some, able.argmax(axis=2) + 1, self.layers + 1)
        most = np.where(some, self.layers - able[:, :, ::-1].argmax(axis=2), 0)
        return least, most


def _at(lines: Floats, count: Counts) -> Floats:
    return np.asarray(lines[:, 0:1] + lines[:, 1:2] * count)


def _undominated(figures: Floats, stages: Counts) -> list[int]:
    """Places of the ways that no other of as many stages beats, or equals before it."""
    places_left: list[int] = []
    for count in np.unique(stages):
        places = np.flatnonzero(stages == count)
        places = places[np.lexsort((figures[places].sum(axis=1), figures[places, 0]))]
        best: list[int] = []
        for place in places:
            if not best or not (figures[best] <= figures[place]).all(axis=1).any():
                best.append(int(place))
        places_left += best
    return sorted(places_left)
