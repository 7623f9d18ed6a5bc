"""The least latency at a threshold for any fleet: a bound by integer programs, a plan from their segments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchsplit_core.placement.frontier.assign import assign, spread
from torchsplit_core.placement.frontier.beam import Beam
from torchsplit_core.placement.frontier.choices import Choice, Choices
from torchsplit_core.placement.frontier.plan import Least, PassCosts, Plan, better, plan_of
from torchsplit_core.placement.frontier.program import Hops, LatencyProgram
from torchsplit_core.placement.frontier.tiers import Sort, build_tiers, sorts_at
from torchsplit_core.placement.instance import Instance
from torchsplit_core.placement.search.clock import Clock
from torchsplit_core.placement.search.table import Table

WIDTHS = (2, 12)
"""States a step of a walk, the quick one first."""

PART = 0.2
"""Of the time that is left, at most, for one threshold."""


class Programs:
    """One instance, ready for any threshold."""

    def __init__(self, instance: Instance, costs: PassCosts, table: Table, clock: Clock) -> None:
        self._instance, self._costs, self._table, self._clock = instance, costs, table, clock
        self._choices = Choices(table, costs)
        self._tiers = build_tiers(instance.links)
        self._kinds = np.array(instance.kinds, dtype=np.int64)

    def least(self, threshold: float, known: Plan | None = None) -> Least:
        """The quickest plan found that reaches the threshold, and a bound for all that do. known: one that does."""
        instance, part = self._instance, self._clock.part(self._clock.left_s() * PART)
        best = self._alone(threshold)
        if known is not None and better(known, best):
            best = known
        bound_s = best.latency_s if best is not None else float("inf")
        choices = self._choices.at(threshold)
        roots, levels = sorts_at(self._tiers, instance.links, self._kinds, threshold)
        hops = self._hops(levels)
        scale_s = best.latency_s if best is not None else self._scale_s()
        for root in roots:
            program = LatencyProgram(root, choices, self._table.counts, instance.layers, hops, scale_s)
            solved = program.least(part.left_s(), best.latency_s if best is not None else float("inf"))
            self._clock.count("programs")
            bound_s = min(bound_s, solved.bound_s)
            if not solved.chosen:
                continue
            segments = assign(root.sites[0], solved.chosen, self._table.multisets, instance.kinds)
            plan = plan_of(instance, self._costs, segments) if segments else None
            if plan is not None and plan.throughput >= threshold and better(plan, best):
                best = plan
        found = Least(best, bound_s)
        if not found.proven:
            found = self._walked(threshold, found, choices, roots, part)
        # A bound that is met within the tolerance of a proof is the latency itself.
        return Least(found.plan, found.plan.latency_s) if found.plan and found.proven else found

    def _walked(
        self, threshold: float, found: Least, choices: Sequence[Choice], roots: Sequence[Sort], clock: Clock
    ) -> Least:
        """With what a walk finds where the tiers gave no plan as good as their bound."""
        best = found.plan
        for root in roots:
            if len(root.sites[0].gpus) < 2:
                continue
            beam = Beam(self._instance, self._costs, self._table, choices, root.sites[0].gpus, threshold)
            for width in WIDTHS:
                self._clock.count("walks")
                segments = beam.find(width, clock)
                plan = plan_of(self._instance, self._costs, segments) if segments else None
                if plan is not None and plan.throughput >= threshold and better(plan, best):
                    best = plan
                if Least(best, found.bound_s).proven:
                    return Least(best, found.bound_s)
        return Least(best, found.bound_s)

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

    def _scale_s(self) -> float:
        """Seconds of a pass, roughly: that of the layers on the fastest GPUs, one at a time."""
        per_layer = self._choices.seconds / np.arange(1, self._instance.layers + 1)
        return float(per_layer.min()) * self._instance.layers
