"""Greedy removal finds many pipelines soon: at a threshold one cheap pipeline after the other, then at lower ones.

Cheap is by prices of the kinds, such as those of the capacity bound, which are high for scarce kinds. With equal prices
the fewest GPUs are cheapest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance, Segments, evaluate_pipeline
from torchsplit_core.placement.replicas.pipelines import restrict_table, sub_instance, to_fleet_indices
from torchsplit_core.placement.search.beam_search import WIDTHS, BeamSearch
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.layer_assignment import Steps, assign_layers
from torchsplit_core.placement.search.network import Component, components
from torchsplit_core.placement.search.packing import pack
from torchsplit_core.placement.search.segment_table import Items, SegmentTable, items_at

_TRY_S = 0.25
"""Seconds for a pipeline in a component: harder ones are left to the next threshold. Chosen, not measured."""

_SCALE = 100
"""Prices are rounded to this fraction of the highest, because a packing needs whole numbers. Chosen, not measured."""


class GreedyRemoval:
    """Removes pipelines from a fleet. Equal parts of the fleet are examined once."""

    def __init__(
        self, instance: ProblemInstance, table: SegmentTable, prices: np.ndarray, clock: SearchClock
    ) -> None:
        """prices: of a GPU of each kind, in any unit."""
        self._instance, self._table, self._clock = instance, table, clock
        self._kinds = np.array(instance.kinds)
        dearest = float(prices.max(initial=0.0)) or 1.0
        self._weights = 1 + np.rint(_SCALE * prices / dearest).astype(np.int64)
        self._known: dict[tuple[float, tuple[int, ...], bytes], Segments] = {}

    def remove(self, thresholds: Sequence[float], most: int, taken: Sequence[int] = ()) -> list[Segments]:
        """At most `most` disjoint pipelines; `thresholds` in the order of trials. taken: GPUs in use."""
        free = np.setdiff1d(np.arange(len(self._instance.kinds)), np.array(taken, dtype=np.int64))
        pipelines: list[Segments] = []
        for threshold in thresholds:
            if len(pipelines) == most or self._clock.over():
                break
            new = self._remove_at(threshold, free, most - len(pipelines))
            free = np.setdiff1d(free, [gpu for pipeline in new for _, chosen in pipeline for gpu in chosen])
            pipelines += new
        return pipelines

    def _remove_at(self, threshold: float, free: np.ndarray, most: int) -> list[Segments]:
        items = items_at(self._table, threshold, self._instance.max_gpus)
        able = items.counts.sum(axis=0) > 0
        usable = free[able[self._kinds[free]]]
        pipelines: list[Segments] = []
        for component in components(self._instance.links, usable, threshold):
            left = component.gpus
            while len(left) and len(pipelines) < most and not self._clock.over():
                pipeline = self._cheapest(threshold, left)
                if not pipeline:
                    break
                pipelines.append(pipeline)
                left = np.setdiff1d(left, [gpu for _, chosen in pipeline for gpu in chosen])
        return pipelines

    def _cheapest(self, threshold: float, gpus: np.ndarray) -> Segments:
        """A cheap pipeline that reaches the threshold, by indices of the whole fleet; () if none was found."""
        gpu_indices = gpus.tolist()
        part = sub_instance(self._instance, gpu_indices)
        key = (threshold, part.kinds, part.links.tobytes())
        if key not in self._known:
            table = restrict_table(self._table, part)
            clock = self._clock.part(_TRY_S)
            self._known[key] = self._pack_pipeline(part, table, threshold, clock)
        return to_fleet_indices(self._known[key], gpu_indices)

    def _pack_pipeline(
        self, part: ProblemInstance, table: SegmentTable, threshold: float, clock: SearchClock
    ) -> Segments:
        """A pipeline with the items of the cheapest packing of a component, or one found by beam search."""
        items = items_at(table, threshold, part.max_gpus)
        kinds = np.array(part.kinds)
        able = items.counts.sum(axis=0) > 0
        weighed = replace(items, sizes=items.counts @ self._weights)
        # A GPU adds at most its share of the layers of the best item with it.
        most = (np.where(items.counts > 0, (items.high / items.sizes)[:, None], 0.0)).max(axis=0, initial=0.0)
        for component in components(part.links, np.flatnonzero(able[kinds]), threshold):
            fleet = np.bincount(kinds[component.gpus], minlength=table.counts.shape[1])
            if fleet @ most < part.layers:
                continue
            packing = pack(weighed, fleet, part.layers, clock, fewest=True)
            if packing.status != "found":
                continue
            if component.complete:
                steps: Steps | None = _assign_gpus(table, items, packing.chosen, component, part.kinds)
            else:
                steps = _beam_search_steps(component, items, packing.chosen, part, clock)
            if steps is not None:
                segments = assign_layers(table, items, steps, part.layers)
                known = evaluate_pipeline(part, segments)
                # Sequences in flight may limit the whole below each of its parts.
                if known is not None and min([*known.segments, *known.links]) >= threshold:
                    return segments
        return ()


def _beam_search_steps(
    component: Component, items: Items, chosen: tuple[int, ...], part: ProblemInstance, clock: SearchClock
) -> Steps | None:
    """A pipeline through a component: of the chosen items if a narrow beam search finds one, else of any."""
    used = np.unique(np.array(chosen))
    for width in WIDTHS:
        steps = BeamSearch(component, part, items.only(used), clock).find(width)
        if steps is not None:
            return [(int(used[item]), gpus) for item, gpus in steps]
    for width in WIDTHS:
        steps = BeamSearch(component, part, items, clock).find(width)
        if steps is not None:
            return steps
    return None


def _assign_gpus(
    table: SegmentTable, items: Items, chosen: tuple[int, ...], component: Component, kinds: tuple[int, ...]
) -> Steps:
    """GPUs for items, lowest first: any will do if all are linked."""
    left: dict[int, list[int]] = {}
    for gpu in component.gpus.tolist()[::-1]:
        left.setdefault(kinds[gpu], []).append(gpu)
    return [
        (item, tuple(sorted(left[kind].pop() for kind in table.multisets[items.multiset[item]])))
        for item in chosen
    ]
