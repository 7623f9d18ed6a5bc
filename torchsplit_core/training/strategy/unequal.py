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

from torchsplit_core.training.step.constants import constants
from torchsplit_core.training.strategy.machines import Machine
from torchsplit_core.training.strategy.search import EqualSearch, Refused
from torchsplit_core.training.strategy.shares import best_shares
from torchsplit_core.training.strategy.space import Space
from torchsplit_core.values.training import Choices, StepEstimate, Transformer

GRID = 16
"""Parts of the batch that are tried first, for a good step to rule others out by."""
INFINITE = float("inf")


class Entry:
    """One kind of nodes: its fastest choice for every part of the batch, each searched once."""

    def __init__(self, machine: Machine, space: Space) -> None:
        self.machine = machine
        self.search = EqualSearch(machine, space)
        self.least = self.search.least_per_sequence(machine.devices)
        self.found: dict[int, tuple[Choices, StepEstimate] | None] = {}
        self.refused: dict[str, Refused] = {}
        self.considered = self.reckoned = 0

    def best(self, sequences: int) -> tuple[Choices, StepEstimate] | None:
        """The fastest choice for that part; None where nothing divides and fits."""
        if sequences not in self.found:
            found = self.search.with_batch(sequences).best(self.machine.devices, 1)
            self.considered += found.considered
            self.reckoned += found.reckoned
            for reason, one in found.refused.items():
                known = self.refused.setdefault(reason, Refused())
                known.add(one.count, one.nearest, one.missing_bytes)
            self.found[sequences] = found.best[0] if found.best else None
        return self.found[sequences]

    def known(self) -> dict[int, float]:
        """Seconds of the parts that were searched and fit."""
        return {part: found[1].seconds for part, found in self.found.items() if found}

    def seconds(self, sequences: int) -> float:
        """Of its own step on that part; infinite where nothing fits."""
        found = self.best(sequences)
        return found[1].seconds if found else INFINITE


@dataclass(frozen=True, slots=True)
class Mixed:
    """Entries that take part, their parts of the batch, their exchange, and the step."""

    entries: tuple[Entry, ...]
    parts: tuple[int, ...]
    exchange_s: float
    seconds: float


@dataclass(slots=True)
class MixedFound:
    """The best sets of entries, fastest first; `bound_s`: no step of the model is shorter.

    `proven`: neither the best of them nor the step that is known otherwise can be beaten by another of them.
    """

    best: list[Mixed] = field(default_factory=list)
    bound_s: float = INFINITE
    proven: bool = True


def exchange_s(entries: Sequence[Entry], model: Transformer, groups: int | None = None) -> float:
    """Gradients of the whole model (4 bytes a weight) summed over the entries: a ring through each one's nodes.

    `groups`: of which all entries of one together hold the model. A stage has but its own layers to send, so that
    the ring through the slowest of all nodes is more than it takes.
    """
    count = groups or len(entries)
    if count < 2:
        return 0.0
    c = constants()
    slowest = min(
        one.machine.devices / one.machine.cluster.gpus_per_node * one.machine.cluster.between_bytes_per_s
        for one in entries
    )
    passed = 2.0 * 4.0 * model.parameters * (count - 1) / count
    return passed / (slowest * c.between_share) + c.hop_s * count


class MixedSearch:
    """The search over sets of entries and parts of the batch."""

    def __init__(
        self,
        entries: tuple[Entry, ...],
        model: Transformer,
        batch: int,
        deadline: float,
        known_s: float = INFINITE,
    ) -> None:
        """`known_s`: seconds of a step that was found otherwise: only what is better is proven then."""
        self.entries, self.model, self.batch, self.deadline = entries, model, batch, deadline
        self.known_s = known_s

    def run(self, top_k: int) -> MixedFound:
        """Sets by their bounds, until a bound passes the k-th best."""
        able = tuple(entry for entry in self.entries if entry.least < INFINITE)
        sets = [chosen for count in range(1, len(able) + 1) for chosen in combinations(able, count)]
        found = MixedFound()
        for bound, chosen in sorted(((self.bound(one), one) for one in sets), key=lambda one: one[0]):
            kth = found.best[top_k - 1].seconds if len(found.best) >= top_k else INFINITE
            if bound > kth or (found.best and bound > self.known_s):
                break
            if time.monotonic() > self.deadline and (found.best or self.known_s < INFINITE):
                found.bound_s = min(found.bound_s, bound)
                break
            mixed, proven = self.solve(chosen)
            if not proven:
                found.bound_s = min(found.bound_s, bound)
            if mixed is not None:
                found.best = sorted([*found.best, mixed], key=lambda one: one.seconds)[:top_k]
        found.proven = found.bound_s >= min(self.known_s, found.best[0].seconds if found.best else INFINITE)
        if found.best:
            found.bound_s = min(found.bound_s, found.best[0].seconds)
        return found

    def bound(self, chosen: tuple[Entry, ...]) -> float:
        """Seconds below which no step of these entries comes: at their best rates, evenly busy."""
        return self.batch / sum(1.0 / one.least for one in chosen) + exchange_s(chosen, self.model)

    def solve(self, chosen: tuple[Entry, ...]) -> tuple[Mixed | None, bool]:
        """The best parts for these entries, and whether that is proven."""
        exchange = exchange_s(chosen, self.model)
        if len(chosen) == 1:
            seconds = chosen[0].seconds(self.batch)
            made = Mixed(chosen, (self.batch,), 0.0, seconds)
            return (made if seconds < INFINITE else None), True
        best = self._first(chosen)
        longest = min(best[0] if best else INFINITE, self.known_s - exchange)
        windows = self._windows(chosen, longest)
        proven = self._fill(chosen, windows)
        best = self._best_known(chosen)
        if best is None:
            return None, proven
        return Mixed(chosen, best[1], exchange, best[0] + exchange), proven

    def _best_known(self, chosen: tuple[Entry, ...]) -> tuple[float, tuple[int, ...]] | None:
        """The best of all parts that were searched so far."""
        return best_shares([one.known() for one in chosen], self.batch)

    def _first(self, chosen: tuple[Entry, ...]) -> tuple[float, tuple[int, ...]] | None:
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

    def _try(self, chosen: tuple[Entry, ...], parts: list[int], most: int) -> None:
        """Search these parts; with a step known otherwise only while there is time."""
        late = self.known_s < INFINITE and time.monotonic() > self.deadline
        for entry, part in zip(chosen, parts, strict=True):
            if 1 <= part <= most and not late:
                entry.best(part)

    def _windows(self, chosen: tuple[Entry, ...], longest: float) -> list[range]:
        """Parts that may be in a better answer: none whose bound passes the longest time known."""
        most = self.batch - len(chosen) + 1
        highs = [
            most if longest == INFINITE else min(most, int(max(0.0, longest) / one.least)) for one in chosen
        ]
        whole = sum(highs)
        return [range(max(1, self.batch - (whole - high)), high + 1) for high in highs]

    def _fill(self, chosen: tuple[Entry, ...], windows: list[range]) -> bool:
        """Search every part of the windows, in time: False where it ran out."""
        for entry, window in zip(chosen, windows, strict=True):
            for part in window:
                if part not in entry.found and time.monotonic() > self.deadline:
                    return False
                entry.best(part)
        return True
