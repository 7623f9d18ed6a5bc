"""The least latency at a threshold on any fleet: a bound by integer programs, and a plan from their segments."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.latency.beam_search import LatencyBeamSearch
from torchsplit_core.placement.latency.choices import Choice, Choices
from torchsplit_core.placement.latency.gpu_assignment import assign_gpus, first_of_kinds
from torchsplit_core.placement.latency.path_latency import min_path_latency
from torchsplit_core.placement.latency.pipeline_plan import (
    PROVEN,
    SAME,
    MinLatency,
    PassCosts,
    PipelinePlan,
    evaluate_plan,
    is_better,
)
from torchsplit_core.placement.latency.program import HopCosts, LatencyProgram
from torchsplit_core.placement.latency.topology import (
    MOST_LEVELS,
    NetworkDomain,
    build_tiers,
    domain_classes_at,
)
from torchsplit_core.placement.latency.walk_search import min_walk_latency
from torchsplit_core.placement.model.instance import ProblemInstance, Segments
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.network import Component
from torchsplit_core.placement.search.segment_table import SegmentTable

WIDTHS = (2, 12)
"""States a step of the beam searches, the quick one first. Chosen, not measured."""

PART = 0.3
"""Most of the remaining time for one threshold. Chosen, not measured."""

LEVELS_PART = 0.1
"""Most of a threshold's time for the program by levels of a network whose links are of more values than levels: there
it is no more than a bound. Chosen, not measured."""


@dataclass
class _ThresholdState:
    """A threshold in progress. clock: its time. best: the fastest plan so far."""

    threshold: float
    choices: tuple[Choice, ...]
    clock: SearchClock
    best: PipelinePlan | None

    @property
    def beaten_s(self) -> float:
        """The latency of the best plan so far."""
        return self.best.latency_s if self.best is not None else float("inf")


class LatencyPrograms:
    """One instance, ready for any threshold."""

    def __init__(
        self, instance: ProblemInstance, costs: PassCosts, table: SegmentTable, clock: SearchClock
    ) -> None:
        self._instance, self._costs, self._table, self._clock = instance, costs, table, clock
        self._choices = Choices(table, costs)
        self._layer_s = self._choices.seconds / np.arange(1, instance.layers + 1)
        self._tiers = build_tiers(instance.links)
        self._kinds = np.array(instance.kinds, dtype=np.int64)
        values = np.unique(instance.links[~np.eye(len(self._kinds), dtype=bool)])
        self._levels_part = 1.0 if len(values) <= MOST_LEVELS + 1 else LEVELS_PART

    def within(self, least: int, most: int) -> LatencyPrograms:
        """The same, restricted to pipelines of `least` to `most` segments."""
        other = copy(self)
        other._instance = self._instance.with_segment_range(least, most)
        return other

    def min_latency(self, threshold: float, known: PipelinePlan | None = None) -> MinLatency:
        """The fastest plan found that reaches the threshold, and a bound for all that do. known: such a plan."""
        instance, part = self._instance, self._clock.part(self._clock.left_s() * PART)
        best = self._single_segment(threshold)
        if known is not None and is_better(known, best):
            best = known
        choices = self._choices.at(threshold)
        roots, levels = domain_classes_at(self._tiers, instance.links, self._kinds, threshold)
        hops, scale_s = self._hop_costs(levels), best.latency_s if best is not None else self._floor_s(0.0)
        state = _ThresholdState(threshold, choices, part, best)
        bounds, floor_s = [], self._floor_s(threshold)
        for root in roots:
            program = LatencyProgram(
                root, choices, self._table.counts, instance.layers, hops, scale_s, instance.counts
            )
            solved = program.minimize(part.left_s() * self._levels_part, state.beaten_s)
            self._clock.count("programs")
            bounds.append(max(solved.bound_s, floor_s))
            if solved.chosen:
                self._update_best(
                    state, assign_gpus(root.domains[0], solved.chosen, self._table.multisets, instance.kinds)
                )
        for index, root in enumerate(roots):
            if bounds[index] * (1 + PROVEN) < state.beaten_s and len(root.domains[0].gpus) > 1:
                bounds[index] = min(
                    self._search_domain(state, domain, bounds[index]) for domain in root.domains
                )
        bound_s = min([state.beaten_s, *bounds])
        minimum = MinLatency(state.best, bound_s)
        # A bound met within the tolerance of a proof is the latency itself.
        return (
            MinLatency(minimum.plan, minimum.plan.latency_s) if minimum.plan and minimum.proven else minimum
        )

    def _search_domain(self, state: _ThresholdState, domain: NetworkDomain, bound_s: float) -> float:
        """Search for a plan in a domain where the levels gave none as good as their bound; returns the new bound."""
        beam = LatencyBeamSearch(
            self._instance, self._costs, self._table, state.choices, domain.gpus, state.threshold, state.clock
        )
        gpus = np.array(domain.gpus, dtype=np.int64)
        fast = self._instance.links[np.ix_(gpus, gpus)] >= state.threshold
        np.fill_diagonal(fast, True)
        component = Component(gpus, fast, bool(fast.all()))
        for number, width in enumerate(WIDTHS):
            self._clock.count("walks")
            self._update_best(state, beam.find(width))
            if not number and bound_s * (1 + PROVEN) < state.beaten_s:
                bound_s = max(bound_s, self._search_walks(state, component))
            if bound_s * (1 + PROVEN) >= state.beaten_s:
                return bound_s
        path_minimum = min_path_latency(
            self._instance, self._costs, self._table, state.choices, component, state.beaten_s, state.clock
        )
        if path_minimum is None:
            return bound_s
        self._update_best(state, path_minimum.segments)
        return max(bound_s, path_minimum.bound_s)

    def _search_walks(self, state: _ThresholdState, component: Component) -> float:
        """Search a component by walks; returns the bound."""
        if self._instance.counts is not None:
            return 0.0
        minimum = min_walk_latency(
            self._instance,
            self._costs,
            self._table,
            state.choices,
            component,
            state.threshold,
            self._tiers.labels,
            state.beaten_s,
            state.clock,
        )
        if minimum is None:
            return 0.0
        self._update_best(state, minimum.segments)
        return minimum.bound_s

    def _update_best(self, state: _ThresholdState, segments: Segments) -> None:
        """Keep a pipeline that reaches the threshold and is better than the best."""
        plan = evaluate_plan(self._instance, self._costs, segments) if segments else None
        if plan is not None and plan.throughput >= state.threshold and is_better(plan, state.best):
            state.best = plan

    def _single_segment(self, threshold: float) -> PipelinePlan | None:
        """The fastest single segment, which needs no link."""
        values = self._table.values[:, -1]
        able = np.flatnonzero(values >= threshold)
        if not len(able):
            return None
        row = able[np.lexsort((self._table.counts[able].sum(axis=1), -values[able]))[0]]
        gpus = first_of_kinds(self._table.multisets[row], self._instance.kinds)
        return evaluate_plan(self._instance, self._costs, ((self._instance.layers, gpus),))

    def _hop_costs(self, levels: tuple[int, ...]) -> HopCosts:
        tiers = self._tiers
        speeds = [tiers.fastest, *(tiers.below[number] for number in levels)]
        if not tiers.fastest:
            return HopCosts(0.0, ())
        seconds = self._costs.link_s(np.array(speeds))
        return HopCosts(float(seconds[0]), tuple(np.diff(seconds).tolist()))

    def _floor_s(self, threshold: float) -> float:
        """A lower bound for all pipelines: each layer as in the segment that is fastest per layer."""
        able = self._table.values >= threshold
        return float(self._layer_s[able].min(initial=np.inf)) * self._instance.layers * (1 - SAME)
