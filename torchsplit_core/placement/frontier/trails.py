"""The least latency within a component at a threshold by the trail program, where links are arbitrary.

To the rows of `search/trail.py` come layers y_p of pattern p with low · visits_p ≤ y_p ≤ high · visits_p, Σ y = M,
and the cost: the seconds of the segments, and of every pass from a gate to a pattern those of the fastest link that
such a hop can have. Where every gate is that of one pattern of single GPUs, that is the hop's own time; elsewhere the
program is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.frontier.choices import Choice
from torchsplit_core.placement.frontier.plan import PassCosts
from torchsplit_core.placement.frontier.solver import NEARLY, SCALE, SecondsProgram
from torchsplit_core.placement.instance import Instance
from torchsplit_core.placement.search.clock import Clock
from torchsplit_core.placement.search.network import Classes, Component, classes
from torchsplit_core.placement.search.patterns import Patterns, build_patterns
from torchsplit_core.placement.search.program import INF
from torchsplit_core.placement.search.segments import Segments
from torchsplit_core.placement.search.table import Items, Table
from torchsplit_core.placement.search.trail import TrailProgram, _Flow

MOST_ARCS = 20_000


@dataclass(frozen=True)
class Trailed:
    """segments: the best pipeline met, empty where none was. bound_s: no pipeline of the component takes less."""

    segments: Segments
    bound_s: float


def least_trail(
    instance: Instance,
    costs: PassCosts,
    table: Table,
    choices: Sequence[Choice],
    component: Component,
    beaten_s: float,
    clock: Clock,
) -> Trailed | None:
    """The least latency of a component's pipelines of less than `beaten_s`; None where the program is too large."""
    rows = np.array([choice.multiset for choice in choices], dtype=np.int64)
    counts = table.counts[rows]
    low, high = (np.array([getattr(choice, name) for choice in choices]) for name in ("low", "high"))
    items = Items(rows, counts, counts.sum(axis=1), low, high)
    merged = classes(component, instance.kinds)
    patterns = build_patterns(merged, items)
    if patterns is None or not len(patterns.counts) or patterns.arcs.shape[1] > MOST_ARCS:
        return None
    hops = _hop_seconds(instance, costs, merged, patterns)
    program = _LatencyTrail(merged, items, patterns, instance.layers, choices, hops, beaten_s)
    return program.least(clock)


def _hop_seconds(instance: Instance, costs: PassCosts, merged: Classes, patterns: Patterns) -> np.ndarray:
    """Of every arc, the least seconds of a hop from a pattern of its gate to its pattern."""
    fastest = np.array(
        [[instance.links[np.ix_(one, other)].max() for other in merged.members] for one in merged.members]
    )
    own = [np.flatnonzero(count) for count in patterns.counts]
    to_class = np.array([fastest[using].min(axis=0) for using in own])
    best = np.zeros((patterns.gates, to_class.shape[1]))
    np.maximum.at(best, patterns.gate_of, to_class)
    gates, into = patterns.arcs
    reached = np.array([best[gate, own[one]].min() for gate, one in zip(gates, into, strict=True)])
    return costs.link_s(reached)


class _LatencyTrail(TrailProgram):
    """The trail program with seconds as its cost."""

    def __init__(
        self,
        merged: Classes,
        items: Items,
        patterns: Patterns,
        layers: int,
        choices: Sequence[Choice],
        hops_s: np.ndarray,
        beaten_s: float,
    ) -> None:
        super().__init__(merged, items, patterns, layers)
        base = self._program
        self._beaten_s = beaten_s * (1 - NEARLY)
        own = [choices[item] for item in patterns.item.tolist()]
        rough_s = min(fixed_s + layer_s * layers for one in own for fixed_s, layer_s in one.lines)
        self._unit_s = (beaten_s if math.isfinite(beaten_s) else max(rough_s, 1e-30)) / SCALE
        self._program = self._seconds = program = SecondsProgram(
            base.cost, base.upper, base._rows, base._row_of, base._column_of, base._value_of
        )
        program.cost = [0.0] * len(program.cost)
        program.cost[self._arc :] = (hops_s / self._unit_s).tolist()
        self._layer = program.columns([0.0] * len(own), [float(layers)] * len(own))
        for place, one in enumerate(own):
            program.price(one, self._visit + place, self._layer + place, self._unit_s)
            program.row(0, INF, [self._layer + place, self._visit + place], [1, -one.low])
            program.row(-INF, 0, [self._layer + place, self._visit + place], [1, -one.high])
        program.row(layers, layers, self._layer + np.arange(len(own)), np.ones(len(own)))
        if math.isfinite(beaten_s):
            program.cheaper(self._beaten_s / self._unit_s)

    def least(self, clock: Clock) -> Trailed:
        """Solve, cutting off pieces, until the solution is a trail or the time is over."""
        bound_s = 0.0
        if not self._tighten(clock):
            return Trailed((), self._beaten_s)
        while not clock.over():
            clock.count("trail_programs")
            reply = self._seconds.closely(clock.left_s())
            if reply.impossible:
                return Trailed((), self._beaten_s)
            bound_s = max(bound_s, min(reply.bound * self._unit_s, self._beaten_s))
            if not len(reply.values):
                break
            flow = self._read(reply.values)
            pieces = self._pieces(flow)
            if not pieces:
                return Trailed(
                    self._dealt(self._walk(flow), reply.values[self._layer :][: len(flow.visits)]), bound_s
                )
            for patterns, gates in pieces:
                own = np.flatnonzero(self._patterns.counts[patterns].any(axis=0))
                self._cut(patterns, gates, flow.visits > 0, own)
        return Trailed((), bound_s)

    def _read(self, values: np.ndarray) -> _Flow:
        return super()._read(values[: self._layer])

    def _dealt(self, steps: Sequence[tuple[int, tuple[int, ...]]], layers: np.ndarray) -> Segments:
        """The layers of a choice in equal parts for its segments, which is never slower."""
        held = np.bincount(self._patterns.item, weights=layers).astype(np.int64)
        times = np.bincount([item for item, _ in steps], minlength=len(held))
        segments = []
        for item, gpus in steps:
            count = -(-int(held[item]) // int(times[item]))
            held[item] -= count
            times[item] -= 1
            segments.append((count, gpus))
        return tuple(segments)
