"""The least latency within a component at a threshold by the path program, for arbitrary links.

Layers y_p of pattern p and the seconds z_p of its segments are added to the path program, and its cost is seconds:

| row | formula |
|---|---|
| seconds[p,i] | z_p ≥ α_i visits_p + β_i y_p for each line i of the choice of p, if it has several |
| least[p] | y_p ≥ low_p · visits_p |
| most[p] | y_p ≤ high_p · visits_p |
| layers | Σ_p y_p = M |
| minimise | Σ_p z_p + Σ passes from h to q · (P / the fastest link from any pattern of h to q) |

If every gate belongs to a single pattern of single GPUs, the seconds of a pass are exact; otherwise the program is a
lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchsplit_core.placement.latency.choices import Choice
from torchsplit_core.placement.latency.pipeline_plan import PassCosts
from torchsplit_core.placement.latency.seconds_program import GAP, NEARLY, SCALE, SecondsProgram
from torchsplit_core.placement.model.instance import ProblemInstance, Segments
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.network import Component, GpuClasses, gpu_classes
from torchsplit_core.placement.search.path_program import PathProgram
from torchsplit_core.placement.search.patterns import SegmentPatterns, build_patterns
from torchsplit_core.placement.search.segment_table import Items, SegmentTable
from torchsplit_core.solver.highs import INF

MOST_ARCS = 20_000
"""A tenth of those of search/patterns.py: seconds as costs make a harder program. Chosen, not measured."""

_ROUNDS = 100
"""Most linear relaxations that are searched for subtour cuts, a bound each: without the cuts, seconds as costs leave
pieces that the start does not reach, and the integer program a loose bound. Chosen, not measured."""


@dataclass(frozen=True)
class PathMinLatency:
    """segments: the best pipeline found, or empty. bound_s: no pipeline of the component takes less."""

    segments: Segments
    bound_s: float


def min_path_latency(
    instance: ProblemInstance,
    costs: PassCosts,
    table: SegmentTable,
    choices: Sequence[Choice],
    component: Component,
    beaten_s: float,
    clock: SearchClock,
) -> PathMinLatency | None:
    """The least latency of a component's pipelines below `beaten_s`; None if the program is too large."""
    rows = np.array([choice.multiset for choice in choices], dtype=np.int64)
    counts = table.counts[rows]
    low, high = (np.array([getattr(choice, name) for choice in choices]) for name in ("low", "high"))
    items = Items(rows, counts, counts.sum(axis=1), low, high)
    merged = latency_classes(instance, component)
    patterns = build_patterns(merged, items)
    if patterns is None or not len(patterns.counts) or patterns.arcs.shape[1] > MOST_ARCS:
        return None
    to_class = _best_links(instance, merged, patterns)
    split = _split_gates(patterns, to_class)
    if split.arcs.shape[1] <= MOST_ARCS:
        patterns = split
    hops = _hop_seconds(costs, patterns, to_class)
    program = _LatencyPathProgram(merged, items, patterns, instance, choices, hops, beaten_s)
    return program.minimize(clock)


def latency_classes(instance: ProblemInstance, component: Component) -> GpuClasses:
    """The classes of the component; GPUs whose links are all fast enough but differ are in separate classes."""
    links = instance.links
    groups: list[tuple[int, ...]] = []
    for members in gpu_classes(component, instance.kinds).members:
        class_gpus = np.array(members)
        others = np.setdiff1d(component.gpus, class_gpus)
        between = links[np.ix_(class_gpus, class_gpus)][~np.eye(len(class_gpus), dtype=bool)]
        out, into = links[np.ix_(class_gpus, others)], links[np.ix_(others, class_gpus)].T
        same = (out == out[0]).all() and (into == into[0]).all() and len(np.unique(between)) < 2
        groups += [members] if same else [(gpu,) for gpu in members]
    groups.sort()
    index_of = {int(gpu): number for number, gpu in enumerate(component.gpus)}
    first = [index_of[group[0]] for group in groups]
    fast = component.links[np.ix_(first, first)].copy()
    for number, group in enumerate(groups):
        fast[number, number] = len(group) > 1 and component.links[index_of[group[0]], index_of[group[1]]]
    return GpuClasses(tuple(groups), tuple(instance.kinds[group[0]] for group in groups), fast)


def _split_gates(patterns: SegmentPatterns, to_class: np.ndarray) -> SegmentPatterns:
    """The same patterns with gates of one speed: gates to the same patterns over other links are separate."""
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


def _best_links(instance: ProblemInstance, merged: GpuClasses, patterns: SegmentPatterns) -> np.ndarray:
    """(patterns, classes): the best link to the class from a GPU class of the pattern, least over these."""
    fastest = np.array(
        [
            [instance.links[np.ix_(source, target)].max() for target in merged.members]
            for source in merged.members
        ]
    )
    return np.array([fastest[np.flatnonzero(count)].min(axis=0) for count in patterns.counts])


def _hop_seconds(costs: PassCosts, patterns: SegmentPatterns, to_class: np.ndarray) -> np.ndarray:
    """For every arc, the least seconds of a hop from a pattern of its gate to its pattern."""
    best = np.zeros((patterns.gates, to_class.shape[1]))
    np.maximum.at(best, patterns.gate_of, to_class)
    pattern_classes = [np.flatnonzero(count) for count in patterns.counts]
    gates, into = patterns.arcs
    return costs.link_s(
        np.array(
            [best[gate, pattern_classes[pattern]].min() for gate, pattern in zip(gates, into, strict=True)]
        )
    )


class _LatencyPathProgram(PathProgram):
    """The path program with seconds as its cost."""

    def __init__(
        self,
        merged: GpuClasses,
        items: Items,
        patterns: SegmentPatterns,
        instance: ProblemInstance,
        choices: Sequence[Choice],
        hops_s: np.ndarray,
        beaten_s: float,
    ) -> None:
        self._seconds = program = SecondsProgram()
        layers = instance.layers
        super().__init__(merged, items, patterns, layers, program, segments=instance.counts)
        self._beaten_s = beaten_s * (1 - NEARLY)
        pattern_choices = [choices[item] for item in patterns.item.tolist()]
        rough_s = min(
            fixed_s + layer_s * layers for choice in pattern_choices for fixed_s, layer_s in choice.lines
        )
        self._unit_s = (beaten_s if math.isfinite(beaten_s) else max(rough_s, 1e-30)) / SCALE
        program.cost = [0.0] * len(program.cost)
        program.cost[self._arc :] = (hops_s / self._unit_s).tolist()
        self._layer = program.add_columns(
            [0.0] * len(pattern_choices), [float(layers)] * len(pattern_choices)
        )
        for index, choice in enumerate(pattern_choices):
            program.add_cost(choice, self._visit + index, self._layer + index, self._unit_s)
            program.add_row(0, INF, [self._layer + index, self._visit + index], [1, -choice.low])
            program.add_row(-INF, 0, [self._layer + index, self._visit + index], [1, -choice.high])
        program.add_row(
            layers, layers, self._layer + np.arange(len(pattern_choices)), np.ones(len(pattern_choices))
        )

    def minimize(self, clock: SearchClock) -> PathMinLatency:
        """Solve, with subtour cuts, until the solution is a trail or time is over."""
        if not self._add_relaxation_cuts(clock, _ROUNDS):
            return PathMinLatency((), self._beaten_s)
        bound_s = min(self._relaxed_cost * (1 - GAP) * self._unit_s, self._beaten_s)
        while not clock.over():
            clock.count("trail_programs")
            result = self._seconds.solve_to_gap(clock.left_s(), self._beaten_s / self._unit_s)
            bound_s = max(bound_s, min(result.bound * self._unit_s, self._beaten_s))
            if not len(result.values) or bound_s >= self._beaten_s:
                break
            if not self.add_piece_cuts(result.values):
                steps = self.steps(result.values, self._classes.members)
                layers = result.values[self._layer :][: len(self._patterns.item)]
                return PathMinLatency(self._with_layers(steps, layers), bound_s)
        return PathMinLatency((), bound_s)

    def _with_layers(self, steps: Sequence[tuple[int, tuple[int, ...]]], layers: np.ndarray) -> Segments:
        """Distribute the layers of a choice evenly over its segments, which is never slower."""
        held = np.bincount(self._patterns.item, weights=layers).astype(np.int64)
        times = np.bincount([item for item, _ in steps], minlength=len(held))
        segments = []
        for item, gpus in steps:
            count = -(-int(held[item]) // int(times[item]))
            held[item] -= count
            times[item] -= 1
            segments.append((count, gpus))
        return tuple(segments)
