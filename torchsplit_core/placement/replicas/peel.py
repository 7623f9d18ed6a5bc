"""Many pipelines soon: at a threshold one of the fewest GPUs after the other, then at lower ones on what is left."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchsplit_core.placement.instance import Instance
from torchsplit_core.placement.replicas.pipelines import back, part_of, rows_of
from torchsplit_core.placement.search.clock import Clock
from torchsplit_core.placement.search.decide import Threshold
from torchsplit_core.placement.search.network import components
from torchsplit_core.placement.search.segments import Segments
from torchsplit_core.placement.search.table import Table, items_at

_TRY_S = 0.3
"""Seconds for one pipeline in one component: what is harder is left to the next threshold."""


class Peeler:
    """Takes pipelines off a fleet. Equal parts of the fleet are looked at once."""

    def __init__(self, instance: Instance, table: Table, clock: Clock) -> None:
        self._instance, self._table, self._clock = instance, table, clock
        self._kinds = np.array(instance.kinds)
        self._known: dict[tuple[float, tuple[int, ...], bytes], Segments] = {}

    def peel(self, thresholds: Sequence[float], most: int) -> list[Segments]:
        """At most `most` disjoint pipelines; `thresholds` in the order in which they are tried."""
        free = np.arange(len(self._instance.kinds))
        found: list[Segments] = []
        for threshold in thresholds:
            if len(found) == most or self._clock.over():
                break
            new = self._at(threshold, free, most - len(found))
            free = np.setdiff1d(free, [gpu for one in new for _, chosen in one for gpu in chosen])
            found += new
        return found

    def _at(self, threshold: float, free: np.ndarray, most: int) -> list[Segments]:
        items = items_at(self._table, threshold, self._instance.max_gpus)
        able = items.counts.sum(axis=0) > 0
        usable = free[able[self._kinds[free]]]
        found: list[Segments] = []
        for component in components(self._instance.links, usable, threshold):
            left = component.gpus
            while len(left) and len(found) < most and not self._clock.over():
                one = self._fewest(threshold, left)
                if not one:
                    break
                found.append(one)
                left = np.setdiff1d(left, [gpu for _, chosen in one for gpu in chosen])
        return found

    def _fewest(self, threshold: float, gpus: np.ndarray) -> Segments:
        """A pipeline of few GPUs that reaches the threshold, by numbers of the whole fleet; () without one."""
        own = gpus.tolist()
        part = part_of(self._instance, own)
        key = (threshold, part.kinds, part.links.tobytes())
        if key not in self._known:
            at = Threshold(
                part, rows_of(self._table, part), threshold, part.max_gpus, self._clock.part(_TRY_S)
            )
            decision = at.decide(_TRY_S)
            self._known[key] = at.fewest(decision.segments).segments if decision.segments else ()
        return back(self._known[key], own)
