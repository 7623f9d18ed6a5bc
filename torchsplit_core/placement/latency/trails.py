"""The least latency within a component at a threshold by the trail program, where links are arbitrary.

Layers y_p of pattern p and the seconds z_p of its segments are added to the trail program, and its cost is seconds:

| row | formula |
|---|---|
| seconds[p,i] | z_p ≥ α_i visits_p + β_i y_p for each line i of the choice of p, where it has several |
| least[p] | y_p ≥ low_p · visits_p |
| most[p] | y_p ≤ high_p · visits_p |
| layers | Σ_p y_p = M |
| minimise | Σ_p z_p + Σ passes from h to q · (P / the fastest link from any pattern of h to q) |

Where every gate is that of one pattern of single GPUs, the seconds of a pass are the hop's own; elsewhere the program
is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchsplit_core.placement.latency.choices import Choice
from torchsplit_core.placement.latency.plan import PassCosts
from torchsplit_core.placement.latency.solver import NEARLY, SCALE, SecondsProgram
from torchsplit_core.placement.model.instance import Instance, Segments
from torchsplit_core.placement.search.clock import Clock
from torchsplit_core.placement.search.network import Classes, Component, classes
from torchsplit_core.placement.search.patterns import Patterns, build_patterns
from torchsplit_core.placement.search.table import Items, Table
from torchsplit_core.placement.search.trail import Flow, TrailProgram
from torchsplit_core.solver.highs import INF

MOST_ARCS = 20_000
"""A tenth of those of the search (patterns.py): seconds as costs make a harder program. Chosen, not measured."""


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
    merged = _alike(instance, component)
    patterns = build_patterns(merged, items)
    if patterns is None or not len(patterns.counts) or patterns.arcs.shape[1] > MOST_ARCS:
        return None
    to_class = _reach(instance, merged, patterns)
    apart = _told_apart(patterns, to_class)
    if apart.arcs.shape[1] <= MOST_ARCS:
        patterns = apart
    hops = _hop_seconds(costs, patterns, to_class)
    program = _LatencyTrail(merged, items, patterns, instance, choices, hops, beaten_s)
    return program.least(clock)


def _alike(instance: Instance, component: Component) -> Classes:
    """The classes of the component, but for those whose links are all fast enough and yet differ: they are apart."""
    links = instance.links
    groups: list[tuple[int, ...]] = []
    for members in classes(component, instance.kinds).members:
        own = np.array(members)
        others = np.setdiff1d(component.gpus, own)
        between = links[np.ix_(own, own)][~np.eye(len(own), dtype=bool)]
        out, into = links[np.ix_(own, others)], links[np.ix_(others, own)].T
        same = (out == out[0]).all() and (into == into[0]).all() and len(np.unique(between)) < 2
        groups += [members] if same else [(gpu,) for gpu in members]
    groups.sort()
    index_of = {int(gpu): number for number, gpu in enumerate(component.gpus)}
    first = [index_of[group[0]] for group in groups]
    fast = component.links[np.ix_(first, first)].copy()
    for number, group in enumerate(groups):
        fast[number, number] = len(group) > 1 and component.links[index_of[group[0]], index_of[group[1]]]
    return Classes(tuple(groups), tuple(instance.kinds[group[0]] for group in groups), fast)


def _told_apart(patterns: Patterns, to_class: np.ndarray) -> Patterns:
    """The same patterns with gates of one speed: those that lead to the same patterns over other links are apart."""
    gates: dict[tuple[int, bytes], int] = {}
    old: list[int] = []
    gate_of = []
    for gate, row in zip(patterns.gate_of.tolist(), to_class, strict=True):
        key = (gate, row.tobytes())
        if key not in gates:
            gates[key] = len(old)
            old.append(gate)
        gate_of.append(gates[key])
    heads = [patterns.arcs[1][patterns.arcs[0] == gate] for gate in range(patterns.gates)]
    amounts = [len(heads[gate]) for gate in old]
    arcs = np.array([np.repeat(np.arange(len(old)), amounts), np.concatenate([heads[gate] for gate in old])])
    return replace(patterns, gate_of=np.array(gate_of), gates=len(old), arcs=arcs)


def _reach(instance: Instance, merged: Classes, patterns: Patterns) -> np.ndarray:
    """(patterns, classes): the least link from the pattern's GPUs to one of the class, at best."""
    fastest = np.array(
        [[instance.links[np.ix_(one, other)].max() for other in merged.members] for one in merged.members]
    )
    return np.array([fastest[np.flatnonzero(count)].min(axis=0) for count in patterns.counts])


def _hop_seconds(costs: PassCosts, patterns: Patterns, to_class: np.ndarray) -> np.ndarray:
    """Of every arc, the least seconds of a hop from a pattern of its gate to its pattern."""
    best = np.zeros((patterns.gates, to_class.shape[1]))
    np.maximum.at(best, patterns.gate_of, to_class)
    own = [np.flatnonzero(count) for count in patterns.counts]
    gates, into = patterns.arcs
    return costs.link_s(np.array([best[gate, own[one]].min() for gate, one in zip(gates, into, strict=True)]))


class _LatencyTrail(TrailProgram):
    """The trail program with seconds as its cost."""

    def __init__(
        self,
        merged: Classes,
        items: Items,
        patterns: Patterns,
        instance: Instance,
        choices: Sequence[Choice],
        hops_s: np.ndarray,
        beaten_s: float,
    ) -> None:
        self._seconds = program = SecondsProgram()
        layers = instance.layers
        super().__init__(merged, items, patterns, layers, program, segments=instance.counts)
        self._beaten_s = beaten_s * (1 - NEARLY)
        own = [choices[item] for item in patterns.item.tolist()]
        rough_s = min(fixed_s + layer_s * layers for one in own for fixed_s, layer_s in one.lines)
        self._unit_s = (beaten_s if math.isfinite(beaten_s) else max(rough_s, 1e-30)) / SCALE
        program.cost = [0.0] * len(program.cost)
        program.cost[self._arc :] = (hops_s / self._unit_s).tolist()
        self._layer = program.add_columns([0.0] * len(own), [float(layers)] * len(own))
        for index, one in enumerate(own):
            program.price(one, self._visit + index, self._layer + index, self._unit_s)
            program.add_row(0, INF, [self._layer + index, self._visit + index], [1, -one.low])
            program.add_row(-INF, 0, [self._layer + index, self._visit + index], [1, -one.high])
        program.add_row(layers, layers, self._layer + np.arange(len(own)), np.ones(len(own)))

    def least(self, clock: Clock) -> Trailed:
        """Solve, cutting off pieces, until the solution is a trail or the time is over."""
        bound_s = 0.0
        if not self._tighten(clock):
            return Trailed((), self._beaten_s)
        while not clock.over():
            clock.count("trail_programs")
            reply = self._seconds.closely(clock.left_s(), self._beaten_s / self._unit_s)
            bound_s = max(bound_s, min(reply.bound * self._unit_s, self._beaten_s))
            if not len(reply.values) or bound_s >= self._beaten_s:
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

    def _read(self, values: np.ndarray) -> Flow:
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
