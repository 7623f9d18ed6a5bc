"""The least latency at a threshold for any fleet: a bound by integer programs, a plan from their segments."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.latency.assign import assign, spread
from torchsplit_core.placement.latency.beam import Beam
from torchsplit_core.placement.latency.choices import Choice, Choices
from torchsplit_core.placement.latency.plan import PROVEN, SAME, Least, PassCosts, Plan, better, plan_of
from torchsplit_core.placement.latency.program import Hops, LatencyProgram
from torchsplit_core.placement.latency.tiers import Site, build_tiers, sorts_at
from torchsplit_core.placement.latency.trails import least_trail
from torchsplit_core.placement.model.instance import Instance, Segments
from torchsplit_core.placement.search.clock import Clock
from torchsplit_core.placement.search.network import Component
from torchsplit_core.placement.search.table import Table

WIDTHS = (2, 12)
"""States a step of a walk, the quick one first. Chosen, not measured."""

PART = 0.2
"""Of the time that is left, at most, for one threshold. Chosen, not measured."""


@dataclass
class _Threshold:
    """A threshold under way. clock: the time for it. best: the quickest plan so far."""

    threshold: float
    choices: tuple[Choice, ...]
    clock: Clock
    best: Plan | None

    @property
    def beaten_s(self) -> float:
        """The latency of the best so far."""
        return self.best.latency_s if self.best is not None else float("inf")


class Programs:
    """One instance, ready for any threshold."""

    def __init__(self, instance: Instance, costs: PassCosts, table: Table, clock: Clock) -> None:
        self._instance, self._costs, self._table, self._clock = instance, costs, table, clock
        self._choices = Choices(table, costs)
        self._layer_s = self._choices.seconds / np.arange(1, instance.layers + 1)
        self._tiers = build_tiers(instance.links)
        self._kinds = np.array(instance.kinds, dtype=np.int64)

    def within(self, least: int, most: int) -> Programs:
        """The same for pipelines of so many segments."""
        other = copy(self)
        other._instance = self._instance.within(least, most)
        return other

    def least(self, threshold: float, known: Plan | None = None) -> Least:
        """The quickest plan found that reaches the threshold, and a bound for all that do. known: one that does."""
        instance, part = self._instance, self._clock.part(self._clock.left_s() * PART)
        best = self._alone(threshold)
        if known is not None and better(known, best):
            best = known
        choices = self._choices.at(threshold)
        roots, levels = sorts_at(self._tiers, instance.links, self._kinds, threshold)
        hops, scale_s = self._hops(levels), best.latency_s if best is not None else self._floor_s(0.0)
        at = _Threshold(threshold, choices, part, best)
        bounds, floor_s = [], self._floor_s(threshold)
        for root in roots:
            program = LatencyProgram(
                root, choices, self._table.counts, instance.layers, hops, scale_s, instance.counts
            )
            solved = program.least(part.left_s(), at.beaten_s)
            self._clock.count("programs")
            bounds.append(max(solved.bound_s, floor_s))
            if solved.chosen:
                self._keep(at, assign(root.sites[0], solved.chosen, self._table.multisets, instance.kinds))
        for index, root in enumerate(roots):
            if bounds[index] * (1 + PROVEN) < at.beaten_s and len(root.sites[0].gpus) > 1:
                bounds[index] = min(self._searched(at, site, bounds[index]) for site in root.sites)
        bound_s = min([at.beaten_s, *bounds])
        found = Least(at.best, bound_s)
        # A bound that is met within the tolerance of a proof is the latency itself.
        return Least(found.plan, found.plan.latency_s) if found.plan and found.proven else found

    def _searched(self, at: _Threshold, site: Site, bound_s: float) -> float:
        """Look for a better plan in a component where the tiers gave none as good as their bound; the bound then."""
        beam = Beam(self._instance, self._costs, self._table, at.choices, site.gpus, at.threshold, at.clock)
        for width in WIDTHS:
            self._clock.count("walks")
            self._keep(at, beam.find(width))
            if bound_s * (1 + PROVEN) >= at.beaten_s:
                return bound_s
        gpus = np.array(site.gpus, dtype=np.int64)
        fast = self._instance.links[np.ix_(gpus, gpus)] >= at.threshold
        np.fill_diagonal(fast, True)
        component = Component(gpus, fast, bool(fast.all()))
        trailed = least_trail(
            self._instance, self._costs, self._table, at.choices, component, at.beaten_s, at.clock
        )
        if trailed is None:
            return bound_s
        self._keep(at, trailed.segments)
        return max(bound_s, trailed.bound_s)

    def _keep(self, at: _Threshold, segments: Segments) -> None:
        """Keep a pipeline that reaches the threshold and is better than the best."""
        plan = plan_of(self._instance, self._costs, segments) if segments else None
        if plan is not None and plan.throughput >= at.threshold and better(plan, at.best):
            at.best = plan

    def _alone(self, threshold: float) -> Plan | None:
        """The quickest single segment: it needs no link."""
        values = self._table.values[:, -1]
        able = np.flatnonzero(values >= threshold)
        if not len(able):
            return None
        row = able[np.lexsort((self._table.counts[able].sum(axis=1), -values[able]))[0]]
        gpus = spread(self._table.multisets[row], self._instance.kinds)
        return plan_of(self._instance, self._costs, ((self._instance.layers, gpus),))

    def _hops(self, levels: tuple[int, ...]) -> Hops:
        tiers = self._tiers
        speeds = [tiers.fastest, *(tiers.below[number] for number in levels)]
        if not tiers.fastest:
            return Hops(0.0, ())
        seconds = self._costs.link_s(np.array(speeds))
        return Hops(float(seconds[0]), tuple(np.diff(seconds).tolist()))

    def _floor_s(self, threshold: float) -> float:
        """Less than any pipeline takes: the layers, each as in the segment that is quickest by the layer."""
        able = self._table.values >= threshold
        return float(self._layer_s[able].min(initial=np.inf)) * self._instance.layers * (1 - SAME)
