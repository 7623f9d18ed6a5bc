"""One threshold by covers: a proof that nothing reaches it, or a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance, Segments
from torchsplit_core.placement.search.beam_search import WIDTHS, BeamSearch
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.large_segments.cover_packing import (
    CoverPacking,
    GpuSet,
    concatenate_items,
    kinds_of,
    pack_covers,
    single_kind_items,
)
from torchsplit_core.placement.search.large_segments.covers import ROUNDING, covers_at
from torchsplit_core.placement.search.large_segments.minimal_covers import split_minimal_covers
from torchsplit_core.placement.search.layer_assignment import distribute_layers
from torchsplit_core.placement.search.network import Component, components
from torchsplit_core.placement.search.segment_table import Items
from torchsplit_core.values.status import SearchVerdict

_MOST_ITEMS = 400
"""Most sets of GPUs for a beam search, those of the packing first, then those of the fewest GPUs. Chosen, not
measured."""

_LEAST_S = 0.3
"""Least seconds of one packing. Chosen, not measured."""


class CoverThreshold:
    """One threshold of an instance with `shares`: its covers, components and their packings.

    share: of the remaining time for one packing, so that a hard one does not take it all.
    """

    def __init__(self, instance: ProblemInstance, threshold: float, clock: SearchClock, share: float) -> None:
        self._instance, self._value, self._clock, self._share = instance, threshold, clock, share
        clock.count("cover_thresholds")
        covers = covers_at(instance, threshold)
        self._kinds = np.array(instance.kinds, dtype=np.int64)
        able = covers.shares.max(axis=0, initial=0.0) > 0
        self._whole = covers.only(
            np.flatnonzero((covers.low <= instance.layers) & (covers.high >= instance.layers))
        )
        self.components = components(instance.links, np.flatnonzero(able[self._kinds]), threshold)
        fleet = np.bincount(self._kinds, minlength=len(able))
        self._fixed, self._covers = split_minimal_covers(covers, fleet)
        self._packings: dict[tuple[bool, tuple[int, ...]], CoverPacking] = {}

    def relaxation_status(self) -> SearchVerdict:
        """Whether a pipeline exists if all links inside a component are fast enough; none is a proof."""
        if self._single_segment() is not None:
            return "found"
        packings = [self._packing(component) for component in self.components]
        if any(packing.status == "found" for packing in packings):
            return "found"
        return "unknown" if any(packing.status == "unknown" for packing in packings) else "none"

    def solve_easy(self) -> Segments:
        """A pipeline if one segment or one complete component suffices; empty if none was found."""
        alone = self._single_segment()
        segments = self._with_layers([(alone, np.arange(len(self._kinds)))]) if alone else ()
        for component in self.components:
            if not segments and component.complete:
                segments = self._assign_gpus(self._packing(component), component)
        return segments

    def beam_search(self, clock: SearchClock) -> Segments:
        """A pipeline through a component whose links bind, from the packing's sets and those of one kind."""
        for component in self.components:
            packing = self._packing(component)
            if component.complete or packing.status != "found":
                continue
            sets = self._sets(component, packing)
            items = self._items(sets)
            walker = BeamSearch(component, self._instance, items, clock)
            for width in WIDTHS:
                clock.count("walks")
                steps = walker.find(width)
                if steps is not None:
                    segments = self._with_layers([(sets[item], np.array(gpus)) for item, gpus in steps])
                    if segments:
                        return segments
        return ()

    def minimize_gpus(self) -> tuple[Segments, bool]:
        """A pipeline of this threshold with the fewest GPUs in complete components, and whether that is proven."""
        best: Segments = ()
        proven = True
        alone = self._single_segment()
        if alone is not None:
            best = self._with_layers([(alone, np.arange(len(self._kinds)))])
            proven = bool(best)
        for component in self.components:
            packing = self._packing(component, fewest=True)
            if packing.status == "none" or (best and packing.gpus >= _gpu_count(best)):
                continue
            segments = self._assign_gpus(packing, component) if component.complete else ()
            if segments and (not best or _gpu_count(segments) < _gpu_count(best)):
                best = segments
            proven = proven and bool(segments)
        return best, proven

    def _packing(self, component: Component, *, fewest: bool = False) -> CoverPacking:
        fleet = np.bincount(self._kinds[component.gpus], minlength=self._covers.shares.shape[1])
        key = (fewest, tuple(fleet.tolist()))
        if key not in self._packings:
            clock = self._clock.part(max(_LEAST_S, self._share * self._clock.left_s()))
            self._packings[key] = pack_covers(
                self._covers,
                self._fixed,
                fleet,
                self._instance.layers,
                clock,
                fewest=fewest,
                segments=self._instance.counts,
            )
        return self._packings[key]

    def _single_segment(self) -> GpuSet | None:
        """A set that holds all layers with the fewest GPUs: those of the largest shares first."""
        best: GpuSet | None = None
        if not self._instance.allows(1):
            return best
        for cover, (least, most) in enumerate(
            zip(self._whole.least.tolist(), self._whole.most.tolist(), strict=True)
        ):
            shares = self._whole.shares[cover][self._kinds]
            order = np.argsort(-shares, kind="stable")[:most]
            order = order[shares[order] > 0]
            enough = np.flatnonzero(np.cumsum(shares[order]) >= 1 - ROUNDING)
            if not len(enough):
                continue
            count = max(int(enough[0]) + 1, least)
            if count <= len(order) and (best is None or count < len(best[0])):
                kinds = tuple(sorted(self._kinds[order[:count]].tolist()))
                best = (kinds, self._instance.layers, self._instance.layers)
        return best

    def _assign_gpus(self, packing: CoverPacking, component: Component) -> Segments:
        if packing.status != "found":
            return ()
        left: dict[int, list[int]] = {}
        for gpu in component.gpus.tolist()[::-1]:
            left.setdefault(self._instance.kinds[gpu], []).append(gpu)
        return self._with_layers(
            [
                (gpu_set, np.array([left[kind].pop() for kind in gpu_set[0]], dtype=np.int64))
                for gpu_set in packing.chosen
            ]
        )

    def _with_layers(self, parts: Sequence[tuple[GpuSet, np.ndarray]]) -> Segments:
        """Layers for sets in pipeline order, each with the GPUs it may use; empty if that fails."""
        intervals, chosen = [], []
        for gpu_set, able in parts:
            interval = self._interval(gpu_set)
            if interval is None:
                return ()
            intervals.append(interval)
            left = able.tolist()
            taken = []
            for kind in gpu_set[0]:
                gpu = next(gpu for gpu in left if self._instance.kinds[gpu] == kind)
                left.remove(gpu)
                taken.append(gpu)
            chosen.append((gpu_set[0], tuple(sorted(taken))))
        layers = self._instance.layers
        if not sum(low for low, _ in intervals) <= layers <= sum(high for _, high in intervals):
            return ()
        counts = distribute_layers(
            intervals, lambda index, count: self._instance.value(chosen[index][0], count), layers
        )
        return tuple((count, gpus) for count, (_, gpus) in zip(counts, chosen, strict=True))

    def _interval(self, gpu_set: GpuSet) -> tuple[int, int] | None:
        """The layer counts that this set sustains: from its least on, up to what its value allows."""
        kinds, low, high = gpu_set
        while high >= low and self._instance.value(kinds, high) < self._value * (1 - ROUNDING):
            high -= 1
        return (low, high) if high >= low else None

    def _sets(self, component: Component, packing: CoverPacking) -> list[GpuSet]:
        """The packing's sets, those of one kind, and the fixed ones."""
        fleet = np.bincount(self._kinds[component.gpus], minlength=self._covers.shares.shape[1])
        sets = dict.fromkeys(packing.chosen)
        items = concatenate_items(single_kind_items(self._covers, fleet), self._fixed)
        fits = np.flatnonzero((items.counts <= fleet).all(axis=1))
        for item in fits[np.argsort(items.sizes[fits], kind="stable")].tolist():
            sets.setdefault((kinds_of(items, item), int(items.low[item]), int(items.high[item])))
        return list(sets)[:_MOST_ITEMS]

    def _items(self, sets: list[GpuSet]) -> Items:
        """Sets as items; `multiset` is their own index, since no table has them."""
        width = self._covers.shares.shape[1]
        counts = np.array([np.bincount(gpu_set[0], minlength=width) for gpu_set in sets], dtype=np.int64)
        intervals = np.array([self._interval(gpu_set) or (1, 0) for gpu_set in sets], dtype=np.int64)
        return Items(np.arange(len(sets)), counts, counts.sum(axis=1), intervals[:, 0], intervals[:, 1])


def _gpu_count(segments: Segments) -> int:
    return sum(len(gpus) for _, gpus in segments)
