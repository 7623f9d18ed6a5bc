"""What a model takes of shared slices to reach a rate: its options and their patterns.

A *pattern* of a model is a set of tenancies that give each of its stages the rate wanted. All its shares suit the
longest latency in use, so patterns are sought for each *option*: a case with a range of the longest latency, whose
lower end is the least share and whose upper end says which points may be used. Of a slice a tenancy with share x takes

| resource | amount |
|---|---|
| share | x |
| memory | memory / the slice's |
| tenants | 1 / the most tenants |
| share[k], memory[k] | f_k of the share or of the part of the memory, k = 1 … |

of which the tenants of a slice take at most 1 each. f_k is a dual feasible function (tenancy_counts.py), constant
between multiples of 1/(k + 1); at a multiple the value just below it is taken, so that what a share takes jumps after
it. A tenancy with unknown memory takes all of everything. Patterns cost what they take at prices of a pool's resources
(level_program.py, pattern_pricing.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.fractional.tenancy_counts import dual_feasible, latency_part
from torchsplit_core.planning.patterns.capacity import FleetCapacity
from torchsplit_core.planning.problem.build import Problem

Vector = NDArray[np.float64]
Integers = NDArray[np.int64]

CLASSES = 5
"""Dual feasible functions of the share, and of the memory."""

RESOURCES = 3 + 2 * CLASSES
"""share, memory, tenants, share[k], memory[k]."""

SHARE_STEPS = slice(3, 3 + CLASSES)
"""share[k]."""

MAX_RANGES = 64
"""Ranges of the longest latency of a case; above, neighbouring latencies share one."""

WHOLE = 1e-9
"""Distance from a whole number that counts as rounding."""

_K = np.arange(1, CLASSES + 1)
_BREAKS = sorted({j / (k + 1) for k in _K.tolist() for j in range(1, k + 1)})

Box = Mapping[int, tuple[int, int]]
"""By model the first of its options, and the one after the last."""


@dataclass(frozen=True)
class StageUses:
    """The choices (their indices) of a stage of an option: pool, rate of a whole slice, and what a tenancy takes.

    `taken` (uses × RESOURCES) is without what grows with the share. The ends are the shares above 0, by use, between
    which share[k] is constant.
    """

    choices: Integers
    pools: Integers
    rates: Vector
    taken: Vector
    alone: NDArray[np.bool_]
    least: float
    end_uses: Integers
    end_shares: Vector


@dataclass(frozen=True)
class Option:
    """A way to run a model: a case with a range of its longest latency, and the uses of its stages."""

    case: int
    stages: tuple[StageUses, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern and its cost at some prices, and `bound`, what no pattern costs less than.

    `tenancies`: (stage, use, share) of the option.
    """

    bound: float
    cost: float = math.inf
    option: int = -1
    tenancies: tuple[tuple[int, int, float], ...] = ()


def list_options(problem: Problem, capacity: FleetCapacity) -> dict[int, list[Option]]:
    """The options by model."""
    pool_rows = {pool: row for row, pool in enumerate(capacity.pools)}
    by_stage: dict[tuple[int, int], list[int]] = {}
    for number, choice in enumerate(problem.choices):
        if choice.rate_rps > 0:
            by_stage.setdefault((choice.case, choice.stage), []).append(number)
    options: dict[int, list[Option]] = {}
    for number, case in enumerate(problem.cases):
        stages = [by_stage.get((number, stage), []) for stage in range(case.stages)]
        if not all(stages):
            continue
        parts = [np.array([latency_part(problem, problem.choices[c]) for c in choices]) for choices in stages]
        quickest = [float(stage_parts.min()) for stage_parts in parts]
        for low, high in _latency_ranges(parts):
            uses = []
            for choices, stage_parts, quick in zip(stages, parts, quickest, strict=True):
                fits = stage_parts <= high - (sum(quickest) - quick) + WHOLE
                offered = [choice for choice, fit in zip(choices, fits.tolist(), strict=True) if fit]
                uses.append(_stage_uses(problem, offered, low, pool_rows))
            options.setdefault(case.model, []).append(Option(number, tuple(uses)))
    return options


def _latency_ranges(parts: list[Vector]) -> list[tuple[float, float]]:
    """Ranges that hold every sum of a latency of each stage, as (lowest, highest)."""
    low, high = sum(float(p.min()) for p in parts), min(1.0, sum(float(p.max()) for p in parts))
    if len(parts) == 1:
        sums = sorted(set(np.minimum(parts[0], 1.0).tolist()))
        size = math.ceil(len(sums) / MAX_RANGES)
        return [(sums[at], sums[min(at + size, len(sums)) - 1]) for at in range(0, len(sums), size)]
    if low == high:
        return [(low, high)]
    return list(pairwise(np.linspace(low, high, MAX_RANGES // 2 + 1).tolist()))


def _stage_uses(
    problem: Problem,
    choices: list[int],
    least: float,
    pool_rows: Mapping[tuple[int, str], int],
) -> StageUses:
    """The undominated choices of a stage, with what they take."""
    by_pool: dict[int, list[int]] = {}
    for number in choices:
        choice = problem.choices[number]
        by_pool.setdefault(pool_rows[choice.group, choice.profile], []).append(number)
    undominated: list[int] = []
    for offered in by_pool.values():
        ranked = sorted(offered, key=lambda n: (-problem.choices[n].rate_rps, _memory(problem, n)))
        for at, number in enumerate(ranked):
            if all(_memory(problem, number) < _memory(problem, other) for other in ranked[:at]):
                undominated.append(number)
    count, least = len(undominated), min(1.0, least)
    memory = np.array([min(1.0, _memory(problem, number)) for number in undominated])
    alone = np.array([problem.choices[number].needs_own_slice for number in undominated])
    most = problem.request.max_tenants_per_slice
    taken = np.zeros((count, RESOURCES))
    taken[:, 1], taken[:, 2] = memory, 0.0 if most is None else 1.0 / most
    taken[:, 3 + CLASSES :] = [[dual_feasible(k, part) for k in _K.tolist()] for part in memory.tolist()]
    end_uses, end_shares = [], []
    for use in range(count):
        ends = [1.0] if alone[use] else sorted({least, *(b for b in _BREAKS if b > least + WHOLE), 1.0})
        useful = [share for share in ends if share > WHOLE]
        end_uses += [use] * len(useful)
        end_shares += useful
    taken[alone] = 1.0
    of = [problem.choices[number] for number in undominated]
    return StageUses(
        np.array(undominated, dtype=np.int64),
        np.array([pool_rows[choice.group, choice.profile] for choice in of], dtype=np.int64),
        np.array([choice.rate_rps for choice in of]),
        taken,
        alone,
        least,
        np.array(end_uses, dtype=np.int64),
        np.array(end_shares),
    )


def _memory(problem: Problem, number: int) -> float:
    """The part of a slice's memory; infinite if unknown."""
    choice = problem.choices[number]
    size = problem.slice_memory_gib(choice.group, choice.profile)
    return math.inf if choice.needs_own_slice else choice.memory_gib / size


def share_steps(shares: Vector) -> Vector:
    """f_k just below each share (shares × CLASSES): k · f_k is the largest whole number below (k + 1) · share."""
    scaled = shares[:, None] * (_K + 1)
    steps: Vector = np.maximum(np.ceil(scaled - WHOLE * (_K + 1)) - 1, 0.0) / _K
    return steps


STEPS_AFTER = np.array(_BREAKS) + WHOLE
STEPS = share_steps(np.array([*_BREAKS, 1.0]))
"""share[k] by interval: up to and with each multiple, and after the last."""


def pattern_takes(stage: StageUses, use: int, share: float) -> Vector:
    """What a tenancy with this share takes (RESOURCES)."""
    taken: Vector = stage.taken[use].copy()
    if not stage.alone[use]:
        taken[0] = share
        taken[SHARE_STEPS] = share_steps(np.array([share]))[0]
    return taken


def refit(options: list[Option], pattern: Pattern, rate: float) -> Pattern | None:
    """The pattern for another rate by each stage's last share; None if a whole slice gives too little there."""
    tenancies: list[tuple[int, int, float]] = []
    for number, stage in enumerate(options[pattern.option].stages):
        *others, (_, last, _) = [item for item in pattern.tenancies if item[0] == number]
        missing = rate - sum(float(stage.rates[use]) * share for _, use, share in others)
        share = max(missing / float(stage.rates[last]), stage.least)
        if share > 1:
            return None
        tenancies += [*others, (number, last, share)]
    return replace(pattern, tenancies=tuple(tenancies))
