"""Assigns counted instances to GPUs so that none has more of a model than the model can lose.

Instance by instance goes to the GPU with the least of its stage, those of the tightest stages first; then instances of
equal slices change places while a GPU has too much of a stage, and stages get idle slices and unused GPUs besides. This
finds a way quickly where there is room, and is no proof that there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.outcome.assignment import AssignedSlice, Assignment, assign_layouts
from torchsplit_core.planning.problem.build import Choice, Problem
from torchsplit_core.planning.tolerance import TOLERANCE
from torchsplit_core.values import InternalFault

_StageKey = tuple[int, int]
"""Case and stage."""

_Pool = tuple[int, str]
"""Group and profile."""


@dataclass
class _Stage:
    """What a stage must have without any one GPU, what it has on each GPU (by its index), and its longest latency."""

    least_rps: float
    by_gpu: NDArray[np.float64]
    total_rps: float = 0.0
    longest_ms: float = 0.0

    @property
    def most_rps(self) -> float:
        """The most that one GPU may have."""
        return self.total_rps - self.least_rps if self.least_rps > 0 else float("inf")

    @property
    def short_rps(self) -> float:
        """What it lacks if the GPU with most of it is lost; below 0 what it could spare."""
        return float(self.by_gpu.max()) - self.most_rps

    def short_with(self, gpu: int, rate_rps: float) -> float:
        """What it lacks with another instance on the GPU."""
        return max(float(self.by_gpu.max()), float(self.by_gpu[gpu]) + rate_rps) - self.most_rps - rate_rps


@dataclass
class _Spread:
    """An assignment in the making: its stages, its GPUs by number, and its slices by pool."""

    problem: Problem
    assignment: Assignment
    stages: Mapping[_StageKey, _Stage]
    gpu_numbers: dict[str, int]
    pools: dict[_Pool, list[AssignedSlice]] = field(default_factory=dict)

    def put(self, slice_: AssignedSlice, choice: Choice | None) -> None:
        """Give the slice to the choice, or to nothing, in place of its tenant."""
        gpu = self.gpu_numbers[slice_.gpu_id]
        for before, _ in slice_.tenants:
            stage = self.stages[before.case, before.stage]
            stage.by_gpu[gpu] -= before.rate_rps
            stage.total_rps -= before.rate_rps
        slice_.tenants[:] = [] if choice is None else [(choice, 1.0)]
        if choice is not None:
            stage = self.stages[choice.case, choice.stage]
            stage.by_gpu[gpu] += choice.rate_rps
            stage.total_rps += choice.rate_rps
            stage.longest_ms = max(stage.longest_ms, choice.point.latency_ms)

    def deal(self, amounts: Sequence[tuple[Choice, int]]) -> None:
        """Give all instances a slice. Raises InternalFault if there are more of them than slices."""
        free: dict[_Pool, dict[int, list[AssignedSlice]]] = {}
        for pool, slices in self.pools.items():
            for slice_ in slices:
                free.setdefault(pool, {}).setdefault(self.gpu_numbers[slice_.gpu_id], []).append(slice_)
        gpus = {pool: np.array(list(by_gpu), dtype=np.int64) for pool, by_gpu in free.items()}
        left = {pool: np.array([len(item) for item in by_gpu.values()]) for pool, by_gpu in free.items()}
        totals: dict[_StageKey, float] = {}
        for choice, count in amounts:
            key = choice.case, choice.stage
            totals[key] = totals.get(key, 0.0) + count * choice.rate_rps

        def spare(item: tuple[Choice, int]) -> tuple[float, float]:
            key = item[0].case, item[0].stage
            least = self.stages[key].least_rps
            return 1 - least / totals[key] if least > 0 else 1.0, -item[0].rate_rps

        for choice, count in sorted(amounts, key=spare):
            pool, stage = (choice.group, choice.profile), self.stages[choice.case, choice.stage]
            if count > int(left[pool].sum() if pool in left else 0):
                raise InternalFault("The planner's counts hold more instances than slices.")
            for _ in range(count):
                there = np.where(left[pool] > 0, stage.by_gpu[gpus[pool]], np.inf)
                # Of the GPUs with the least of it the one with most free slices leaves the others most choice.
                position = int(np.argmax(np.where(there == there.min(), left[pool], 0)))
                left[pool][position] -= 1
                self.put(free[pool][int(gpus[pool][position])].pop(0), choice)

    def move_excess(self, key: _StageKey) -> None:
        """Exchange instances of the stage on GPUs that have too much of it for others of equal slices."""
        stage = self.stages[key]
        for slices in self.pools.values():
            for slice_ in slices:
                choice, gpu = _tenant(slice_), self.gpu_numbers[slice_.gpu_id]
                if (
                    choice is None
                    or (choice.case, choice.stage) != key
                    or stage.by_gpu[gpu] <= stage.most_rps
                ):
                    continue
                for other in slices:
                    partner = _tenant(other)
                    if partner is not None and (partner.case, partner.stage) == key:
                        continue
                    if self._has_room(choice, self.gpu_numbers[other.gpu_id]) and self._has_room(
                        partner, gpu
                    ):
                        self.put(slice_, None)
                        self.put(other, choice)
                        self.put(slice_, partner)
                        break

    def _has_room(self, choice: Choice | None, gpu: int) -> bool:
        """Whether the GPU may have this instance as well."""
        if choice is None:
            return True
        stage = self.stages[choice.case, choice.stage]
        return bool(stage.by_gpu[gpu] + choice.rate_rps <= stage.most_rps)

    def add_instances(self) -> None:
        """Give stages that lack something idle slices, then slices of unused GPUs, the best for their cost first."""
        while short := [key for key, stage in self.stages.items() if stage.short_rps > 0]:
            added = [self._add_to_idle(key) for key in short]
            if not any(added) and not self._open_gpu(short):
                return

    def _add_to_idle(self, key: _StageKey) -> bool:
        """Give the stage the idle slice that leaves it the least short, the smallest that is enough."""
        stage = self.stages[key]
        best = min(
            (
                (max(stage.short_with(gpu, choice.rate_rps), 0.0), choice.rate_rps, gpu, slice_, choice)
                for choice in self._choices_of(key)
                for slice_ in self.pools.get((choice.group, choice.profile), [])
                if not slice_.tenants
                for gpu in (self.gpu_numbers[slice_.gpu_id],)
            ),
            key=lambda item: item[:3],
            default=None,
        )
        if best is None or best[0] >= stage.short_rps:
            return False
        self.put(best[3], best[4])
        return True

    def _open_gpu(self, short: Sequence[_StageKey]) -> bool:
        """Add the unused GPU with the layout that gives most of what these stages lack for its cost."""
        best: tuple[float, int, int] | None = None
        rates = {
            key: {(choice.group, choice.profile): choice.rate_rps for choice in self._choices_of(key)}
            for key in short
        }
        for g, group in enumerate(self.problem.groups):
            if group.parts or all(gpu in self.assignment.layouts for gpu in group.gpu_ids):
                continue
            for number, layout in enumerate(group.layouts):
                lacking = {key: self.stages[key].short_rps for key in short}
                gain = 0.0
                for profile, count in layout.usable_counts.items():
                    for _ in range(count):
                        parts = {
                            key: min(rates[key].get((g, profile), 0.0) / self.stages[key].short_rps, 1.0)
                            for key in short
                            if lacking[key] > 0
                        }
                        if not parts:
                            break
                        key = max(parts, key=parts.__getitem__)
                        gain += parts[key]
                        lacking[key] -= rates[key].get((g, profile), 0.0)
                score = gain / max(group.cost, 1e-9)
                if gain > 0 and (best is None or score > best[0]):
                    best = score, g, number
        if best is None:
            return False
        _, g, number = best
        group = self.problem.groups[g]
        gpu_id = next(gpu for gpu in group.gpu_ids if gpu not in self.assignment.layouts)
        self.assignment.layouts[gpu_id] = group.layouts[number].profiles
        self.assignment.columns[gpu_id] = (g, number)
        self.gpu_numbers[gpu_id] = len(self.gpu_numbers)
        for stage in self.stages.values():
            stage.by_gpu = np.append(stage.by_gpu, 0.0)
        for profile, count in sorted(group.layouts[number].usable_counts.items()):
            slices = [AssignedSlice(gpu_id, g, profile) for _ in range(count)]
            self.assignment.slices += slices
            self.pools.setdefault((g, profile), []).extend(slices)
        return True

    def _choices_of(self, key: _StageKey) -> Iterator[Choice]:
        """The choices of a stage that are no slower than its instances."""
        for choice in self.problem.choices:
            if (choice.case, choice.stage) == key and choice.point.latency_ms <= self.stages[key].longest_ms:
                yield choice


def assign_spread(
    problem: Problem,
    layouts: Mapping[tuple[int, int], int],
    amounts: Sequence[tuple[Choice, int]],
    least_after_loss: Sequence[float],
    *,
    complete: bool = False,
) -> Assignment:
    """Assign whole instances (exclusive) to slices of their group and profile, each stage over many GPUs.

    `least_after_loss`: for every model the requests/s that each stage should have without any one GPU. `complete` adds
    instances on idle slices and unused GPUs where stages would have less.
    """
    assignment = assign_layouts(problem, layouts)
    numbers = {gpu: number for number, gpu in enumerate(assignment.layouts)}
    stages = {
        (choice.case, choice.stage): _Stage(
            least_after_loss[choice.model] * (1 - TOLERANCE / 2), np.zeros(len(numbers))
        )
        for choice, _ in amounts
    }
    spread = _Spread(problem, assignment, stages, numbers)
    for slice_ in assignment.slices:
        spread.pools.setdefault((slice_.group, slice_.profile), []).append(slice_)
    spread.deal(amounts)
    for key, stage in stages.items():
        if stage.short_rps > 0:
            spread.move_excess(key)
    if complete:
        spread.add_instances()
    return assignment


def spread_further(
    problem: Problem, assignment: Assignment, least_after_loss: Sequence[float], fixed: Set[int]
) -> None:
    """Exchange instances of an assignment as `assign_spread` does, and add some on idle slices and unused GPUs.

    Those of the models `fixed` (indices) stay where they are, whatever they would have without a GPU.
    """
    numbers = {gpu: number for number, gpu in enumerate(assignment.layouts)}
    tenants = [_tenant(slice_) for slice_ in assignment.slices]
    stages = {
        (choice.case, choice.stage): _Stage(
            0.0 if choice.model in fixed else least_after_loss[choice.model] * (1 - TOLERANCE / 2),
            np.zeros(len(numbers)),
        )
        for choice in tenants
        if choice is not None
    }
    spread = _Spread(problem, assignment, stages, numbers)
    for slice_, choice in zip(assignment.slices, tenants, strict=True):
        slice_.tenants.clear()
        spread.put(slice_, choice)
        if choice is None or choice.model not in fixed:
            spread.pools.setdefault((slice_.group, slice_.profile), []).append(slice_)
    for key, stage in stages.items():
        if stage.short_rps > 0:
            spread.move_excess(key)
    spread.add_instances()


def _tenant(slice_: AssignedSlice) -> Choice | None:
    return slice_.tenants[0][0] if slice_.tenants else None
