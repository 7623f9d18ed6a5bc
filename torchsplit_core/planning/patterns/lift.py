"""leximin with whole slices, level by level, as questions to `decide`.

Level k is the largest v for which some plan keeps the levels before it and leaves at most k − 1
models below v. The levels before are kept as they are: at most i − 1 models below level i.
Only finitely many values exist, so the answer "no" just above a plan's value proves it.
The levels of a tier are kept and raised in the same way among its models alone, up to their demand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from torchsplit_core.planning.patterns.decide import Decision, PatternSearch, Plan, Question
from torchsplit_core.planning.patterns.fill import fill
from torchsplit_core.planning.request.objective import Rung
from torchsplit_core.planning.timing import part_of

STEP = 2e-7
"""Relative step above a plan's value at which "no" proves the level: values within 1e-6 are equal."""

NEAR = 1e-4
"""Relative width at which the search between plan and bound ends and the proof begins."""

FIRST_S, BOUND_S = 2.0, 0.2
"""Seconds that the first plan and its bound may take beyond a limit that is too short for them."""

RESERVE, RESERVE_S = 0.15, 1.5
"""Part of the time, and most seconds, kept for a bound of the first level that is not proven."""

MOST_BOUNDS = 16
"""Questions to the prices alone, level by level."""

TIE = 1e-9
"""Relative distance of levels that are one threshold."""


@dataclass
class Lifted:
    """The plan, its levels (sorted by rung), a proven bound of each, and how many are proven from the first on."""

    rungs: Sequence[Rung]
    plan: Plan | None = None
    levels: list[float] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    proven: int = 0
    infeasible: bool = False

    def levels_at(self, values: Iterable[float]) -> list[float]:
        """The levels of models that stand at these values."""
        by_model = [float(value) for value in values]
        return [
            level
            for rung in self.rungs
            for level in sorted(min(by_model[model], rung.cap) for model in rung.models)
        ]


def lift(
    search: PatternSearch,
    rungs: Sequence[Rung],
    count: int,
    deadline: float,
    progress: Callable[[float], None] = lambda part: None,
) -> Lifted:
    """Raise the levels 1 … `count` of these rungs one after the other until all are proven or time is up."""
    found = Lifted(rungs)
    ceilings = found.levels_at(search.demands.ceilings)
    # Some plan is there in milliseconds; it is worth waiting for where the limit is shorter.
    first = search.decide(Question((0.0,)), max(deadline, time.perf_counter() + FIRST_S), prove=True)
    if first.verdict != "found":
        found.infeasible = first.verdict == "none"
        return found
    _take(search, found, first, 0)
    now = time.perf_counter()
    until = deadline - min(RESERVE_S, RESERVE * (deadline - now))
    for k in range(count):
        progress(k / count)
        if time.perf_counter() > until:
            found.bounds += ceilings[k:count]
            break
        # The first levels get the larger part of what is left: they matter most.
        part = max(0.5, 1.0 / (count - k))
        bound = _raise(search, found, k, ceilings[k], part_of(until, part))
        found.bounds.append(max(bound, found.levels[k]))
        if found.proven == k and bound <= found.levels[k] * (1 + 2 * STEP):
            found.proven = k + 1
    _bound_open_level(search, found, ceilings, deadline)
    return found


def _bound_open_level(search: PatternSearch, found: Lifted, ceilings: list[float], deadline: float) -> None:
    """A bound of the first level that is not proven, where time ran out before the search had one."""
    k = found.proven
    if k >= len(found.bounds) or found.bounds[k] < ceilings[k] or found.levels[k] >= ceilings[k]:
        return
    until = max(deadline, time.perf_counter() + BOUND_S)
    bound = _price_bound(search, found, k, ceilings[k], until)
    if len(found.rungs) == 1:
        bound = min(bound, _linear_bound(search, found.levels, k))
    found.bounds[k] = max(bound, found.levels[k])


def _linear_bound(search: PatternSearch, levels: list[float], k: int) -> float:
    """How high level k can be at the last prices with divisible slices, the levels before it kept.

    The k models below it are at best the dearest, the very dearest at the lowest level.
    """
    costs = search.linear_costs()
    dearest = np.sort(costs)[::-1]
    spent = float(dearest[:k] @ np.array(levels[:k]))
    rest = float(dearest[k:].sum())
    worth = search.supply.worth(search.prices)
    return (worth - spent) / rest * (1 + 1e-9) if rest > 0 else float("inf")


def _raise(search: PatternSearch, found: Lifted, k: int, ceiling: float, deadline: float) -> float:
    """Raise level k (from 0) as far as it goes; return a proven bound of it."""
    if found.levels[k] <= 0 < ceiling:
        # Whatever is above 0 at all is at least this: one question settles it.
        least = min(search.least_level(), ceiling)
        answer = search.decide(_question(found, k, least), deadline, prove=True)
        if answer.verdict != "found":
            return 0.0 if answer.verdict == "none" else ceiling
        _take(search, found, answer, k)
    if found.levels[k] >= ceiling * (1 - STEP):
        return ceiling
    high = hopeless = ceiling
    bracketed = False
    trial, stride = found.levels[k] * (1 + STEP), 0.0
    while time.perf_counter() < deadline:
        low = found.levels[k]
        if high <= low * (1 + 2 * STEP):
            return high
        # While plans are found without a full proof the search goes on; the proof just above the plan ends it.
        quick = hopeless > low * (1 + NEAR)
        if not quick:
            trial = low * (1 + STEP)
        answer = search.decide(_question(found, k, trial), deadline, prove=not quick)
        if answer.verdict == "found":
            _take(search, found, answer, k)
        elif answer.verdict == "none":
            high = hopeless = min(high, trial)
            bracketed = True
        elif not quick:
            break
        else:
            hopeless, bracketed = trial, True
        low = found.levels[k]
        # The part of the fleet that is needed grows about as the level does.
        reach = trial / answer.zeta if answer.zeta > 0 else hopeless
        if reach <= low * (1 + NEAR):
            # Even divisible slices hardly reach higher: time for the proof.
            hopeless, bracketed = min(hopeless, low * (1 + NEAR)), True
        elif bracketed and low < reach < hopeless:
            trial = low + 0.9 * (reach - low)
        elif bracketed:
            trial = (low + hopeless) / 2
        else:
            grown = trial * (1 / max(answer.zeta, 1e-3) - 1) if answer.zeta == answer.zeta else 0.0
            stride = max(0.98 * grown, low * NEAR, 2 * stride)
            trial = min(max(low, trial) + stride, ceiling)
    return high


def _price_bound(search: PatternSearch, found: Lifted, k: int, ceiling: float, deadline: float) -> float:
    """A level that prices alone prove to be out of reach; the ceiling where time ran out first."""
    trial = found.levels[k] * (1 + NEAR)
    high = ceiling
    for _ in range(MOST_BOUNDS):
        zeta = search.price(_question(found, k, trial), deadline)
        if zeta is None:
            high = min(high, trial)
            break
        if zeta != zeta:
            break
        trial *= max(1 + NEAR, (1 / max(zeta, 1e-3)) ** 1.5)
        if trial >= ceiling:
            break
    return high


def _question(found: Lifted, k: int, trial: float) -> Question:
    """Levels 0 … k − 1 kept, and level k at `trial`: of its rung, as many models below it as levels stand before it."""
    asked: list[tuple[float, int, tuple[int, ...]]] = []
    first = 0
    for rung in found.rungs:
        mine: list[tuple[float, int]] = []
        for place, level in enumerate([*found.levels[:k], trial][first : first + len(rung.models)]):
            if not mine or level > mine[-1][0] * (1 + TIE):
                mine.append((level, place))
        asked += [(level, allowed, rung.models) for level, allowed in mine]
        first += len(rung.models)
    if len(found.rungs) == 1:
        return Question(tuple(level for level, _, _ in asked), tuple(allowed for _, allowed, _ in asked[1:]))
    # A level that speaks of all models comes first: it holds whatever tiers do.
    asked.sort(key=lambda item: item[0])
    levels, allowed, among = zip(*asked, strict=True)
    return Question((0.0, *levels), allowed, among)


def _take(search: PatternSearch, found: Lifted, answer: Decision, k: int) -> None:
    """The answer's plan, filled up, where it is better from level k on."""
    assert answer.plan is not None
    plan = fill(search.supply, search.options, search.demands, answer.plan, search.prices)
    levels = found.levels_at(_standings(search, plan))
    if found.plan is None or levels[k:] > found.levels[k:]:
        found.plan, found.levels = plan, levels


def _standings(search: PatternSearch, plan: Plan) -> list[float]:
    """r of every model."""
    demands = search.demands
    return [
        min(pattern.rate / float(demands.units[model]), float(demands.caps[model]))
        for model, pattern in enumerate(plan.patterns)
    ]
