"""Levels of whole slices on few GPUs, with hard co-locations or a loss survived, raised by questions.

The program of a question is that of question_program.py. A level just above the plan is asked: "none" proves it. Where
that takes too long, plans are approached a few GPUs at a time, and levels far above are refuted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from torchsplit_core.planning.exclusive.gpu_counts import ROUNDING, GpuCounts, GpuPlan
from torchsplit_core.planning.exclusive.question_program import QuestionProgram
from torchsplit_core.planning.patterns.feasibility import FeasibilityProblem
from torchsplit_core.planning.patterns.leximin_levels import (
    PROOF_STEP,
    LevelResult,
    bound_open_level,
    level_problem,
    price_bound,
)
from torchsplit_core.planning.request.objective import TierGroup
from torchsplit_core.planning.timing import partial_deadline
from torchsplit_core.solver.highs import INF, ProgramRejected
from torchsplit_core.values.status import SearchVerdict

WHOLE_WITHIN = 1e-8
"""Distance from a whole number in proofs: as a part of a level it must be less than what a level is asked above."""

PRICE_SHARE = 0.2
"""Most of a question's time for prices."""

QUESTION_SHARE, NEXT_SHARE, MIN_QUESTION_S = 0.3, 0.5, 1.5
"""Part of the remaining time of the first level and of later ones for a question, and least seconds."""

APPROACH_SHARE, ROUGH_SHARE, APPROACH_S, QUICK_S = 0.25, 0.6, 1.0, 0.15
"""Part of the first level's time for approaching it, and from any plan at all, most seconds of a program, and those of
a quick one."""

FIRST_OPENED, MAX_FAILURES = 3, 12
"""GPUs planned anew at first, and programs in a row without a better plan after which the approach ends."""

HIGHER = 0.1
"""Part of the distance to the bound by which the approach asks for more than the plan has."""

FIRST_SHARE, LEVEL_SHARE, BOUND_SHARE = 0.8, 0.5, 0.2
"""Part of the remaining time for the first level, and for each later one; most of the first level's for its bound by
prices."""

STEP = 0.01
"""First relative step above a plan at which a better one is sought; after questions that have one it doubles."""


@dataclass
class RaisedLevels(LevelResult):
    """The levels with their plan on GPUs."""

    gpu_plan: GpuPlan | None = None


def ask(
    counts: GpuCounts, question: FeasibilityProblem, seconds: float
) -> tuple[SearchVerdict, GpuPlan | None]:
    """Whether there is a plan, and one."""
    if counts.priced.fleet_share(question, time.perf_counter() + PRICE_SHARE * seconds) is None:
        return "none", None
    program = QuestionProgram(counts, question, priced=True)
    if program.is_blocked:
        return "none", None
    try:
        solution = program.rows.solve(seconds, first=True, sub_programs=False, whole_within=WHOLE_WITHIN)
    except ProgramRejected:
        return "unknown", None
    if not len(solution.values):
        return "none" if solution.status == "infeasible" else "unknown", None
    plan = program.read(solution.values)
    return ("found", plan) if _answers(counts, question, plan) else ("unknown", None)


def approach(
    counts: GpuCounts, question: FeasibilityProblem, plan: GpuPlan, opened: Collection[int], seconds: float
) -> tuple[float, GpuPlan]:
    """The plan whose models lack least of the last level, with all but some GPUs as this plan has them.

    Also what they lack together, in units of what they need; the plan itself if it ended too early.
    """
    program = QuestionProgram(counts, question, short=True)
    start = program.values_of(plan)
    for gpu in set(range(len(counts.gpus))).difference(opened):
        program.hold(gpu, start)
    try:
        solution = program.rows.solve(seconds, start=start)
    except ProgramRejected:
        return INF, plan
    if not len(solution.values):
        return INF, plan
    return float(solution.values @ np.array(program.rows.cost)), program.read(solution.values)


def _answers(counts: GpuCounts, question: FeasibilityProblem, plan: GpuPlan) -> bool:
    levels = np.array(counts.model_levels(plan))
    among = [
        list(range(len(levels))),
        *(list(flags.nonzero()[0]) for flags in counts.base.subset_flags(question)),
    ]
    return counts.keeps_minima(plan) and all(
        (levels[models] < level * (1 - ROUNDING)).sum() <= allowed
        for level, allowed, models in zip(question.levels, (0, *question.allowed), among, strict=True)
    )


def raise_by_questions(
    counts: GpuCounts,
    tier_groups: Sequence[TierGroup],
    count: int,
    start: GpuPlan | None,
    bound: float,
    deadline: float,
    report: Callable[[float, GpuPlan], None] = lambda level, plan: None,
) -> RaisedLevels:
    """Raise the levels 1 … `count` one after the other until all are proven, one cannot be, or time is up.

    `start`: a plan to begin with; `bound`: no plan has a higher first level.
    """
    raising = _Raising(counts, RaisedLevels(tier_groups), deadline, report)
    raised = raising.raised
    ceilings = raised.levels_at(counts.base.demand.ceilings)
    if start is None or not raising.take(start, 0):
        verdict, plan = ask(counts, FeasibilityProblem((0.0,)), deadline - time.perf_counter())
        if plan is None or not raising.take(plan, 0):
            raised.infeasible = verdict == "none"
            return raised
        raising.is_rough = True
    for k in range(count):
        # Where a loss is to be survived nothing follows that would raise a level left open.
        first = 1.0 if counts.loss_minima else FIRST_SHARE
        until = partial_deadline(deadline, LEVEL_SHARE if k else first)
        high = ceilings[k]
        if not k:
            high = min(high, bound)
            high = price_bound(counts.priced, raised, k, high, partial_deadline(until, BOUND_SHARE))
        high = raising.raise_level(k, high, until)
        raised.bounds.append(max(high, raised.levels[k]))
        if high > raised.levels[k] * (1 + 2 * PROOF_STEP):
            break
        raised.proven = k + 1
    bound_open_level(counts.base, raised, ceilings, deadline)
    raised.bounds += ceilings[len(raised.bounds) : count]
    return raised


@dataclass
class _Raising:
    """The levels raised so far, and the steps that raise them."""

    counts: GpuCounts
    raised: RaisedLevels
    deadline: float
    report: Callable[[float, GpuPlan], None]
    is_rough: bool = False
    """Whether the plan is any at all, far below what is soon approached."""
    draw: random.Random = field(default_factory=lambda: random.Random(0))

    def take(self, plan: GpuPlan, k: int) -> bool:
        """Take the plan if it keeps the levels before k and is better from there on; whether it is."""
        plan = self.counts.fill_idle(plan)
        levels, before = self.raised.levels_at(self.counts.model_levels(plan)), self.raised.levels
        holds = all(a >= b * (1 - ROUNDING) for a, b in zip(levels[:k], before, strict=False))
        if not holds or not self.counts.keeps_minima(plan):
            return False
        if self.raised.gpu_plan is not None and levels[k:] <= before[k:]:
            return False
        self.raised.gpu_plan, self.raised.levels = plan, levels
        self.report(levels[0], plan)
        return True

    def raise_level(self, k: int, high: float, until: float) -> float:
        """Raise level k (from 0), of which `high` is a bound; returns a bound.

        The first level gets a short question before it is approached, since many are proven by it.
        """
        step, halving, approached = 0.0, False, False
        if self.is_rough and not k:
            self._approach(high, partial_deadline(until, ROUGH_SHARE))
            approached = True
        while time.perf_counter() < until:
            low = self.raised.levels[k]
            if high <= low * (1 + PROOF_STEP):
                break
            # Any level above 0 is at least the least one.
            just_above = low * (1 + PROOF_STEP) if low > 0 else min(self.counts.base.least_level(), high)
            trial = just_above
            if step or halving:
                trial = min((low + high) / 2, low * (1 + step) if step else INF)
            left = until - time.perf_counter()
            seconds = MIN_QUESTION_S
            if approached or (k and not step):
                seconds = max(seconds, (NEXT_SHARE if k else QUESTION_SHARE) * left)
            question = level_problem(self.raised, k, trial)
            verdict, plan = ask(self.counts, question, min(left, seconds))
            better = plan is not None and self.take(plan, k)
            if better and (k or approached):
                step, halving = 2 * step or STEP, False
            elif verdict == "none":
                high, step = (trial if trial > just_above else low), 0.0
            elif step:
                step = 0.0
            elif k:
                break
            elif approached and not halving:
                # What is far above the plan is refuted sooner.
                halving = True
            else:
                self._approach(high, partial_deadline(until, APPROACH_SHARE))
                halving, approached = False, True
        return high

    def _approach(self, high: float, until: float) -> None:
        """Raise the first level: a few GPUs at a time are planned anew for somewhat more than it is."""
        counts, gpus = self.counts, range(len(self.counts.gpus))
        plan, opened, failures, ease = self.raised.gpu_plan, FIRST_OPENED, 0, 0
        assert plan is not None
        least = INF
        while failures < MAX_FAILURES and time.perf_counter() < until:
            low = self.raised.levels[0]
            if low >= high * (1 - ROUNDING):
                return
            question = level_problem(self.raised, 0, min(high, low + max(STEP * low, HIGHER * (high - low))))
            chosen = self.draw.sample(gpus, min(opened, len(gpus)))
            begun = time.perf_counter()
            lacking, other = approach(counts, question, plan, chosen, min(APPROACH_S, until - begun))
            if lacking <= least:
                failures = 0 if lacking < least * (1 - STEP) else failures + 1
                plan, least = other, lacking
            else:
                failures += 1
            if self.take(other, 0):
                assert self.raised.gpu_plan is not None
                plan, least, failures = self.raised.gpu_plan, INF, 0
            elif len(chosen) == len(gpus):
                # The next question is the same, but for the prices.
                return
            # As many GPUs as are planned quickly.
            ease = ease + 1 if time.perf_counter() - begun < QUICK_S else ease - 2
            if ease >= 3 or ease <= -4:
                opened, ease = max(2, opened + (1 if ease > 0 else -1)), 0
