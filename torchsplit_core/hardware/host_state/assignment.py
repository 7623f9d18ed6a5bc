"""Which GPU of the plan becomes which GPU of the host: the assignment that leaves the most as it is.

The value of an assignment is the sum of its pairs' values, each compared lexicographically: fewest instances of others
evicted, most tenants untouched, most instances kept, fewest GPUs touched. With weights larger than any sum of what
comes after, it is a linear assignment problem for each type, which SciPy solves exactly in whole numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from torchsplit_core.hardware.catalogue import gpu_type
from torchsplit_core.hardware.host_state.pairing import GpuPairing, Slices, pair_gpus, slices_of
from torchsplit_core.hardware.host_state.validity import has_mig, member_key
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


class FleetMatching:
    """Assignments of a plan's GPUs to a state's; every pair is looked at once."""

    def __init__(self, plan: PlanOutcome, state: HostState, *, evict: bool) -> None:
        self.state = state
        kinds = dict.fromkeys([*(gpu.type for gpu in plan.gpus), *(gpu.type for gpu in state.gpus)])
        self.problems = [
            _TypeProblem(
                [gpu for gpu in plan.gpus if gpu.type == kind and gpu.slices],
                [gpu for gpu in state.gpus if gpu.type == kind],
                evict,
            )
            for kind in kinds
        ]

    def assignments(self, *, touched: bool = True) -> Iterator[FleetAssignment]:
        """The best assignment, then others of the same value, at most MOST_ALTERNATIVES; none where there is none.

        `touched` False: whatever the number of touched GPUs.
        """
        best = [problem.best(touched) for problem in self.problems]
        chosen: list[Sequence[int | None]] = [columns for columns in best if columns is not None]
        if len(chosen) < len(best):
            return
        yield self._joined(chosen)
        count = 1
        # One type at a time leaves its best: alternatives of two types at once are combinations of what is tried here.
        for index, problem in enumerate(self.problems):
            for columns in problem.others(chosen[index], touched, MOST_ALTERNATIVES - count):
                yield self._joined([*chosen[:index], columns, *chosen[index + 1 :]])
                count += 1

    def obstacles(self) -> tuple[str, ...]:
        """Why there is no assignment, in sentences: a type with fewer GPUs than the plan has, or with instances of
        others in the way."""
        return tuple(filter(None, (problem.obstacle() for problem in self.problems)))

    def _joined(self, chosen: Sequence[Sequence[int | None]]) -> FleetAssignment:
        by_id = {
            match.host.id: match
            for problem, columns in zip(self.problems, chosen, strict=True)
            for match in problem.chosen(columns)
        }
        return FleetAssignment(tuple(by_id[gpu.id] for gpu in self.state.gpus))


def match_gpus(targets: Sequence[PlannedGpu], hosts: Sequence[StateGpu]) -> tuple[Match, ...]:
    """The best assignment of targets with slices to at least as many GPUs of their type, any to any: a match for every
    host, in their order. Instances of others give way where they have to."""
    problem = _TypeProblem(targets, hosts, evict=True)
    columns = problem.best(touched=True)
    assert columns is not None, "instances of others give way"
    return tuple(problem.chosen(columns))


class _TypeProblem:
    """The assignment of one type: rows are its GPUs of the host, columns those of the plan."""

    def __init__(self, targets: Sequence[PlannedGpu], hosts: Sequence[StateGpu], evict: bool) -> None:
        self.targets, self.hosts = targets, hosts
        # Large fleets repeat a few GPUs: what a pair keeps is found once for each two contents.
        host_kinds, self.host_numbers = _numbered([_content(host) for host in hosts])
        target_kinds, self.target_numbers = _numbered([target.slices for target in targets])
        present = [slices_of(hosts[first].instances) for first in host_kinds]
        planned = [slices_of(targets[first].slices) for first in target_kinds]
        self.kinds = [
            [
                _match(hosts[row], present[number], targets[column], planned[other], evict)
                for other, column in enumerate(target_kinds)
            ]
            for number, row in enumerate(host_kinds)
        ]
        self.unused = [Match(host, None, None) for host in hosts]
        tenants = sum(len(item.tenants) for gpu in targets for item in gpu.slices)
        slices = sum(len(gpu.slices) for gpu in targets)
        size = len(hosts) + 1
        weights = [1.0]
        for base in (size, size, slices + 1, tenants + 1):
            weights.insert(0, weights[0] * base)
        # The last digit prefers GPUs of the same id, which costs nothing and surprises nobody.
        self.weights = np.array(weights)
        # By row, column and criterion: what the pair brings beyond leaving the host's GPU unused.
        by_kind = np.array(
            [[self._criteria(match, self.unused[row]) for match in self.kinds[number]]
             for number, row in enumerate(host_kinds)],
            dtype=np.float64,
        ).reshape(len(host_kinds), len(target_kinds), len(weights))  # fmt: skip
        self.gains = by_kind[np.ix_(self.host_numbers, self.target_numbers)]
        columns = {target.id: column for column, target in enumerate(targets)}
        for row, host in enumerate(hosts):
            if host.id in columns:
                self.gains[row, columns[host.id], -1] = 1.0

    def match(self, row: int, column: int) -> Match | None:
        """What a pair leaves; None where it cannot be."""
        like = self.kinds[self.host_numbers[row]][self.target_numbers[column]]
        return None if like is None else replace(like, host=self.hosts[row], target=self.targets[column])

    def _criteria(self, match: Match | None, unused: Match) -> tuple[int, ...]:
        if match is None or match.pair is None:
            return (-8 * (len(self.hosts) + 1), 0, 0, 0, 0)
        pair, saved = match.pair, unused.is_touched - match.is_touched
        return (-pair.evicted, pair.untouched, pair.kept_instances, saved, 0)

    def best(self, touched: bool) -> list[int | None] | None:
        """The column of each row of the best assignment; None where there is none."""
        if len(self.targets) > len(self.hosts):
            return None
        rows, columns = linear_sum_assignment(self.gains @ self._weights(touched), maximize=True)
        if any(self.match(int(row), int(column)) is None for row, column in zip(rows, columns, strict=True)):
            return None
        chosen: list[int | None] = [None] * len(self.hosts)
        for row, column in zip(rows, columns, strict=True):
            chosen[row] = int(column)
        return chosen

    def others(self, best: Sequence[int | None], touched: bool, limit: int) -> Iterator[list[int | None]]:
        """Assignments of the same value, ids apart, that differ from the best in two rows, at most `limit`."""
        weights = self._weights(touched)
        matrix = self.gains[:, :, :-1] @ weights[:-1]

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

    def chosen(self, columns: Sequence[int | None]) -> Iterator[Match]:
        """The match of each row."""
        for row, column in enumerate(columns):
            match = self.unused[row] if column is None else self.match(row, column)
            assert match is not None
            yield match

    def obstacle(self) -> str | None:
        """Why there is no assignment; None where there is one."""
        kind = self.hosts[0].type if self.hosts else self.targets[0].type
        if len(self.targets) > len(self.hosts):
            return f"the plan has slices on {len(self.targets)} {kind}, and the state has {len(self.hosts)} of them"
        if self.best(touched=True) is not None:
            return None
        blocked = [
            f"{item.foreign} on {gpu.id} ({item.profile or 'whole GPU'} at {item.start})"
            for gpu in self.hosts
            for item in gpu.instances
            if item.foreign
        ]
        return f"the plan needs places on {kind} that others hold: {'; '.join(blocked)}"

    def _weights(self, touched: bool) -> NDArray[np.float64]:
        return self.weights if touched else self.weights * np.array([1.0, 1.0, 1.0, 0.0, 1.0])


def _content(host: StateGpu) -> Hashable:
    """What makes GPUs of a host alike: all but names, UUIDs and figures of tenants."""
    items = (
        (item.profile, item.start, item.foreign, tuple(map(member_key, item.tenants or ())))
        for item in host.instances
    )
    return host.mig_enabled, tuple(items)


def _numbered(contents: Sequence[Hashable]) -> tuple[list[int], list[int]]:
    """The first place of each different content, and of every place the number of its content."""
    numbers: dict[Hashable, int] = {}
    firsts: list[int] = []
    every: list[int] = []
    for place, content in enumerate(contents):
        if content not in numbers:
            numbers[content] = len(firsts)
            firsts.append(place)
        every.append(numbers[content])
    return firsts, every


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
