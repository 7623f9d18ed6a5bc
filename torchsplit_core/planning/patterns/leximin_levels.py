"""leximin with whole slices, level by level, by feasibility problems.

Level k is the largest v for which some plan keeps the levels before it and leaves at most k − 1 models below v. Earlier
levels are kept: at most i − 1 models below level i. Values are finitely many, so "no" just above a plan's value proves
it. The levels of a tier are kept and raised in the same way among its models alone, up to their demand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from torchsplit_core.planning.patterns.feasibility import (
    Decision,
    FeasibilityProblem,
    PatternPlan,
    PatternSearch,
)
from torchsplit_core.planning.patterns.idle_slices import use_idle_slices
from torchsplit_core.planning.patterns.rounding import plan_beside, seek_plan
from torchsplit_core.planning.request.objective import TierGroup
from torchsplit_core.planning.timing import partial_deadline
from torchsplit_core.solver.highs import INF

PROOF_STEP = 2e-7
"""Relative step above a plan's value at which "no" proves the level: values within 1e-6 are equal."""

PROOF_WIDTH = 1e-4
"""Relative width at which the search between plan and bound ends and the proof begins."""

MIN_FIRST_PLAN_S, MIN_BOUND_S = 2.0, 0.2
"""Seconds that the first plan and its bound may take beyond a limit that is too short for them."""

BOUND_SHARE, MAX_BOUND_RESERVE_S = 0.15, 1.5
"""Part of the time, and most seconds, reserved for a bound of the first unproven level."""

FIRST_SHARE = 0.7
"""Least part of the time for the first level."""

LATER_STEP, LATER_GROWTH = 0.01, 4
"""First relative step up from a later level that prices are asked to refute, and its growth until they do."""

MAX_BOUND_STEPS = 16
"""Tests by prices alone, level by level."""

FIRST_PLAN_PART, SECOND_PLAN_PART = 0.9, 0.99
"""Parts of the first bound at which a first plan is sought, and a second one on many GPUs."""

ENOUGH, SECOND_ENOUGH = 0.95, 0.997
"""Part of the fleet that their linear programs may take: less spares no time."""

FIRST_WIDTH, BRACKET_WIDTH, LAST_WIDTH = 1e-2, 5e-4, 5e-5
"""Relative widths at which the bracket of a first bound is narrow enough for one plan, for more, and for good."""

FIRST_STEP, STEP_GROWTH = 0.008, 2.5
"""Relative distance from the bound at which a plan is sought first, and its growth after a failure."""

NEXT_PARTS = (0.4, 0.6, 0.8)
"""Parts of the distance left at which the next plans are sought, one after the other until one is found."""

MOST_FAILURES = 8
"""Searches in a row without a better plan that end it."""

NEAREST = 2e-4
"""Relative distance at which no nearer plan is sought."""

LISTED = (0, 15, 10)
"""Cheapest patterns of a model that are listed for searches near a bound, in turn; 0: those that prices generated."""

MOST_SEARCHES = 50
"""Searches for plans near the bound of a level."""

EXPECTED_STEPS = (0.01, 0.05, 0.2)
"""Relative distances below an expected level at which a first plan is sought, one after the other."""

PRICE_STEP = 1e-3
"""First relative step down from a bound that prices are asked to refute."""

LEVEL_TOLERANCE = 1e-9
"""Levels within this relative distance share a threshold."""


@dataclass
class LevelResult:
    """The plan, its levels (sorted by tier group), their proven bounds, and how many first levels are proven."""

    tier_groups: Sequence[TierGroup]
    plan: PatternPlan | None = None
    levels: list[float] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    proven: int = 0
    infeasible: bool = False

    def levels_at(self, values: Iterable[float]) -> list[float]:
        """The levels of models at these values."""
        by_model = [float(value) for value in values]
        return [
            level
            for tier_group in self.tier_groups
            for level in sorted(min(by_model[model], tier_group.cap) for model in tier_group.models)
        ]


@dataclass
class Approach:
    """How near to a bound the next plan is sought: the relative distance `step` of the last search, and its failures.

    Whether HiGHS finds a plan within its seconds is chance to a degree: a search without one is repeated nearby.
    """

    step: float = FIRST_STEP
    failures: int = 0

    def next_step(self, left: float) -> float | None:
        """Where to seek a plan if the best one is `left` from the bound (relative); None: no nearer one is sought."""
        if left <= NEAREST or self.failures >= MOST_FAILURES:
            return None
        if self.step >= left:
            self.step = left * NEXT_PARTS[self.failures % len(NEXT_PARTS)]
        return self.step

    def take(self, *, reached: bool) -> None:
        """Note how the search ended."""
        self.failures = 0 if reached else self.failures + 1
        if not reached:
            self.step *= STEP_GROWTH


def raise_levels(
    search: PatternSearch,
    tier_groups: Sequence[TierGroup],
    count: int,
    deadline: float,
    progress: Callable[[float], None] = lambda part: None,
    expected: float = 0.0,
    least_share: float = 0.5,
    start: Decision | None = None,
    known: Sequence[float] = (),
    first_until: float = INF,
) -> LevelResult:
    """Raise the levels 1 … `count` of these tier groups one after the other until all are proven or time is up.

    A first plan is sought somewhat below `expected`, if that is above 0; `start` has a plan to begin with, whose
    first levels are `known` to be proven. Each level may take `least_share` of the remaining time. Others follow
    only if the first one is proven by `first_until` (time.perf_counter).
    """
    level_result = LevelResult(tier_groups)
    ceilings = level_result.levels_at(search.demand.ceilings)
    ceilings[0] = divisible_bound(search, tier_groups)
    first = start or _first_plan(search, level_result, expected, ceilings[0], deadline)
    if first.verdict != "found":
        level_result.infeasible = first.verdict == "none"
        return level_result
    _accept_plan(search, level_result, first, 0)
    if len(tier_groups) == 1 and ceilings[0] < float("inf"):
        near = FeasibilityProblem((SECOND_PLAN_PART * ceilings[0],))
        second = plan_beside(search, near, deadline, SECOND_ENOUGH)
        if second is not None:
            _accept_plan(search, level_result, second, 0)
    now = time.perf_counter()
    until = deadline - min(MAX_BOUND_RESERVE_S, BOUND_SHARE * (deadline - now))
    for k in range(count):
        progress(k / count)
        if time.perf_counter() > until:
            level_result.bounds += ceilings[k:count]
            break
        # The first levels get more of the remaining time: they matter most.
        part = max(least_share, 0.0 if k else FIRST_SHARE, 1.0 / (count - k))
        if k < len(known):
            bound = known[k]
        else:
            level_until = min(partial_deadline(until, part), INF if k else first_until)
            bound = _raise_level(search, level_result, k, ceilings[k], level_until)
        level_result.bounds.append(max(bound, level_result.levels[k]))
        if level_result.proven == k and bound <= level_result.levels[k] * (1 + 2 * PROOF_STEP):
            level_result.proven = k + 1
        elif not k and first_until < deadline:
            level_result.bounds += ceilings[1:count]
            break
    bound_open_level(search, level_result, ceilings, deadline)
    return level_result


def _first_plan(
    search: PatternSearch, level_result: LevelResult, expected: float, bound: float, deadline: float
) -> Decision:
    """A plan near the expected level or at a part of the bound of the first one, else any that meets the minima.

    It takes hundredths of a second, which a shorter limit must allow.
    """
    until = max(deadline, time.perf_counter() + MIN_FIRST_PLAN_S)
    if len(level_result.tier_groups) == 1 and 0 < bound < float("inf"):
        near = [expected * (1 - step) for step in EXPECTED_STEPS] if expected > 0 else []
        for level in (*near, FIRST_PLAN_PART * bound):
            decision = seek_plan(search, FeasibilityProblem((level,)), until, enough=ENOUGH)
            if decision.verdict == "found":
                return decision
    return search.decide(FeasibilityProblem((0.0,)), until, prove=True)


def divisible_bound(search: PatternSearch, tier_groups: Sequence[TierGroup]) -> float:
    """A bound of the first level, by the prices of divisible slices: milliseconds, whatever the time limit."""
    level_result = LevelResult(tier_groups)
    search.start_from_divisible_prices(tier_groups[0].models)
    ceiling: float = level_result.levels_at(search.demand.ceilings)[0]
    return min(ceiling, _linear_bound(search, level_result, 0))


def bound_open_level(
    search: PatternSearch, level_result: LevelResult, ceilings: list[float], deadline: float
) -> None:
    """A bound of the first unproven level, if time ran out before the search had one."""
    k = level_result.proven
    if (
        k >= len(level_result.bounds)
        or level_result.bounds[k] < ceilings[k]
        or level_result.levels[k] >= ceilings[k]
    ):
        return
    until = max(deadline, time.perf_counter() + MIN_BOUND_S)
    bound = price_bound(search, level_result, k, ceilings[k], until)
    bound = min(bound, _linear_bound(search, level_result, k))
    level_result.bounds[k] = max(bound, level_result.levels[k])


def _linear_bound(search: PatternSearch, level_result: LevelResult, k: int) -> float:
    """The highest level k at the last prices with divisible slices, with the levels before it kept.

    At best the models of its tier group below it are the dearest, the very dearest at the lowest level.
    """
    first, tier_group = _tier_group_of(level_result, k)
    dearest = np.sort(search.linear_costs()[list(tier_group.models)])[::-1]
    spent = float(dearest[: k - first] @ np.array(level_result.levels[first:k]))
    rest = float(dearest[k - first :].sum())
    worth = search.capacity.worth(search.prices)
    return (worth - spent) / rest * (1 + 1e-9) if rest > 0 else float("inf")


def _tier_group_of(level_result: LevelResult, k: int) -> tuple[int, TierGroup]:
    """The tier group of level k, with its own first level."""
    first = 0
    for tier_group in level_result.tier_groups:
        if k < first + len(tier_group.models):
            break
        first += len(tier_group.models)
    return first, tier_group


def _raise_level(
    search: PatternSearch, level_result: LevelResult, k: int, ceiling: float, deadline: float
) -> float:
    """Raise level k (from 0) as far as possible; returns a proven bound of it."""
    if level_result.levels[k] <= 0 < ceiling:
        # Any level above 0 is at least this: one test settles it.
        least = min(search.least_level(), ceiling)
        decision = search.decide(level_problem(level_result, k, least), deadline, prove=True)
        if decision.verdict != "found":
            return 0.0 if decision.verdict == "none" else ceiling
        _accept_plan(search, level_result, decision, k)
    if level_result.levels[k] >= ceiling * (1 - PROOF_STEP):
        return ceiling
    high = ceiling
    trial, stride = level_result.levels[k] * (1 + PROOF_STEP), 0.0
    first, tier_group = _tier_group_of(level_result, k)
    if k == first:
        search.start_from_divisible_prices(tier_group.models)
        high = min(ceiling, max(_linear_bound(search, level_result, k), level_result.levels[k]))
        high, reach = _lower_bound(search, level_result, k, high, deadline, FIRST_WIDTH)
        # A plan near a bound that is not far off; the first bound that is costs as much time again.
        _approach(search, level_result, k, reach, deadline, plans=1)
        high, reach = _lower_bound(search, level_result, k, high, deadline, BRACKET_WIDTH)
        _approach(search, level_result, k, reach, deadline)
        high, reach = _lower_bound(search, level_result, k, high, deadline, LAST_WIDTH)
        trial = max(trial, (level_result.levels[k] + reach) / 2)
    unreached, bracketed = high, high < ceiling
    while time.perf_counter() < deadline:
        low = level_result.levels[k]
        if high <= low * (1 + 2 * PROOF_STEP):
            return high
        # While plans without a full proof are found the search goes on; the proof just above the plan ends it.
        # With many layouts a search that proves nothing takes as long as the proof.
        quick = unreached > low * (1 + PROOF_WIDTH) and not search.has_many_layouts
        if not quick:
            trial = low * (1 + PROOF_STEP)
        problem = level_problem(level_result, k, trial)
        decision = (
            seek_plan(search, problem, deadline) if quick else search.decide(problem, deadline, prove=True)
        )
        if decision.verdict == "found":
            _accept_plan(search, level_result, decision, k)
        elif decision.verdict == "none":
            high = unreached = min(high, trial)
            bracketed = True
        elif not quick:
            break
        else:
            unreached, bracketed = trial, True
        low = level_result.levels[k]
        # The needed part of the fleet grows about as the level does.
        reach = trial / decision.zeta if decision.zeta > 0 else unreached
        if reach <= low * (1 + PROOF_WIDTH):
            # Even divisible slices hardly reach higher: time for the proof.
            unreached, bracketed = min(unreached, low * (1 + PROOF_WIDTH)), True
        elif bracketed and low < reach < unreached:
            trial = low + 0.9 * (reach - low)
        elif bracketed:
            trial = (low + unreached) / 2
        else:
            growth = trial * (1 / max(decision.zeta, 1e-3) - 1) if decision.zeta == decision.zeta else 0.0
            stride = max(0.98 * growth, low * PROOF_WIDTH, 2 * stride)
            trial = min(max(low, trial) + stride, ceiling)
    return high


def _approach(
    search: PatternSearch,
    level_result: LevelResult,
    k: int,
    reach: float,
    deadline: float,
    plans: int = MOST_SEARCHES,
) -> None:
    """Plans ever nearer to `reach`, which parts of patterns reach at level k; on large fleets whole ones nearly do.

    It ends after the so many `plans`.
    """
    near = Approach()
    for number in range(MOST_SEARCHES):
        if plans <= 0 or time.perf_counter() > deadline:
            return
        step = near.next_step(1 - level_result.levels[k] / reach)
        if step is None:
            return
        problem = level_problem(level_result, k, reach * (1 - step))
        # A first plan is sought among known patterns, which are at hand.
        most = LISTED[number % len(LISTED)] if plans > 1 else 0
        decision = seek_plan(search, problem, deadline, most)
        if decision.verdict == "found":
            _accept_plan(search, level_result, decision, k)
            plans -= 1
        elif decision.zeta > 1:
            # The patterns of the bound are not those of plans.
            reach, near = reach * (1 - step) / decision.zeta, Approach(failures=near.failures)
        near.take(reached=decision.verdict == "found")


def _lower_bound(
    search: PatternSearch, level_result: LevelResult, k: int, high: float, deadline: float, width: float
) -> tuple[float, float]:
    """A bound of level k, from the bound `high` downward, and the highest level that parts of patterns reach.

    They are at most `width` apart (relative) if time allows.
    Steps down from the bound double until prices refute no more; then the bracket is halved.
    """
    reach = level_result.levels[k]
    step: float | None = PRICE_STEP
    while high > reach * (1 + width) and time.perf_counter() < deadline:
        trial = (reach + high) / 2 if step is None else max(reach, high * (1 - step))
        zeta = search.fleet_share(level_problem(level_result, k, trial), deadline)
        if zeta is None:
            high, step = trial, None if step is None else 2 * step
        elif zeta != zeta:
            break
        else:
            # The needed part of the fleet grows about as the level does.
            reach, step = (
                max(trial, min(trial / max(zeta, 1e-3), (trial + high) / 2) * (1 - PRICE_STEP)),
                None,
            )
    return high, reach


def price_bound(
    search: PatternSearch, level_result: LevelResult, k: int, ceiling: float, deadline: float
) -> float:
    """A level that prices alone prove unreachable; the ceiling if time ran out first.

    Steps up from the level grow until prices refute one; then the bracket is halved. Those of a later level, whose
    prices seldom refute what is near, are larger.
    """
    low, high = level_result.levels[k], ceiling
    step, growth = (LATER_STEP, LATER_GROWTH) if k else (PROOF_WIDTH, 2)
    for _ in range(MAX_BOUND_STEPS):
        trial = low * (1 + step) if high == ceiling else (low + high) / 2
        if trial >= ceiling or high <= low * (1 + PROOF_WIDTH):
            break
        zeta = search.fleet_share(level_problem(level_result, k, trial), deadline)
        if zeta is None:
            high = trial
        elif zeta != zeta:
            break
        else:
            # The needed part of the fleet grows about as the level does.
            low = trial
            step = max(growth * step, (1 / max(zeta, 1e-3)) ** 1.5 - 1)
    return high


def level_problem(level_result: LevelResult, k: int, trial: float) -> FeasibilityProblem:
    """Levels 0 … k − 1 kept, and level k at `trial`, with as many models of its tier group below as earlier levels."""
    thresholds: list[tuple[float, int, tuple[int, ...]]] = []
    first = 0
    for tier_group in level_result.tier_groups:
        group_thresholds: list[tuple[float, int]] = []
        for position, level in enumerate(
            [*level_result.levels[:k], trial][first : first + len(tier_group.models)]
        ):
            if not group_thresholds or level > group_thresholds[-1][0] * (1 + LEVEL_TOLERANCE):
                group_thresholds.append((level, position))
        thresholds += [(level, allowed, tier_group.models) for level, allowed in group_thresholds]
        first += len(tier_group.models)
    if len(level_result.tier_groups) == 1:
        return FeasibilityProblem(
            tuple(level for level, _, _ in thresholds), tuple(allowed for _, allowed, _ in thresholds[1:])
        )
    # A level of all models comes first: it holds whatever tiers do.
    thresholds.sort(key=lambda item: item[0])
    levels, allowed, subsets = zip(*thresholds, strict=True)
    return FeasibilityProblem((0.0, *levels), allowed, subsets)


def _accept_plan(search: PatternSearch, level_result: LevelResult, decision: Decision, k: int) -> None:
    """Take the decision's plan, with idle slices used, if it is better from level k on."""
    assert decision.plan is not None
    plan = use_idle_slices(
        search.capacity, search.options, search.demand, decision.plan, search.prices, search.closed
    )
    levels = level_result.levels_at(_model_levels(search, plan))
    if level_result.plan is None or levels[k:] > level_result.levels[k:]:
        level_result.plan, level_result.levels = plan, levels
        search.on_better(levels[0], plan)


def _model_levels(search: PatternSearch, plan: PatternPlan) -> list[float]:
    """r of every model."""
    demands = search.demand
    return [
        min(pattern.rate / float(demands.units[model]), float(demands.caps[model]))
        for model, pattern in enumerate(plan.patterns)
    ]
