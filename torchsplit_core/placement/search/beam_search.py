"""Quick pipelines by beam search, segment by segment: no proof.

A state is a partial pipeline. It is rated by the layers that it could still reach: those it holds, plus for every free
GPU that kind's price (the dual of the linear packing program: no packing of a fleet holds more layers than the sum of
its prices). States that cannot reach all layers are dropped; of the others a fixed number is kept, by reach and then by
followers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.layer_assignment import Steps
from torchsplit_core.placement.search.network import Component, gpu_classes
from torchsplit_core.placement.search.segment_table import Items
from torchsplit_core.solver.highs import INF
from torchsplit_core.solver.row_program import RowProgram

WIDTHS = (3, 40)
"""States kept at each step: few first, which is enough for most fleets of nodes, then many. In
benchmarks/placement_constants.py 160 instead of 40 take 1.9 times as long on one of five fleets; leaving out the 3
makes no difference beyond the noise (a third)."""

_BRANCHES, _CLASSES = 3, 64
"""Sets kept with each further GPU of a segment, and symmetry classes from which the first GPU may be taken. In
benchmarks/placement_constants.py 1 to 12 and 16 to 256 make no difference beyond the noise (a third)."""

_FOLLOWERS, _MOST_FOLLOWERS = 0.5, 8
"""Layers that a free GPU linked to the last segment adds to a state's rating, and how many such GPUs count. In
benchmarks/placement_constants.py 0 to 2 layers make no difference beyond the noise (a third)."""


@dataclass(frozen=True)
class _State:
    """low, high: layers so far. free: unused GPUs as bits. gate: GPUs to which every last GPU has a link."""

    low: int
    high: int
    free: int
    gate: int
    reach: float
    last: tuple[int, tuple[int, ...]]
    before: _State | None
    segments: int = 0


class BeamSearch:
    """Beam searches through one component at one threshold."""

    def __init__(
        self, component: Component, instance: ProblemInstance, items: Items, clock: SearchClock
    ) -> None:
        kinds = instance.kinds
        self._component, self._items, self._layers, self._clock = component, items, instance.layers, clock
        self._least, self._most = instance.counts or (1, instance.max_segments())
        self._after = [_bit_mask(row) & ~(1 << bit) for bit, row in enumerate(component.links)]
        gpu_kinds = [kinds[gpu] for gpu in component.gpus]
        self._of_kind = [
            sum(1 << bit for bit, kind in enumerate(gpu_kinds) if kind == wanted)
            for wanted in range(items.counts.shape[1])
        ]
        index_of = {int(gpu): bit for bit, gpu in enumerate(component.gpus)}
        merged = gpu_classes(component, kinds)
        self._classes_of: list[list[int]] = [[] for _ in self._of_kind]
        for members, kind in zip(merged.members, merged.kinds, strict=True):
            self._classes_of[kind].append(sum(1 << index_of[gpu] for gpu in members))
        self._wanted = [np.repeat(np.arange(len(row)), row).tolist() for row in items.counts]
        self._prices = self._dual_prices(np.array([mask.bit_count() for mask in self._of_kind]))
        self._costs = items.counts @ self._prices
        gain = items.high - self._costs
        self._order = np.lexsort((items.sizes, -gain)).tolist()

    def find(self, width: int) -> Steps | None:
        """A pipeline of all layers, with `width` states kept a step; None if none was found."""
        size = len(self._component.gpus)
        every = (1 << size) - 1
        reach = float(sum(self._prices[kind] * mask.bit_count() for kind, mask in enumerate(self._of_kind)))
        states = [_State(0, 0, every, every, reach, (-1, ()), None)]
        while states and not self._clock.over():
            children: dict[tuple[int, tuple[int, ...]], _State] = {}
            for state in states:
                if self._clock.over():
                    return None
                for child in self._children(state):
                    if child.high >= self._layers and child.segments >= self._least:
                        return self._steps(child)
                    children.setdefault((child.free, child.last[1]), child)
            ranked = sorted(
                children.values(),
                key=lambda ranked_state: (
                    ranked_state.reach
                    + _FOLLOWERS * min((ranked_state.gate & ranked_state.free).bit_count(), _MOST_FOLLOWERS)
                ),
                reverse=True,
            )
            states = ranked[:width]
        return None

    def _children(self, state: _State) -> Iterator[_State]:
        for item in self._order:
            low, high = state.low + int(self._items.low[item]), state.high + int(self._items.high[item])
            reach = state.reach + float(self._items.high[item] - self._costs[item])
            if low > self._layers or reach < self._layers - 1e-6:
                continue
            segments = state.segments + 1
            last = segments == self._most
            if last and high < self._layers:
                continue
            for chosen, gate, free in self._sets(self._wanted[item], state.gate & state.free, state.free, -1):
                if high >= self._layers or gate & free:
                    yield _State(low, high, free, gate, reach, (item, chosen), state, segments)

    def _sets(
        self, wanted: list[int], able: int, free: int, gate: int
    ) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """Some sets of GPUs of the wanted kinds among the able ones: (GPUs, their common gate, what stays free).

        The first GPU may be any; the next ones keep the gate largest.
        """
        for first in self._first_of(able, wanted[0]):
            sets: list[tuple[tuple[int, ...], int, int]] = [
                ((first,), gate & self._after[first], free & ~(1 << first))
            ]
            for kind in wanted[1:]:
                longer: dict[int, tuple[tuple[int, ...], int, int]] = {}
                for chosen, common, left in sets:
                    for gpu_bit in self._first_of(able & left, kind):
                        rest = left & ~(1 << gpu_bit)
                        longer[rest] = ((*chosen, gpu_bit), common & self._after[gpu_bit], rest)
                sets = sorted(longer.values(), key=lambda entry: -(entry[1] & entry[2]).bit_count())[
                    :_BRANCHES
                ]
            yield from sets

    def _first_of(self, able: int, kind: int) -> list[int]:
        """The first able GPU of each symmetry class of this kind, of some classes if there are many."""
        class_masks = [mask & able for mask in self._classes_of[kind] if mask & able]
        return [(mask & -mask).bit_length() - 1 for mask in class_masks[:_CLASSES]]

    def _steps(self, state: _State) -> Steps:
        steps: list[tuple[int, tuple[int, ...]]] = []
        at: _State | None = state
        while at is not None and at.before is not None:
            item, chosen = at.last
            steps.append((item, tuple(sorted(int(self._component.gpus[bit]) for bit in chosen))))
            at = at.before
        return steps[::-1]

    def _dual_prices(self, fleet: np.ndarray) -> np.ndarray:
        """The most layers that a GPU of each kind adds to a packing: the dual program."""
        program = RowProgram()
        program.add_columns(fleet.tolist(), [float(self._layers)] * len(fleet))
        for counts, high in zip(self._items.counts, self._items.high, strict=True):
            kinds = np.flatnonzero(counts)
            program.add_row(float(high), INF, kinds, counts[kinds])
        solution = program.solve(self._clock.left_s(), integer=False)
        return solution.values if solution.status == "optimal" else np.full(len(fleet), float(self._layers))


def _bit_mask(row: np.ndarray) -> int:
    return int.from_bytes(np.packbits(row, bitorder="little").tobytes(), "little")
