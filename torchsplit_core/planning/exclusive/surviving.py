"""Plans whose minima hold without any one GPU, by patterns that count equal GPUs together.

Patterns keep each minimum without the largest slice of a stage. Every plan that survives does, so their bound holds
for it. Spread so that no GPU has two instances of a stage, they survive. Where a GPU has more of a model than the model
can lose, patterns are searched again with as much more as it lacks, or with fewer equal slices for the model.
"""

from __future__ import annotations

import operator
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.planning.outcome.assignment import Assignment, build_planned_gpus
from torchsplit_core.planning.outcome.figures import level_values, planned_models_of
from torchsplit_core.planning.outcome.resilience import rates_after_worst_failure, survives_failure
from torchsplit_core.planning.patterns import LossLimits, PatternSolution, solve_patterns
from torchsplit_core.planning.problem.build import Problem
from torchsplit_core.planning.request.objective import goal_of
from torchsplit_core.planning.timing import partial_deadline
from torchsplit_core.planning.tolerance import TOLERANCE
from torchsplit_core.values import PlanRequest, Progress

FIRST_SHARE, REPAIR_SHARE, LAST_SHARE = 0.5, 0.45, 0.9
"""Parts of the time left for the first search by patterns, for each that repairs the plan before, and for the one after
a plan that survives, which goes on from there."""

CLEARLY = 1e-3
"""Relative distance from which a plan on the way is better: to spread and check each would cost some of the search."""

MOST_BESIDES = 0.25
"""Part of its minimum up to which a model gets more rather than other slices."""

MOST_SEARCHES = 12


@dataclass
class SurvivingPlan:
    """Counts whose proofs hold for the request, and a plan that survives, of these or other counts (None: no plan).

    `values`: of the plan at every level of the objective.
    """

    relaxed: PatternSolution
    assignment: Assignment | None = None
    values: Sequence[float] = ()

    def take_proofs(self, request: PlanRequest, solution: PatternSolution) -> None:
        """Take the proofs of counts that every plan of the request could have, if they say more."""
        old, new = self.relaxed, solution
        if new.status == "infeasible" or not old.bounds:
            self.relaxed = new
        elif new.bounds:
            tighter = goal_of(request).tightest_bound(old.bounds[0], new.bounds[0]) != old.bounds[0]
            if tighter or (new.bounds[0] == old.bounds[0] and new.proven > old.proven):
                self.relaxed = new

    def is_clearly_better(self, request: PlanRequest, value: float) -> bool:
        """Whether a plan of this value at the first level is worth its check."""
        goal = goal_of(request)
        factor = 1 - CLEARLY if goal.minimised else 1 + CLEARLY
        return self.assignment is None or goal.better((value,), (self.values[0] * factor,))

    def take(self, request: PlanRequest, assignment: Assignment) -> None:
        """Take the assignment if it survives and is better."""
        gpus = build_planned_gpus(request, assignment)
        if not survives_failure(request, gpus):
            return
        values = level_values(request, gpus, planned_models_of(request, gpus))
        if self.assignment is None or goal_of(request).better(values, self.values):
            self.assignment, self.values = assignment, values


def plan_surviving(
    request: PlanRequest, counted: Problem, deadline: float, progress: Progress
) -> SurvivingPlan | None:
    """A plan of `request` from patterns of the `counted` problem, which is the same without the loss of a GPU.

    None if patterns do not apply.
    """
    minima = tuple(spec.min_throughput_rps or 0.0 for spec in request.models)
    # Levels are mostly far above the minima: then no loss matters, and patterns without it are found sooner.
    limits = LossLimits(minima, (0.0,) * len(minima) if goal_of(request).fair else minima)
    surviving = SurvivingPlan(PatternSolution("timeout"))
    solution: PatternSolution | None = None

    def take_counts(level: float, counts: Callable[[], PatternSolution]) -> None:
        if surviving.is_clearly_better(request, level):
            assignment = counts().assign(counted)
            surviving.take(request, assignment)
            counted.report(level, lambda: build_planned_gpus(request, assignment))

    share = FIRST_SHARE
    for _ in range(MOST_SEARCHES):
        until = partial_deadline(deadline, share)
        solution = solve_patterns(
            counted, until, progress, loss=limits, before=solution, on_counts=take_counts
        )
        if solution is None:
            return None
        if not limits.most and all(map(operator.le, limits.least, minima)):
            surviving.take_proofs(request, solution)
        if solution.status not in ("optimal", "feasible"):
            break
        surviving.take(request, solution.assign(counted))
        assignment = solution.assign(counted, complete=False)
        left = rates_after_worst_failure(request, build_planned_gpus(request, assignment))
        short = [max(0.0, least * (1 - TOLERANCE) - rate) for least, rate in zip(minima, left, strict=True)]
        if solution.status == "optimal" and not any(short):
            break
        if share == LAST_SHARE or time.perf_counter() > deadline:
            break
        share = REPAIR_SHARE if any(short) else LAST_SHARE
        limits = _tighter_limits(limits, solution, counted, assignment, short)
    return surviving


def _tighter_limits(
    limits: LossLimits,
    solution: PatternSolution,
    counted: Problem,
    assignment: Assignment,
    short: Sequence[float],
) -> LossLimits:
    """Limits that rule out these counts for every model that is `short` of requests/s after the loss of a GPU.

    It keeps its minimum without its largest slice, then gets what it lacks besides. If that is much and its worst GPU
    has several equal slices of it, it may have only as many of them as GPUs offer such.
    """
    offers = Counter[tuple[int, str]]()
    for (group, number), count in solution.layouts.items():
        offers.update(
            {(group, profile): count for profile in counted.groups[group].layouts[number].usable_counts}
        )
    least, most = list(limits.least), dict(limits.most)
    for model in (index for index, lacking in enumerate(short) if lacking):
        if not least[model]:
            least[model] = limits.minima[model]
            continue
        on_gpu: dict[str, Counter[tuple[int, str]]] = {}
        rates: dict[str, float] = {}
        for slice_ in assignment.slices:
            for choice, _ in slice_.tenants:
                if choice.model == model:
                    on_gpu.setdefault(slice_.gpu_id, Counter())[slice_.group, slice_.profile] += 1
                    rates[slice_.gpu_id] = rates.get(slice_.gpu_id, 0.0) + choice.rate_rps
        worst = on_gpu[max(rates, key=rates.__getitem__)]
        several = [pool for pool, count in worst.items() if count > 1]
        if not several or short[model] <= MOST_BESIDES * limits.minima[model]:
            least[model] += short[model]
            continue
        for pool in several:
            in_all = sum(counts[pool] for counts in on_gpu.values())
            most[model, *pool] = min(in_all - 1, offers[pool])
    return replace(limits, least=tuple(least), most=most)
