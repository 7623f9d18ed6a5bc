"""Quick pipelines in a network that is no tree, by beam search: no proof.

A partial pipeline is rated by a lower bound of its completions at the prices of the linear packing program without a
network: λ a layer, π_κ a GPU of kind κ, with λ · layers − Σ π_κ · (GPUs of kind κ) ≤ seconds for every segment. The
excess of a segment over its price, and of a hop over the fastest link, is lost for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.latency.choices import Choice
from torchsplit_core.placement.latency.pipeline_plan import PassCosts
from torchsplit_core.placement.model.instance import ProblemInstance, Segments
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.segment_table import SegmentTable
from torchsplit_core.solver.highs import INF
from torchsplit_core.solver.row_program import RowProgram

_BRANCHES, _LAST, _SETS = 10, 3, 4
"""Extensions of a state: by so many segments with the least loss, by so many that hold all remaining layers, and each
of these on so many sets of GPUs. Chosen, not measured."""


@dataclass(frozen=True)
class _State:
    """done: layers so far. free: (gpus,) unused. reach: (gpus,) the least link from the last segment's GPUs, 0 for used
    ones and links below the threshold. lost_s: the loss so far."""

    done: int
    free: np.ndarray
    reach: np.ndarray
    lost_s: float
    segments: Segments


class LatencyBeamSearch:
    """The pipelines of one component at one threshold."""

    def __init__(
        self,
        instance: ProblemInstance,
        costs: PassCosts,
        table: SegmentTable,
        choices: Sequence[Choice],
        gpus: Sequence[int],
        threshold: float,
        clock: SearchClock,
    ) -> None:
        self._instance, self._costs, self._table, self._clock = instance, costs, table, clock
        self._gpus = np.array(gpus, dtype=np.int64)
        self._kinds = np.array(instance.kinds, dtype=np.int64)[self._gpus]
        links = instance.links[np.ix_(self._gpus, self._gpus)]
        self._links = np.where(links >= threshold, links, 0.0)
        np.fill_diagonal(self._links, 0.0)
        self._hop_s = float(costs.link_s(self._links.max(initial=0.0)))
        counts = [np.arange(choice.low, choice.high + 1) for choice in choices]
        rows = [
            np.full(len(layer_counts), choice.multiset)
            for layer_counts, choice in zip(counts, choices, strict=True)
        ]
        self._count = np.concatenate(counts) if counts else np.zeros(0, dtype=np.int64)
        self._row = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
        seconds = costs.segment_s(table.values[self._row, self._count - 1])
        self._need = table.counts[self._row]
        extra_s = self._lost_s(seconds + (self._hop_s if np.isfinite(self._hop_s) else 0.0))
        order = np.lexsort((self._need.sum(axis=1), extra_s))
        self._count, self._row, self._need = self._count[order], self._row[order], self._need[order]
        self._extra_s = extra_s[order]

    def find(self, width: int) -> Segments:
        """The fastest pipeline found with `width` states a step; empty if none was."""
        size = len(self._gpus)
        states = [_State(0, np.ones(size, dtype=bool), self._links.max(axis=1, initial=0.0), 0.0, ())]
        best: _State | None = None
        while states:
            longer: dict[tuple[int, bytes, tuple[int, ...]], _State] = {}
            for state in states:
                if self._clock.over():
                    return best.segments if best is not None else ()
                for child in self._children(state):
                    if best is not None and child.lost_s >= best.lost_s:
                        continue
                    if child.done == self._instance.layers:
                        best = child
                        continue
                    key = (child.done, child.free.tobytes(), child.segments[-1][1])
                    if key not in longer or child.lost_s < longer[key].lost_s:
                        longer[key] = child
            # The known part of the next hop's loss counts too.
            ahead = {
                key: child_state.lost_s + float(self._costs.link_s(child_state.reach.max()))
                for key, child_state in longer.items()
            }
            states = [longer[key] for key in sorted(longer, key=ahead.__getitem__) if ahead[key] < np.inf]
            states = states[:width]
        return best.segments if best is not None else ()

    def _children(self, state: _State) -> list[_State]:
        left = self._instance.layers - state.done
        able = state.free & (state.reach > 0) if state.segments else state.free
        available = np.bincount(self._kinds[able], minlength=self._need.shape[1])
        fits = np.flatnonzero((self._count <= left) & (self._need <= available).all(axis=1))
        last = fits[self._count[fits] == left][:_LAST]
        children = []
        for index in dict.fromkeys([*last.tolist(), *fits[:_BRANCHES].tolist()]):
            multiset, count = self._table.multisets[self._row[index]], int(self._count[index])
            for chosen in self._sets(multiset, able, state.reach):
                children.append(self._child(state, chosen, count, float(self._extra_s[index])))
        return children

    def _sets(self, multiset: tuple[int, ...], able: np.ndarray, reach: np.ndarray) -> list[list[int]]:
        """Some sets of able GPUs of these kinds: each starts with one of the best reached GPUs, then takes equally
        reached ones near it in the order of the fleet."""
        first = np.flatnonzero(able & (self._kinds == multiset[0]))
        first = first[np.argsort(-reach[first], kind="stable")][:_SETS]
        sets = []
        for start in first.tolist():
            chosen = [start]
            for kind in dict.fromkeys(multiset):
                wanted = multiset.count(kind) - (kind == multiset[0])
                others = np.flatnonzero(able & (self._kinds == kind))
                others = others[others != start]
                near = np.lexsort((np.abs(others - start), -np.minimum(reach[others], reach[start])))
                chosen += others[near[:wanted]].tolist()
            sets.append(chosen)
        return sets

    def _child(self, state: _State, chosen: list[int], count: int, extra_s: float) -> _State:
        free = state.free.copy()
        free[chosen] = False
        lost_s = state.lost_s + extra_s
        if state.segments:
            lost_s += float(self._costs.link_s(state.reach[chosen].min())) - self._hop_s
        reach = np.where(free, self._links[chosen].min(axis=0), 0.0)
        gpus = tuple(sorted(self._gpus[chosen].tolist()))
        return _State(state.done + count, free, reach, lost_s, (*state.segments, (count, gpus)))

    def _lost_s(self, seconds: np.ndarray) -> np.ndarray:
        """The excess of each segment over its price."""
        fleet = np.bincount(self._kinds, minlength=self._need.shape[1])
        program = RowProgram()
        program.add_columns([-float(self._instance.layers), *fleet.tolist()], [INF] * (len(fleet) + 1))
        unit_s = float(seconds.min(initial=np.inf))
        for count, need, segment_s in zip(self._count, self._need, seconds, strict=True):
            kinds = np.flatnonzero(need)
            program.add_row(
                -INF, float(segment_s / unit_s), [0, *(kinds + 1).tolist()], [count, *(-need[kinds]).tolist()]
            )
        if not len(seconds):
            return seconds
        solution = program.solve(self._clock.left_s(), integer=False)
        if solution.status != "optimal":
            return seconds
        prices = solution.values * unit_s
        lost: np.ndarray = seconds - prices[0] * self._count + self._need @ prices[1:]
        return lost
