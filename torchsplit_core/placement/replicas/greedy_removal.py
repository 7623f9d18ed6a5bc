"""Many pipelines soon, by greedy removal: at a threshold one cheap pipeline after the other, then at lower ones.

Cheap is by prices of the kinds, such as those of the capacity's bound: what is scarce is dear. Equal prices ask for
the fewest GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchsplit_core.placement.model.instance import Instance, Segments, figures
from torchsplit_core.placement.replicas.pipelines import back, part_of, rows_of
from torchsplit_core.placement.search.clock import Clock
from torchsplit_core.placement.search.network import Component, components
from torchsplit_core.placement.search.packing import pack
from torchsplit_core.placement.search.segments import Steps, deal_layers
from torchsplit_core.placement.search.table import Items, Table, items_at
from torchsplit_core.placement.search.walk import WIDTHS, Walker

_TRY_S = 0.25
"""Seconds for one pipeline in one component: what is harder is left to the next threshold. Chosen, not measured."""

_SCALE = 100
"""Prices are rounded to so many parts of the highest one, because a packing counts in whole numbers. Chosen, not
measured."""


class GreedyRemoval:
    """Takes pipelines off a fleet. Equal parts of the fleet are looked at once."""

    def __init__(self, instance: Instance, table: Table, prices: np.ndarray, clock: Clock) -> None:
        """prices: of a GPU of each kind, in any unit."""
        self._instance, self._table, self._clock = instance, table, clock
        self._kinds = np.array(instance.kinds)
        dearest = float(prices.max(initial=0.0)) or 1.0
        self._weights = 1 + np.rint(_SCALE * prices / dearest).astype(np.int64)
        self._known: dict[tuple[float, tuple[int, ...], bytes], Segments] = {}

    def remove(self, thresholds: Sequence[float], most: int, taken: Sequence[int] = ()) -> list[Segments]:
        """At most `most` disjoint pipelines; `thresholds` in the order in which they are tried. taken: GPUs in use."""
        free = np.setdiff1d(np.arange(len(self._instance.kinds)), np.array(taken, dtype=np.int64))
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
                one = self._cheapest(threshold, left)
                if not one:
                    break
                found.append(one)
                left = np.setdiff1d(left, [gpu for _, chosen in one for gpu in chosen])
        return found

    def _cheapest(self, threshold: float, gpus: np.ndarray) -> Segments:
        """A cheap pipeline that reaches the threshold, by numbers of the whole fleet; () where none was met."""
        own = gpus.tolist()
        part = part_of(self._instance, own)
        key = (threshold, part.kinds, part.links.tobytes())
        if key not in self._known:
            table = rows_of(self._table, part)
            clock = self._clock.part(_TRY_S)
            self._known[key] = self._packed(part, table, threshold, clock)
        return back(self._known[key], own)

    def _packed(self, part: Instance, table: Table, threshold: float, clock: Clock) -> Segments:
        """A pipeline with the items of the cheapest packing of a component, or one that a walk meets."""
        items = items_at(table, threshold, part.max_gpus)
        kinds = np.array(part.kinds)
        able = items.counts.sum(axis=0) > 0
        weighed = replace(items, sizes=items.counts @ self._weights)
        # No GPU adds more layers than its part of the best item it stands in.
        most = (np.where(items.counts > 0, (items.high / items.sizes)[:, None], 0.0)).max(axis=0, initial=0.0)
        for component in components(part.links, np.flatnonzero(able[kinds]), threshold):
            fleet = np.bincount(kinds[component.gpus], minlength=table.counts.shape[1])
            if fleet @ most < part.layers:
                continue
            packing = pack(weighed, fleet, part.layers, clock, fewest=True)
            if packing.status != "found":
                continue
            if component.complete:
                steps: Steps | None = _handed_out(table, items, packing.chosen, component, part.kinds)
            else:
                steps = _walked(component, items, packing.chosen, part, clock)
            if steps is not None:
                found = deal_layers(table, items, steps, part.layers)
                known = figures(part, found)
                # Sequences under way may keep the whole below what each of its parts reaches.
                if known is not None and min([*known.segments, *known.links]) >= threshold:
                    return found
        return ()


def _walked(
    component: Component, items: Items, chosen: tuple[int, ...], part: Instance, clock: Clock
) -> Steps | None:
    """A pipeline through a component: of the items chosen if a narrow walk meets one, else of any."""
    used = np.unique(np.array(chosen))
    for width in WIDTHS:
        steps = Walker(component, part, items.only(used), clock).walk(width)
        if steps is not None:
            return [(int(used[item]), gpus) for item, gpus in steps]
    for width in WIDTHS:
        steps = Walker(component, part, items, clock).walk(width)
        if steps is not None:
            return steps
    return None


def _handed_out(
    table: Table, items: Items, chosen: tuple[int, ...], component: Component, kinds: tuple[int, ...]
) -> Steps:
    """GPUs for items, lowest first: any will do where all are linked."""
    left: dict[int, list[int]] = {}
    for gpu in component.gpus.tolist()[::-1]:
        left.setdefault(kinds[gpu], []).append(gpu)
    return [
        (item, tuple(sorted(left[kind].pop() for kind in table.multisets[items.multiset[item]])))
        for item in chosen
    ]
