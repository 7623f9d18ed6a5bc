"""The least latency of segments within one domain, with a lower bound of the hops by the network's levels.

n_a integer: segments of choice a in a domain of class S, y_a integer: their layers, z_a their seconds; u_S integer:
domains of class S with a segment inside. count_aκ: GPUs of kind κ in a, fleet_Sκ: in one domain.

| row | formula |
|---|---|
| seconds[a,i] | z_a ≥ α_i n_a + β_i y_a for each line i of choice a, if it has several |
| layers | Σ_a y_a = M |
| least[a] | y_a ≥ low_a n_a |
| most[a] | y_a ≤ high_a n_a |
| level[j] | Σ u_S over the classes of level j + Σ n_a of those that span domains of level j ≥ 1 |
| gpus[S] | Σ_{a within S} count_aκ n_a ≤ fleet_Sκ u_S for each kind κ |
| sets[S,k] | Σ_{a within S} ⌊count_aκ / k⌋ n_a ≤ ⌊fleet_Sκ / k⌋ u_S for each k that does not divide fleet_Sκ |
| inside[S] | u_S ≤ (how many S one T has) · u_T for each class T with parts of class S; one domain in all |
| segments | least ≤ Σ n_a ≤ most, if their number is limited |
| minimise | Σ_a z_a + hops |

Hops: a pipeline of k segments has k - 1, none faster than the fastest link. Cut it where a hop leaves every domain of
level j: a piece of several segments lies in one domain, and so does a piece of a single segment, unless that segment
spans several. So at least (domains of level j with a segment) + (segments that span several) - 1 hops are over links
slower than W_j. In a network of nested levels the minimum is attained; elsewhere it is a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.latency.choices import Choice
from torchsplit_core.placement.latency.seconds_program import NEARLY, SCALE, SecondsProgram
from torchsplit_core.placement.latency.topology import DomainClass
from torchsplit_core.solver.highs import INF


@dataclass(frozen=True)
class ChosenSegments:
    """Segments of one multiset (a row of the table) with so many layers each, within domains of one class."""

    domain_class: DomainClass
    multiset: int
    layers: tuple[int, ...]


@dataclass(frozen=True)
class ProgramSolution:
    """chosen: the best segments found, or empty. bound_s: a lower bound; infinite if provably nothing exists."""

    chosen: tuple[ChosenSegments, ...]
    bound_s: float


@dataclass(frozen=True)
class HopCosts:
    """Seconds of a hop over the fastest link, and the extra of each level that it leaves, from the finest."""

    fastest_s: float
    more_s: tuple[float, ...]


class LatencyProgram(SecondsProgram):
    """The program of one domain; `counts`: (multisets, kinds) of the table."""

    def __init__(
        self,
        root: DomainClass,
        choices: Sequence[Choice],
        counts: np.ndarray,
        layers: int,
        hops: HopCosts,
        scale_s: float,
        segments: tuple[int, int] | None = None,
    ) -> None:
        """segments: the least and the most of them; None: any number."""
        super().__init__()
        self._unit_s, self._hops = scale_s / SCALE, hops
        self._entries: list[tuple[DomainClass, Choice, int]] = []
        self._used: dict[int, int] = {}
        sizes = counts.sum(axis=1)
        class_counts = _count_classes(root)
        for domain_class in root.with_descendants:
            hop_s = hops.fastest_s + sum(hops.more_s[: domain_class.level])
            if domain_class is not root:
                more = hops.more_s[domain_class.level] / self._unit_s
                self._used[id(domain_class)] = self.add_columns(
                    [more], [float(class_counts[id(domain_class)])]
                )
            for choice in choices:
                gpus_needed = counts[choice.multiset]
                # A single GPU spans nothing and belongs to the finest level.
                if (gpus_needed > domain_class.fleet).any() or (
                    domain_class.level > 0 and sizes[choice.multiset] == 1
                ):
                    continue
                wanted = np.flatnonzero(gpus_needed)
                most = int(
                    (class_counts[id(domain_class)] * domain_class.fleet[wanted] // gpus_needed[wanted]).min()
                )
                most = min(most, layers // choice.low)
                if not most:
                    continue
                column = self.add_columns([hop_s / self._unit_s, 0.0], [float(most), float(layers)])
                self.add_cost(choice, column, column + 1, self._unit_s)
                self._entries.append((domain_class, choice, column))
        if self._entries:
            self._add_rows(root, counts, layers)
            if segments is not None:
                self.add_row(
                    *segments, [column for _, _, column in self._entries], np.ones(len(self._entries))
                )

    def _add_rows(self, root: DomainClass, counts: np.ndarray, layers: int) -> None:
        self.add_row(
            layers, layers, [column + 1 for _, _, column in self._entries], np.ones(len(self._entries))
        )
        for _, choice, column in self._entries:
            self.add_row(0, INF, [column + 1, column], [1, -choice.low])
            self.add_row(-INF, 0, [column + 1, column], [1, -choice.high])
        for level in range(root.level):
            inside = [
                self._used[id(domain_class)]
                for domain_class in root.with_descendants
                if domain_class.level == level
            ]
            across = [column for at, _, column in self._entries if at.level > level]
            self.add_row(1, INF, [*inside, *across], np.ones(len(inside) + len(across)))
        for domain_class in root.with_descendants:
            within = {id(inner) for inner in domain_class.with_descendants}
            inner_columns = [(choice, column) for at, choice, column in self._entries if id(at) in within]
            amounts = counts[[choice.multiset for choice, _ in inner_columns]]
            columns = [column for _, column in inner_columns]
            for kind in np.flatnonzero(amounts.any(axis=0)).tolist():
                self._add_capacity_rows(
                    root, domain_class, columns, amounts[:, kind], int(domain_class.fleet[kind])
                )
            for part in domain_class.parts if domain_class is not root else ():
                self.add_row(-INF, 0, [self._used[id(part)], self._used[id(domain_class)]], [1, -part.count])

    def _add_capacity_rows(
        self,
        root: DomainClass,
        domain_class: DomainClass,
        columns: list[int],
        amounts: np.ndarray,
        fleet: int,
    ) -> None:
        """Rows for the GPUs of one kind, and for sets of k GPUs if k does not divide their number."""
        for size in range(1, int(amounts.max()) + 1):
            if size > 1 and fleet % size == 0:
                continue
            using = np.flatnonzero(amounts >= size).tolist()
            taken, sets_used = [columns[index] for index in using], (amounts[using] // size).tolist()
            if domain_class is root:
                self.add_row(-INF, fleet // size, taken, sets_used)
            else:
                self.add_row(-INF, 0, [*taken, self._used[id(domain_class)]], [*sets_used, -(fleet // size)])

    def minimize(self, seconds: float, beaten_s: float) -> ProgramSolution:
        """Solve within `seconds` for less than `beaten_s`; the bound is at most that."""
        if not self._entries:
            return ProgramSolution((), float("inf"))
        # k segments have k - 1 hops, and the first domain of each level is free.
        constant = self._hops.fastest_s + sum(self._hops.more_s)
        beaten_s *= 1 - NEARLY
        result = self.solve_to_gap(seconds, (beaten_s + constant) / self._unit_s)
        bound_s = min(max(result.bound * self._unit_s - constant, 0.0), beaten_s)
        return ProgramSolution(self._read(result.values) if len(result.values) else (), bound_s)

    def _read(self, values: np.ndarray) -> tuple[ChosenSegments, ...]:
        segments = []
        for domain_class, choice, column in self._entries:
            times, layers = int(values[column]), int(values[column + 1])
            if times:
                each, rest = divmod(layers, times)
                counts = [each + 1] * rest + [each] * (times - rest)
                segments.append(ChosenSegments(domain_class, choice.multiset, tuple(counts)))
        return tuple(segments)


def _count_classes(root: DomainClass) -> dict[int, int]:
    """How many domains of each class the root has in all."""
    counts = {id(root): 1}
    for domain_class in root.with_descendants:
        for part in domain_class.parts:
            counts[id(part)] = part.count * counts[id(domain_class)]
    return counts
