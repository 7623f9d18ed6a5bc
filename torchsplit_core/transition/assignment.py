"""Which GPU of the plan becomes which GPU of the host: the assignment that leaves the most as it is.

The value of an assignment is the sum of its pairs' values, each compared lexicographically: fewest instances of others
evicted, most tenants untouched, most instances kept, fewest GPUs touched. With weights larger than any sum of what
comes after, it is a linear assignment problem for each type, which SciPy solves exactly in whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from torchsplit_core.hardware import gpu_type
from torchsplit_core.hardware.host_state.validity import has_mig
from torchsplit_core.transition.pairing import GpuPairing, Slices, pair_gpus, slices_of
from torchsplit_core.values import WHOLE_GPU, HostState, PlannedGpu, PlanOutcome, StateGpu

MOST_ALTERNATIVES = 200
"""Assignments of equal value that are compared by what they lose."""


@dataclass(frozen=True, slots=True)
class Match:
    """A GPU of the host and the GPU of the plan that it becomes; `target` None: it ends empty."""

    host: StateGpu
    target: PlannedGpu | None
    pair: GpuPairing | None

    @property
    def is_touched(self) -> bool:
        """Whether anything on the host changes, MIG mode included."""
        if self.target is None or self.pair is None:
            return any(item.foreign is None for item in self.host.instances)
        return not (
            self.pair.kept_instances
            == len(self.target.slices)
            == sum(i.foreign is None for i in self.host.instances)
            and self.pair.evicted == 0
            and self.pair.untouched
            == sum(len(item.tenants) for item in self.target.slices)
            == sum(len(item.planned_tenants) for item in self.host.instances if item.foreign is None)
        )


@dataclass(frozen=True, slots=True)
class FleetAssignment:
    """A match for every GPU of the host, in its order. Counts are sums over them."""

    matches: tuple[Match, ...]

    @property
    def value(self) -> tuple[int, int, int, int]:
        """(−evicted, untouched, kept, −touched): the larger the better."""
        pairs = [match.pair for match in self.matches if match.pair is not None]
        return (
            -sum(pair.evicted for pair in pairs),
            sum(pair.untouched for pair in pairs),
            sum(pair.kept_instances for pair in pairs),
            -sum(match.is_touched for match in self.matches),
        )


def best_assignments(
    plan: PlanOutcome, state: HostState, *, evict: bool, touched: bool = True
) -> Iterator[FleetAssignment]:
    """The best assignment, then others of the same value, at most MOST_ALTERNATIVES; none where there is none.

    `touched` False: whatever the number of touched GPUs.
    """
    problems = [
        _TypeProblem(
            [gpu for gpu in plan.gpus if gpu.type == kind and gpu.slices],
            [gpu for gpu in state.gpus if gpu.type == kind],
            evict,
            touched,
        )
        for kind in dict.fromkeys([*(gpu.type for gpu in plan.gpus), *(gpu.type for gpu in state.gpus)])
    ]
    best = [problem.best() for problem in problems]
    if any(columns is None for columns in best):
        return
    chosen: list[Sequence[int | None]] = [columns for columns in best if columns is not None]
    yield _joined(problems, chosen, state)
    count = 1
    # One type at a time leaves its best: alternatives of two types at once are combinations of what is tried here.
    for index, problem in enumerate(problems):
        for columns in problem.others(chosen[index], MOST_ALTERNATIVES - count):
            yield _joined(problems, [*chosen[:index], columns, *chosen[index + 1 :]], state)
            count += 1


def unplaceable(plan: PlanOutcome, state: HostState, *, evict: bool) -> tuple[str, ...]:
    """Why there is no assignment, in sentences: a type with fewer GPUs than the plan has, or with instances of others
    in the way."""
    reasons = []
    for kind in dict.fromkeys(gpu.type for gpu in plan.gpus if gpu.slices):
        targets = [gpu for gpu in plan.gpus if gpu.type == kind and gpu.slices]
        hosts = [gpu for gpu in state.gpus if gpu.type == kind]
        if len(targets) > len(hosts):
            reasons.append(
                f"the plan has slices on {len(targets)} {kind}, and the state has {len(hosts)} of them"
            )
        elif _TypeProblem(targets, hosts, evict, True).best() is None:
            blocked = [
                f"{item.foreign} on {gpu.id} ({item.profile or 'whole GPU'} at {item.start})"
                for gpu in hosts
                for item in gpu.instances
                if item.foreign
            ]
            reasons.append(f"the plan needs places on {kind} that others hold: {'; '.join(blocked)}")
    return tuple(reasons)


class _TypeProblem:
    """The assignment of one type: rows are its GPUs of the host, columns those of the plan."""

    def __init__(
        self, targets: Sequence[PlannedGpu], hosts: Sequence[StateGpu], evict: bool, touched: bool
    ) -> None:
        self.targets, self.hosts = targets, hosts
        sides = [(target, slices_of(target.slices)) for target in targets]
        self.matches = [
            [_match(host, present, target, planned, evict) for target, planned in sides]
            for host in hosts
            for present in [slices_of(host.instances)]
        ]
        self.unused = [Match(host, None, None) for host in hosts]
        tenants = sum(len(item.tenants) for gpu in targets for item in gpu.slices)
        slices = sum(len(gpu.slices) for gpu in targets)
        # The last digit prefers GPUs of the same id, which costs nothing and surprises nobody.
        size = len(hosts) + 1
        bases = (tenants + 1, slices + 1, size, size)
        weights = [1]
        for base in reversed(bases):
            weights.append(weights[-1] * base)
        self.weights = weights[::-1]
        if not touched:
            self.weights[3] = 0
        self.limit = self.weights[0] * size * 8

    def _gain(self, row: int, column: int) -> float:
        match, unused = self.matches[row][column], self.unused[row]
        if match is None or match.pair is None or match.target is None:
            return -float(self.limit)
        pair = match.pair
        saved = unused.is_touched - match.is_touched
        parts = (-pair.evicted, pair.untouched, pair.kept_instances, saved, match.target.id == match.host.id)
        return float(sum(weight * part for weight, part in zip(self.weights, parts, strict=True)))

    def _matrix(self) -> NDArray[np.float64]:
        shape = (len(self.hosts), len(self.targets))
        return np.array(
            [[self._gain(row, column) for column in range(shape[1])] for row in range(shape[0])],
            dtype=np.float64,
        ).reshape(shape)

    def best(self) -> list[int | None] | None:
        """The column of each row of the best assignment; None where there is none."""
        if len(self.targets) > len(self.hosts):
            return None
        matrix = self._matrix()
        rows, columns = linear_sum_assignment(matrix, maximize=True)
        if any(self.matches[row][column] is None for row, column in zip(rows, columns, strict=True)):
            return None
        chosen: list[int | None] = [None] * len(self.hosts)
        for row, column in zip(rows, columns, strict=True):
            chosen[row] = int(column)
        return chosen

    def others(self, best: Sequence[int | None], limit: int) -> Iterator[list[int | None]]:
        """Assignments of the same value that differ from the best in two rows, at most `limit`."""
        matrix = self._matrix() - np.array(
            [[self.weights[4] * (t.id == h.id) for t in self.targets] for h in self.hosts], dtype=np.float64
        ).reshape(len(self.hosts), len(self.targets))

        def gain(row: int, column: int | None) -> float:
            return 0.0 if column is None else float(matrix[row, column])

        for first in range(len(best)):
            for second in range(first + 1, len(best)):
                one_column, other = best[first], best[second]
                if one_column == other or limit <= 0:
                    continue
                now = gain(first, one_column) + gain(second, other)
                if gain(first, other) + gain(second, one_column) == now:
                    swapped = list(best)
                    swapped[first], swapped[second] = other, one_column
                    limit -= 1
                    yield swapped


def _match(host: StateGpu, present: Slices, target: PlannedGpu, planned: Slices, evict: bool) -> Match | None:
    pair = pair_gpus(target.type, planned, present, evict=evict)
    if pair is None or (_needs_mode(host, target) and _holds_mode(host, evict)):
        return None
    return Match(host, target, pair)


def _needs_mode(host: StateGpu, target: PlannedGpu) -> bool:
    """Whether MIG mode is to be switched."""
    if not has_mig(gpu_type(host.type)):
        return False
    is_whole = target.slices[0].profile == WHOLE_GPU
    return is_mig_on(host) is is_whole


def _holds_mode(host: StateGpu, evict: bool) -> bool:
    return not evict and any(item.foreign for item in host.instances)


def is_mig_on(host: StateGpu) -> bool | None:
    """Whether MIG mode is on: as the state says, or as its instances show; None where neither tells."""
    if host.mig_enabled is None and host.instances:
        return host.instances[0].profile != WHOLE_GPU
    return host.mig_enabled


def _joined(
    problems: Sequence[_TypeProblem], chosen: Sequence[Sequence[int | None]], state: HostState
) -> FleetAssignment:
    by_id: dict[str, Match] = {}
    for problem, columns in zip(problems, chosen, strict=True):
        for row, column in enumerate(columns):
            match = problem.unused[row] if column is None else problem.matches[row][column]
            assert match is not None
            by_id[match.host.id] = match
    return FleetAssignment(tuple(by_id[gpu.id] for gpu in state.gpus))
