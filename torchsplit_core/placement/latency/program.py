"""The least latency of segments drawn from one component, with the least that the network's tiers make of their hops.

n_a whole: segments of choice a in a component of sort S, y_a whole: their layers, z_a their seconds; u_S whole:
components of sort S with a segment inside. count_aκ: GPUs of kind κ in a, fleet_Sκ: in one component.

| row | formula |
|---|---|
| seconds[a,i] | z_a ≥ α_i n_a + β_i y_a for each line i of choice a, where it has several |
| layers | Σ_a y_a = M |
| least[a] | y_a ≥ low_a n_a |
| most[a] | y_a ≤ high_a n_a |
| level[j] | Σ u_S over the sorts of level j + Σ n_a of those that span components of level j ≥ 1 |
| gpus[S] | Σ_{a within S} count_aκ n_a ≤ fleet_Sκ u_S for each kind κ |
| sets[S,k] | Σ_{a within S} ⌊count_aκ / k⌋ n_a ≤ ⌊fleet_Sκ / k⌋ u_S for each k that does not divide fleet_Sκ |
| inside[S] | u_S ≤ (how many S one T has) · u_T for each sort T that has parts of sort S; one component in all |
| segments | least ≤ Σ n_a ≤ most, where their number is limited |
| minimise | Σ_a z_a + hops |

Hops: a pipeline of k segments has k - 1, none over a faster link than the fastest. Cut it where a hop leaves every
component of level j: each piece of several segments lies in one of them, and so does a piece of a single segment, or
that segment spans several. So at least (components of level j with a segment) + (segments that span several) - 1 hops
are over links slower than W_j. In a network of nested tiers the least can be reached; elsewhere it is a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.latency.choices import Choice
from torchsplit_core.placement.latency.solver import NEARLY, SCALE, SecondsProgram
from torchsplit_core.placement.latency.tiers import Sort
from torchsplit_core.solver.highs import INF


@dataclass(frozen=True)
class Chosen:
    """Segments of one multiset (a row of the table) with so many layers each, within components of one sort."""

    sort: Sort
    multiset: int
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Solved:
    """chosen: the best segments found, empty where there are none. bound_s: nothing takes less; infinite: proven that
    there is nothing at all."""

    chosen: tuple[Chosen, ...]
    bound_s: float


@dataclass(frozen=True)
class Hops:
    """Seconds of a hop over the fastest link, and how much more each level adds that it leaves, from the finest."""

    fastest_s: float
    more_s: tuple[float, ...]


class LatencyProgram(SecondsProgram):
    """The program of one component; `counts`: (multisets, kinds) of the table."""

    def __init__(
        self,
        root: Sort,
        choices: Sequence[Choice],
        counts: np.ndarray,
        layers: int,
        hops: Hops,
        scale_s: float,
        segments: tuple[int, int] | None = None,
    ) -> None:
        """segments: the least and the most of them; None: any number."""
        super().__init__()
        self._unit_s, self._hops = scale_s / SCALE, hops
        self._entries: list[tuple[Sort, Choice, int]] = []
        self._used: dict[int, int] = {}
        sizes = counts.sum(axis=1)
        many = _many(root)
        for sort in root.everything:
            hop_s = hops.fastest_s + sum(hops.more_s[: sort.level])
            if sort is not root:
                more = hops.more_s[sort.level] / self._unit_s
                self._used[id(sort)] = self.add_columns([more], [float(many[id(sort)])])
            for choice in choices:
                own = counts[choice.multiset]
                # A single GPU spans nothing: it has its place in the finest level.
                if (own > sort.fleet).any() or (sort.level > 0 and sizes[choice.multiset] == 1):
                    continue
                wanted = np.flatnonzero(own)
                most = int((many[id(sort)] * sort.fleet[wanted] // own[wanted]).min())
                most = min(most, layers // choice.low)
                if not most:
                    continue
                column = self.add_columns([hop_s / self._unit_s, 0.0], [float(most), float(layers)])
                self.price(choice, column, column + 1, self._unit_s)
                self._entries.append((sort, choice, column))
        if self._entries:
            self._rows_of(root, counts, layers)
            if segments is not None:
                self.add_row(*segments, [column for _, _, column in self._entries], np.ones(len(self._entries)))

    def _rows_of(self, root: Sort, counts: np.ndarray, layers: int) -> None:
        self.add_row(layers, layers, [column + 1 for _, _, column in self._entries], np.ones(len(self._entries)))
        for _, choice, column in self._entries:
            self.add_row(0, INF, [column + 1, column], [1, -choice.low])
            self.add_row(-INF, 0, [column + 1, column], [1, -choice.high])
        for level in range(root.level):
            inside = [self._used[id(sort)] for sort in root.everything if sort.level == level]
            across = [column for at, _, column in self._entries if at.level > level]
            self.add_row(1, INF, [*inside, *across], np.ones(len(inside) + len(across)))
        for sort in root.everything:
            within = {id(inner) for inner in sort.everything}
            own = [(choice, column) for at, choice, column in self._entries if id(at) in within]
            amounts = counts[[choice.multiset for choice, _ in own]]
            columns = [column for _, column in own]
            for kind in np.flatnonzero(amounts.any(axis=0)).tolist():
                self._room(root, sort, columns, amounts[:, kind], int(sort.fleet[kind]))
            for part in sort.parts if sort is not root else ():
                self.add_row(-INF, 0, [self._used[id(part)], self._used[id(sort)]], [1, -part.count])

    def _room(self, root: Sort, sort: Sort, columns: list[int], amounts: np.ndarray, fleet: int) -> None:
        """The GPUs of one kind; and of those in sets of k, where k does not divide their number."""
        for size in range(1, int(amounts.max()) + 1):
            if size > 1 and fleet % size == 0:
                continue
            using = np.flatnonzero(amounts >= size).tolist()
            taken, own = [columns[index] for index in using], (amounts[using] // size).tolist()
            if sort is root:
                self.add_row(-INF, fleet // size, taken, own)
            else:
                self.add_row(-INF, 0, [*taken, self._used[id(sort)]], [*own, -(fleet // size)])

    def least(self, seconds: float, beaten_s: float) -> Solved:
        """Solve within `seconds`, for less than `beaten_s`: the bound is no higher than that."""
        if not self._entries:
            return Solved((), float("inf"))
        # One segment fewer than counted has a hop behind it, and one component of each level is for nothing.
        constant = self._hops.fastest_s + sum(self._hops.more_s)
        beaten_s *= 1 - NEARLY
        reply = self.closely(seconds, (beaten_s + constant) / self._unit_s)
        bound_s = min(max(reply.bound * self._unit_s - constant, 0.0), beaten_s)
        return Solved(self._read(reply.values) if len(reply.values) else (), bound_s)

    def _read(self, values: np.ndarray) -> tuple[Chosen, ...]:
        found = []
        for sort, choice, column in self._entries:
            times, layers = int(values[column]), int(values[column + 1])
            if times:
                each, rest = divmod(layers, times)
                counts = [each + 1] * rest + [each] * (times - rest)
                found.append(Chosen(sort, choice.multiset, tuple(counts)))
        return tuple(found)


def _many(root: Sort) -> dict[int, int]:
    """How many components of each sort the root has in all."""
    found = {id(root): 1}
    for sort in root.everything:
        for part in sort.parts:
            found[id(part)] = part.count * found[id(sort)]
    return found
