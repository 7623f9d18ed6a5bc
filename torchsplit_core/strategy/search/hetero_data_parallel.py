"""Fleets of several kinds of nodes: every kind trains copies of the model in its own way on its part of the batch.

The model that is solved: a set of entries takes part, each with all its devices and any choice of its own space for
its part of the batch; a step takes the longest of theirs and then the exchange of gradients between entries, of
which nothing is hidden. `docs/guides/training.md` has it in formulas, with the bounds by which parts are ruled out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from torchsplit_core.strategy.cost_model.constants import constants
from torchsplit_core.strategy.search.batch_split import best_split
from torchsplit_core.strategy.search.homogeneous import HomogeneousSearch, RefusedChoices
from torchsplit_core.strategy.search.machines import Machine
from torchsplit_core.strategy.search.space import SearchSpace
from torchsplit_core.values.training import ParallelConfig, StepEstimate, Transformer

GRID = 16
"""Parts of the batch that are tried first, for a good step to rule others out by."""
INFINITE = float("inf")


class NodeGroup:
    """One kind of nodes: its fastest choice for every part of the batch, each searched once."""

    def __init__(self, machine: Machine, space: SearchSpace) -> None:
        self.machine = machine
        self.search = HomogeneousSearch(machine, space)
        self.least = self.search.least_per_sequence(machine.devices)
        self.steps_by_part: dict[int, tuple[ParallelConfig, StepEstimate] | None] = {}
        self.refused: dict[str, RefusedChoices] = {}
        self.considered = self.estimated = 0

    def best(self, sequences: int) -> tuple[ParallelConfig, StepEstimate] | None:
        """The fastest choice for that part; None where nothing divides and fits."""
        if sequences not in self.steps_by_part:
            result = self.search.with_batch(sequences).best(self.machine.devices, 1)
            self.considered += result.considered
            self.estimated += result.estimated
            for reason, refusal in result.refused.items():
                known = self.refused.setdefault(reason, RefusedChoices())
                known.add(refusal.count, refusal.closest, refusal.missing_bytes)
            self.steps_by_part[sequences] = result.best[0] if result.best else None
        return self.steps_by_part[sequences]

    def known_seconds(self) -> dict[int, float]:
        """Seconds of the parts that were searched and fit."""
        return {part: step[1].seconds for part, step in self.steps_by_part.items() if step}

    def seconds(self, sequences: int) -> float:
        """Of its own step on that part; infinite where nothing fits."""
        step = self.best(sequences)
        return step[1].seconds if step else INFINITE


@dataclass(frozen=True, slots=True)
class BatchSplit:
    """Entries that take part, their parts of the batch, their exchange, and the step."""

    entries: tuple[NodeGroup, ...]
    parts: tuple[int, ...]
    exchange_s: float
    seconds: float


@dataclass(slots=True)
class SplitSearchResult:
    """The best sets of entries, fastest first; `bound_s`: no step of the model is shorter.

    `proven`: neither the best of them nor the step that is known otherwise can be beaten by another of them.
    """

    best: list[BatchSplit] = field(default_factory=list)
    bound_s: float = INFINITE
    proven: bool = True


def cross_group_sync_s(entries: Sequence[NodeGroup], model: Transformer, groups: int | None = None) -> float:
    """Gradients of the whole model (4 bytes a weight) summed over the entries: a ring through each one's nodes.

    `groups`: of which all entries of one together hold the model. A stage has but its own layers to send, so that
    the ring through the slowest of all nodes is more than it takes.
    """
    count = groups or len(entries)
    if count < 2:
        return 0.0
    c = constants()
    slowest = min(
        entry.machine.devices
        / entry.machine.cluster.gpus_per_node
        * entry.machine.cluster.between_bytes_per_s
        for entry in entries
    )
    passed = 2.0 * 4.0 * model.parameters * (count - 1) / count
    return passed / (slowest * c.between_share) + c.hop_s * count


class HeteroDataParallelSearch:
    """The search over sets of entries and parts of the batch."""

    def __init__(
        self,
        entries: tuple[NodeGroup, ...],
        model: Transformer,
        batch: int,
        deadline: float,
        known_s: float = INFINITE,
    ) -> None:
        """`known_s`: seconds of a step that was found otherwise: only what is better is proven then."""
        self.entries, self.model, self.batch, self.deadline = entries, model, batch, deadline
        self.known_s = known_s

    def run(self, top_k: int) -> SplitSearchResult:
        """Sets by their bounds, until a bound passes the k-th best."""
        feasible = tuple(entry for entry in self.entries if entry.least < INFINITE)
        sets = [chosen for count in range(1, len(feasible) + 1) for chosen in combinations(feasible, count)]
        result = SplitSearchResult()
        for bound, chosen in sorted(
            ((self.bound(subset), subset) for subset in sets), key=lambda subset: subset[0]
        ):
            kth = result.best[top_k - 1].seconds if len(result.best) >= top_k else INFINITE
            if bound > kth or (result.best and bound > self.known_s):
                break
            if time.monotonic() > self.deadline and (result.best or self.known_s < INFINITE):
                result.bound_s = min(result.bound_s, bound)
                break
            split, proven = self.solve(chosen)
            if not proven:
                result.bound_s = min(result.bound_s, bound)
            if split is not None:
                result.best = sorted([*result.best, split], key=lambda solved_split: solved_split.seconds)[
                    :top_k
                ]
        result.proven = result.bound_s >= min(
            self.known_s, result.best[0].seconds if result.best else INFINITE
        )
        if result.best:
            result.bound_s = min(result.bound_s, result.best[0].seconds)
        return result

    def bound(self, chosen: tuple[NodeGroup, ...]) -> float:
        """Seconds below which no step of these entries comes: at their best rates, evenly busy."""
        return self.batch / sum(1.0 / entry.least for entry in chosen) + cross_group_sync_s(
            chosen, self.model
        )

    def solve(self, chosen: tuple[NodeGroup, ...]) -> tuple[BatchSplit | None, bool]:
        """The best parts for these entries, and whether that is proven."""
        exchange = cross_group_sync_s(chosen, self.model)
        if len(chosen) == 1:
            seconds = chosen[0].seconds(self.batch)
            made = BatchSplit(chosen, (self.batch,), 0.0, seconds)
            return (made if seconds < INFINITE else None), True
        best = self._first(chosen)
        longest = min(best[0] if best else INFINITE, self.known_s - exchange)
        windows = self._windows(chosen, longest)
        proven = self._fill(chosen, windows)
        best = self._best_known(chosen)
        if best is None:
            return None, proven
        return BatchSplit(chosen, best[1], exchange, best[0] + exchange), proven

    def _best_known(self, chosen: tuple[NodeGroup, ...]) -> tuple[float, tuple[int, ...]] | None:
        """The best of all parts that were searched so far."""
        return best_split([entry.known_seconds() for entry in chosen], self.batch)

    def _first(self, chosen: tuple[NodeGroup, ...]) -> tuple[float, tuple[int, ...]] | None:
        """A good answer to rule parts out by: a coarse grid of parts, then ever finer steps around the best."""
        step = max(1, self.batch // GRID)
        most = self.batch - len(chosen) + 1
        for many in range(1, GRID + 1):
            for part in (many * step, self.batch - many * step):
                self._try(chosen, [part] * len(chosen), most)
        best = self._best_known(chosen)
        while best and step > 1:
            step //= 2
            for shift in (-step, step):
                self._try(chosen, [part + shift for part in best[1]], most)
            best = self._best_known(chosen)
        return best

    def _try(self, chosen: tuple[NodeGroup, ...], parts: list[int], most: int) -> None:
        """Search these parts; with a step known otherwise only while there is time."""
        late = self.known_s < INFINITE and time.monotonic() > self.deadline
        for entry, part in zip(chosen, parts, strict=True):
            if 1 <= part <= most and not late:
                entry.best(part)

    def _windows(self, chosen: tuple[NodeGroup, ...], longest: float) -> list[range]:
        """Parts that may be in a better answer: none whose bound passes the longest time known."""
        most = self.batch - len(chosen) + 1
        highs = [
            most if longest == INFINITE else min(most, int(max(0.0, longest) / entry.least))
            for entry in chosen
        ]
        whole = sum(highs)
        return [range(max(1, self.batch - (whole - high)), high + 1) for high in highs]

    def _fill(self, chosen: tuple[NodeGroup, ...], windows: list[range]) -> bool:
        """Search every part of the windows, in time: False where it ran out."""
        for entry, window in zip(chosen, windows, strict=True):
            for part in window:
                if part not in entry.steps_by_part and time.monotonic() > self.deadline:
                    return False
                entry.best(part)
        return True
