"""At one threshold: is there a pipeline whose every segment and link reaches it?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance, Segments
from torchsplit_core.placement.search.beam_search import WIDTHS, BeamSearch
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.layer_assignment import Steps, assign_layers, pipeline_throughput
from torchsplit_core.placement.search.network import Component, components, gpu_classes
from torchsplit_core.placement.search.packing import Packing, pack
from torchsplit_core.placement.search.path_program import PathProgram
from torchsplit_core.placement.search.patterns import build_patterns
from torchsplit_core.placement.search.segment_table import Items, SegmentTable, items_at
from torchsplit_core.values.status import SearchVerdict


@dataclass(frozen=True)
class Decision:
    """found: segments that reach the threshold. none: proven that nothing does. unknown: time or size."""

    status: SearchVerdict
    segments: Segments = ()


class ThresholdProblem:
    """One threshold of one instance, with segments of at most `most` GPUs: items, components, their packings."""

    def __init__(
        self, instance: ProblemInstance, table: SegmentTable, threshold: float, most: int, clock: SearchClock
    ) -> None:
        self._instance, self._table, self._clock = instance, table, clock
        self._value = threshold
        clock.count("thresholds")
        self.items: Items = items_at(table, threshold, most)
        able = self.items.counts.sum(axis=0) > 0
        self._kinds = np.array(instance.kinds, dtype=np.int64)
        usable = np.flatnonzero(able[self._kinds])
        self.components = components(instance.links, usable, threshold)
        self._packings: dict[tuple[bool, tuple[int, ...]], Packing] = {}

    def relaxation_status(self) -> SearchVerdict:
        """Whether a pipeline exists if all links inside a component are fast enough; none is a proof."""
        if self.single_segment() is not None:
            return "found"
        unknown = False
        for component in self.components:
            status = self.packing(component).status
            if status == "found":
                return "found"
            unknown = unknown or status == "unknown"
        return "unknown" if unknown else "none"

    def single_segment(self) -> Segments | None:
        """One segment of all layers with the fewest GPUs, which needs no link."""
        layers = self._instance.layers
        able = np.flatnonzero((self.items.low <= layers) & (self.items.high >= layers))
        if not len(able) or not self._instance.allows(1):
            return None
        item = int(able[np.argmin(self.items.sizes[able])])
        gpus = self._assign_gpus((item,), np.arange(len(self._instance.kinds)))
        return assign_layers(self._table, self.items, gpus, layers)

    def packing(self, component: Component, *, fewest: bool = False) -> Packing:
        """The packing of a component's fleet; components of equal fleets share it."""
        fleet = np.bincount(self._kinds[component.gpus], minlength=self.items.counts.shape[1])
        key = (fewest, tuple(fleet.tolist()))
        if key not in self._packings:
            self._packings[key] = pack(
                self.items,
                fleet,
                self._instance.layers,
                self._clock,
                fewest=fewest,
                segments=self._instance.counts,
            )
        return self._packings[key]

    def solve_easy(self) -> Decision:
        """A pipeline of this threshold if one segment or one complete component suffices."""
        alone = self.single_segment()
        if alone is not None:
            return self._check(alone)
        for component in self.components:
            if component.complete and self.packing(component).status == "found":
                return self._solve_component(component, 0.0, fewest=False)
        return Decision("unknown")

    def decide(self, seconds: float) -> Decision:
        """Any pipeline of this threshold; `seconds` for each component whose links bind."""
        easy = self.solve_easy()
        if easy.status == "found":
            return easy
        undecided = [candidate for candidate in self.components if self.packing(candidate).status != "none"]
        for component in undecided:
            decision = self._solve_component(component, seconds, fewest=False)
            if decision.status == "found":
                return decision
            if decision.status == "none":
                undecided = [candidate for candidate in undecided if candidate is not component]
        return Decision("unknown" if undecided else "none")

    def minimize_gpus(self, known: Segments) -> Decision:
        """A pipeline of this threshold with the fewest GPUs; unknown, with the best one found, if that is not proven.
        `known`: a pipeline of this threshold, as a fallback."""
        alone = self.single_segment()
        best = self._check(alone) if alone is not None else Decision("none")
        least_open = None
        for component in self.components:
            packing = self.packing(component, fewest=True)
            if packing.status == "none" or (best.segments and packing.gpus >= _gpu_count(best.segments)):
                continue
            decision = self._minimize_gpus_in(component, packing)
            if decision.status == "unknown":
                least_open = min(packing.gpus, least_open if least_open is not None else packing.gpus)
            elif decision.status == "found" and (
                not best.segments or _gpu_count(decision.segments) < _gpu_count(best.segments)
            ):
                best = decision
        if least_open is None and best.segments:
            return best
        if not best.segments or _gpu_count(known) < _gpu_count(best.segments):
            best = Decision("found", known)
        proven = least_open is not None and least_open >= _gpu_count(best.segments)
        return Decision("found" if proven else "unknown", best.segments)

    def _minimize_gpus_in(self, component: Component, packing: Packing) -> Decision:
        """No pipeline has fewer GPUs than the packing, so one with as many, of the packing's items, is optimal."""
        if packing.status == "found" and not component.complete:
            used = np.unique(np.array(packing.chosen))
            steps = self._beam_search(component, self.items.only(used), self._clock)
            if steps is not None and sum(len(gpus) for _, gpus in steps) == packing.gpus:
                return self._with_layers([(int(used[item]), gpus) for item, gpus in steps])
        return self._solve_component(component, self._clock.left_s(), fewest=True)

    def _solve_component(self, component: Component, seconds: float, *, fewest: bool) -> Decision:
        if component.complete:
            chosen = self.packing(component, fewest=fewest)
            if chosen.status != "found":
                return Decision("none" if chosen.status == "none" else "unknown")
            return self._with_layers(self._assign_gpus(chosen.chosen, component.gpus))
        part = self._clock.part(seconds)
        if not fewest:
            steps = self._beam_search(component, self.items, part)
            if steps is not None:
                return self._with_layers(steps)
        merged = gpu_classes(component, self._instance.kinds)
        patterns = build_patterns(merged, self.items)
        if patterns is None:
            return Decision("unknown")
        program = PathProgram(
            merged, self.items, patterns, self._instance.layers, segments=self._instance.counts
        )
        trail = program.solve(part, fewest=fewest)
        if trail.status == "found":
            return self._with_layers(trail.steps)
        return Decision(trail.status)

    def _beam_search(self, component: Component, items: Items, clock: SearchClock) -> Steps | None:
        """A pipeline of these items: with few states first, which is enough for most fleets of nodes."""
        walker = BeamSearch(component, self._instance, items, clock)
        for width in WIDTHS:
            clock.count("walks")
            steps = walker.find(width)
            if steps is not None:
                return steps
        return None

    def _with_layers(self, steps: Steps) -> Decision:
        return self._check(assign_layers(self._table, self.items, steps, self._instance.layers))

    def _check(self, segments: Segments) -> Decision:
        """Accept a pipeline only after it was evaluated on the instance."""
        reached = pipeline_throughput(self._instance, segments) >= self._value
        return Decision("found", segments) if reached else Decision("unknown")

    def _assign_gpus(self, chosen: tuple[int, ...], gpus: np.ndarray) -> Steps:
        """GPUs for items, lowest first: any will do if all are linked."""
        left: dict[int, list[int]] = {}
        for gpu in gpus.tolist()[::-1]:
            left.setdefault(self._instance.kinds[gpu], []).append(gpu)
        return [
            (
                item,
                tuple(sorted(left[kind].pop() for kind in self._table.multisets[self.items.multiset[item]])),
            )
            for item in chosen
        ]


def _gpu_count(segments: Segments) -> int:
    return sum(len(gpus) for _, gpus in segments)
