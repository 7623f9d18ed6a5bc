"""A pipeline through a component as an Euler trail: the integer program, and the trail read from it.

A pipeline visits patterns; from each it passes the pattern's gate to the next. The passes of arcs form a trail exactly
if the flow is balanced but for one start and one end, and connected. Balance is in the program; for a disconnected
solution each piece that the start does not reach gets a subtour cut, and the program is solved again. Cuts that the
linear relaxation violates are added first.

| row | formula |
|---|---|
| pattern[p] | visits_p = start_p + Σ passes into p |
| gate[h] | Σ visits of its patterns = end_h + Σ passes out of h |
| start | Σ_p start_p = 1 |
| end | Σ_h end_h = 1 |
| gpus[c] | Σ_p count_pc · visits_p ≤ members of c |
| layers_least | Σ_p low_p · visits_p ≤ M |
| layers_most | Σ_p high_p · visits_p ≥ M |
| segments | least ≤ Σ_p visits_p ≤ most, if their number is limited |
| reached[W,c] | Σ_{p in W} count_pc · visits_p ≤ members of c · (starts in W + passes and visits that lead into W) |
| minimise | Σ_p (GPUs of p) · visits_p |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.network import GpuClasses
from torchsplit_core.placement.search.patterns import SegmentPatterns
from torchsplit_core.placement.search.segment_table import Items
from torchsplit_core.placement.search.subtour_cuts import violated_cuts
from torchsplit_core.solver.highs import INF
from torchsplit_core.solver.row_program import RowProgram
from torchsplit_core.values.status import SearchVerdict

_ROUNDS = 4
"""Most linear relaxations that are searched for cuts before the integer program is solved. In
benchmarks/placement_constants.py none take 1.4 times as long on one of five fleets; 16 make no difference beyond the
noise (a third)."""

_ROUNDS_PART = 0.5
"""Part of the remaining time for them. Chosen, not measured."""

_TINY = 1e-7
"""Smaller visits and passes of a relaxation count as 0: HiGHS's own tolerance of linear programs."""


@dataclass(frozen=True)
class PathSolution:
    """steps: (item, GPUs) in pipeline order. none: provably no pipeline in this component.

    gpus: with status found, no pipeline of the component uses fewer, if the fewest were requested.
    """

    status: SearchVerdict
    steps: tuple[tuple[int, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class Flow:
    """One integer solution: visits and starts of the patterns, ends of the gates, passes of the arcs."""

    visits: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    passes: np.ndarray


class PathProgram:
    """The program of one component at one threshold, built in the empty `program` (None: a new one)."""

    def __init__(
        self,
        classes: GpuClasses,
        items: Items,
        patterns: SegmentPatterns,
        layers: int,
        program: RowProgram | None = None,
        *,
        segments: tuple[int, int] | None = None,
    ) -> None:
        """segments: the least and the most of them; None: any number."""
        self._classes, self._items, self._patterns = classes, items, patterns
        self._sizes = sizes = np.array([len(members) for members in classes.members])
        counts, count = patterns.counts, len(patterns.counts)
        room = np.where(counts > 0, sizes // np.maximum(counts, 1), layers).min(axis=1)
        self._most = np.minimum(room, layers // items.low[patterns.item])
        gates, patterns_in = patterns.arcs
        self._program = program = program or RowProgram()
        self._visit = program.add_columns(items.sizes[patterns.item].tolist(), self._most.tolist())
        self._start = program.add_columns([0.0] * count, np.minimum(self._most, 1).tolist())
        self._end = program.add_columns([0.0] * patterns.gates, [1.0] * patterns.gates)
        self._arc = program.add_columns([0.0] * len(gates), self._most[patterns_in].tolist())
        self._add_flow_balance()
        every = np.arange(count)
        program.add_row(1, 1, self._start + every, np.ones(count))
        program.add_row(1, 1, self._end + np.arange(patterns.gates), np.ones(patterns.gates))
        for class_index in range(len(sizes)):
            using = np.flatnonzero(counts[:, class_index])
            if len(using):
                program.add_row(
                    -INF, int(sizes[class_index]), self._visit + using, counts[using, class_index]
                )
        program.add_row(-INF, layers, self._visit + every, items.low[patterns.item])
        program.add_row(layers, INF, self._visit + every, items.high[patterns.item])
        if segments is not None:
            program.add_row(*segments, self._visit + every, np.ones(count))
        self._end_column = len(program.cost)
        self._relaxed_cost = 0.0

    def class_use(self, class_index: int) -> tuple[np.ndarray, np.ndarray]:
        """The columns whose weighted sum is how many GPUs of a class the trail uses, and the weights."""
        counts = self._patterns.counts[:, class_index]
        using = np.flatnonzero(counts)
        return self._visit + using, counts[using]

    def solve(self, clock: SearchClock, *, fewest: bool) -> PathSolution:
        """Solve, with subtour cuts, until the solution is a trail; `fewest`: with the fewest GPUs, proven."""
        if not self._add_relaxation_cuts(clock):
            return PathSolution("none")
        while not clock.over():
            clock.count("trail_programs")
            solution = self._program.solve(clock.left_s(), first=not fewest)
            if solution.status == "infeasible":
                return PathSolution("none")
            if solution.status == "unknown" or (fewest and solution.status != "optimal"):
                return PathSolution("unknown")
            if not self.add_piece_cuts(solution.values):
                return PathSolution("found", self.steps(solution.values, self._classes.members))
        return PathSolution("unknown")

    def add_piece_cuts(self, values: np.ndarray) -> int:
        """Cut off each visited piece of an integer solution that the start does not reach; how many there are."""
        flow = self._read(np.rint(values).astype(np.int64))
        pieces = self._disconnected_pieces(flow)
        for patterns, gates in pieces:
            piece_classes = np.flatnonzero(self._patterns.counts[patterns].any(axis=0))
            self._add_subtour_cut(patterns, gates, flow.visits > 0, piece_classes)
        return len(pieces)

    def add_fractional_cuts(self, values: np.ndarray) -> int:
        """Add subtour cuts that a solution of the relaxation violates; how many there are."""
        flow = self._read(np.where(values > _TINY, values, 0.0))
        broken = violated_cuts(self._patterns, flow.visits, flow.starts, flow.passes, self._sizes)
        for patterns, gates, gpu_class in broken:
            self._add_subtour_cut(patterns, gates, flow.visits > 0, np.array([gpu_class]))
        return len(broken)

    def steps(
        self, values: np.ndarray, members: Sequence[Sequence[int]]
    ) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The trail of a connected integer solution, on the GPUs `members` of each class."""
        return self._euler_path(self._read(np.rint(values).astype(np.int64)), members)

    def _add_flow_balance(self) -> None:
        gates, patterns_in = self._patterns.arcs
        into = _grouped(patterns_in, len(self._most))
        for pattern in range(len(self._most)):
            arcs = self._arc + into[pattern]
            columns = np.concatenate([[self._visit + pattern, self._start + pattern], arcs])
            self._program.add_row(0, 0, columns, np.concatenate([[1, -1], -np.ones(len(arcs))]))
        out, behind = (_grouped(of, self._patterns.gates) for of in (gates, self._patterns.gate_of))
        for gate in range(self._patterns.gates):
            columns = np.concatenate([self._visit + behind[gate], [self._end + gate], self._arc + out[gate]])
            signs = np.ones(len(columns))
            signs[len(behind[gate]) :] = -1
            self._program.add_row(0, 0, columns, signs)

    def _read(self, values: np.ndarray) -> Flow:
        return Flow(
            values[self._visit : self._start],
            values[self._start : self._end],
            values[self._end : self._arc],
            values[self._arc : self._end_column],
        )

    def _disconnected_pieces(self, flow: Flow) -> list[tuple[np.ndarray, np.ndarray]]:
        """Patterns and gates of every visited piece that the start does not reach."""
        gates, patterns_in = self._patterns.arcs
        count = len(self._most)
        next_to: dict[int, list[int]] = {}
        for pattern in np.flatnonzero(flow.visits).tolist():
            gate = count + int(self._patterns.gate_of[pattern])
            next_to.setdefault(pattern, []).append(gate)
            next_to.setdefault(gate, []).append(pattern)
        for arc in np.flatnonzero(flow.passes).tolist():
            gate, pattern = count + int(gates[arc]), int(patterns_in[arc])
            next_to.setdefault(gate, []).append(pattern)
            next_to.setdefault(pattern, []).append(gate)
        seen: set[int] = set()
        pieces = []
        for first in [int(np.flatnonzero(flow.starts)[0]), *next_to]:
            if first in seen:
                continue
            piece, queue = {first}, [first]
            while queue:
                for other in next_to.get(queue.pop(), ()):
                    if other not in piece:
                        piece.add(other)
                        queue.append(other)
            if seen:
                inside = np.array(sorted(piece))
                pieces.append((inside[inside < count], inside[inside >= count] - count))
            seen |= piece
        return pieces

    def _add_relaxation_cuts(self, clock: SearchClock, rounds: int = _ROUNDS) -> bool:
        """Add cuts that the linear relaxation violates, until there are none; False if it becomes infeasible.

        `_relaxed_cost`: the last relaxation's, which no solution is below.
        """
        part = clock.part(_ROUNDS_PART * clock.left_s())
        for _ in range(rounds):
            if part.over():
                return True
            clock.count("relaxations")
            solution = self._program.relax_again(part.left_s())
            if solution.status == "infeasible":
                return False
            if solution.status != "optimal":
                return True
            self._relaxed_cost = solution.bound
            if not self.add_fractional_cuts(solution.values):
                return True
        return True

    def _add_subtour_cut(
        self, patterns: np.ndarray, gates: np.ndarray, visited: np.ndarray, cut_classes: np.ndarray
    ) -> None:
        """Uses of the classes `cut_classes` within W need a way in from outside.

        W is extended by the unvisited patterns of its classes, and by the gates that only lead to these: nothing added
        is visited in the solution, so the solution violates the cut.
        """
        counts, gate_of = self._patterns.counts, self._patterns.gate_of
        arc_gates, arc_patterns = self._patterns.arcs
        inside = ~counts[:, ~counts[patterns].any(axis=0)].any(axis=1) & ~visited
        inside[patterns] = True
        within = np.ones(self._patterns.gates, dtype=bool)
        within[gate_of[~inside]] = False
        within[gates] = True
        entering = np.flatnonzero(inside[arc_patterns] & ~within[arc_gates])
        feeding = np.flatnonzero(within[gate_of] & ~inside)
        ways = np.concatenate(
            [self._arc + entering, self._start + np.flatnonzero(inside), self._visit + feeding]
        )
        for class_index in cut_classes.tolist():
            using = np.flatnonzero(inside & (counts[:, class_index] > 0))
            columns = np.concatenate([self._visit + using, ways])
            signs = np.concatenate(
                [counts[using, class_index], np.full(len(ways), -int(self._sizes[class_index]))]
            )
            self._program.add_row(-INF, 0, columns, signs)

    def _euler_path(
        self, flow: Flow, members: Sequence[Sequence[int]]
    ) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The trail (Hierholzer), with GPUs of the classes assigned in ascending order."""
        gates, patterns_in = self._patterns.arcs
        leaving: dict[int, list[int]] = {}
        for arc in np.flatnonzero(flow.passes)[::-1].tolist():
            leaving.setdefault(int(gates[arc]), []).extend([int(patterns_in[arc])] * int(flow.passes[arc]))
        stack, order = [int(np.flatnonzero(flow.starts)[0])], []
        while stack:
            ways = leaving.get(int(self._patterns.gate_of[stack[-1]]))
            if ways:
                stack.append(ways.pop())
            else:
                order.append(stack.pop())
        left = [list(gpus) for gpus in members]
        steps = []
        for pattern in reversed(order):
            taken: list[int] = []
            for class_index in np.flatnonzero(self._patterns.counts[pattern]).tolist():
                amount = int(self._patterns.counts[pattern, class_index])
                taken += left[class_index][:amount]
                del left[class_index][:amount]
            steps.append((int(self._patterns.item[pattern]), tuple(sorted(taken))))
        return tuple(steps)


def _grouped(keys: np.ndarray, count: int) -> list[np.ndarray]:
    """The indices of every key 0 … count - 1."""
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.cumsum(np.bincount(keys, minlength=count))[:-1])
