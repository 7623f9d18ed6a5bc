"""The quick fractional plan: pooled shares on slices, or whole slices with second tenants, whichever is fairer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from torchsplit_core.planning.fractional.pack import pack
from torchsplit_core.planning.fractional.pooled import PooledShares
from torchsplit_core.planning.fractional.second_tenants import add_second_tenants, can_be_second, restated
from torchsplit_core.planning.outcome.assignment import Assignment, assign_counts
from torchsplit_core.planning.outcome.build import keeps_minima, plan_outcome, planned_models
from torchsplit_core.planning.patterns import count_patterns
from torchsplit_core.planning.problem.build import Problem
from torchsplit_core.planning.request.objective import first_level, level_count
from torchsplit_core.planning.timing import Stopwatch, part_of
from torchsplit_core.planning.tolerance import TOLERANCE
from torchsplit_core.values import PlanOutcome, Progress

GOOD = 1e-3
"""Relative distance from the pooled bound at which a packed plan is not improved by whole slices."""

SECOND_TENANTS_S = 0.2
"""Seconds that must be left for whole slices to be tried beside a packed plan."""

HELD_BACK = (0.0, 0.01, 0.02, 0.04)
"""Parts by which models that can be second tenants hold back, one after the other."""


def first_plan(
    problem: Problem,
    exclusive: Callable[[], Problem],
    shares: PooledShares,
    watch: Stopwatch,
    deadline: float,
    progress: Progress,
) -> PlanOutcome | None:
    """The better of the pooled shares, packed, and whole slices with second tenants; None where there is neither.

    `exclusive` gives the problem with whole slices; `watch` has the time of the shares already.
    """
    details: dict[str, str | int | float] = {"method": "pooled", "pooled_value": shares.bound}
    amounts = [(problem.choices[number], part) for number, part in sorted(shares.amounts.items())]
    with watch.searching():
        assignments = [pack(problem, shares.layouts, amounts)]
    packed = _ranked(problem, assignments[0])
    good = packed is not None and packed[min(shares.level, len(packed) - 1)] >= shares.bound * (1 - GOOD)
    if packed is None or (not good and deadline - time.perf_counter() > SECOND_TENANTS_S):
        assignments += _with_second_tenants(
            problem, exclusive(), shares, watch, part_of(deadline, 0.5), progress
        )
    found = [
        (values, assignment)
        for assignment in assignments
        if (values := _ranked(problem, assignment)) is not None
    ]
    if not found:
        return None
    for values, assignment in found:
        name = "packed_value" if assignment is assignments[0] else "guests_value"
        details[name] = max(values[0], float(details.get(name, 0.0)))
    values, assignment = max(found, key=lambda item: item[0])
    assert assignment is not None
    count = level_count(problem.request)
    caps = sorted(
        1.0 / spec.weight if spec.cap_at_demand else float("inf") for spec in problem.request.models
    )
    bounds = [*caps[: shares.level], shares.bound][:count]
    proven = 0
    while proven < count:
        if proven == len(bounds):
            bounds.append(shares.bound_after(proven, values[shares.level]))
        if values[proven] < bounds[proven] * (1 - TOLERANCE):
            break
        proven += 1
    return plan_outcome(
        problem, assignment, proven=proven, settled=True, bounds=bounds, statistics=watch.statistics(details)
    )


def _ranked(problem: Problem, assignment: Assignment | None) -> list[float] | None:
    """The sorted levels of an assignment; None where there is none, or it misses a minimum behind its link."""
    models = () if assignment is None else planned_models(problem, assignment)
    return sorted(m.normalised for m in models) if models and keeps_minima(problem, models) else None


def _with_second_tenants(
    problem: Problem,
    exclusive: Problem,
    shares: PooledShares,
    watch: Stopwatch,
    deadline: float,
    progress: Progress,
) -> Iterator[Assignment | None]:
    """Whole slices, counted by patterns, with second tenants on them.

    Models that fit beside others are asked to hold back a little more each time: what whole
    slices then give to those that must be alone, second tenants get back in fractions.
    """
    asked = exclusive.request
    alone = replace(exclusive, request=replace(asked, objective=first_level(asked.objective)))
    flexible = can_be_second(problem)
    for number, part in enumerate(HELD_BACK):
        until = part_of(deadline, 1 / (len(HELD_BACK) - number))
        if number and (not flexible or time.perf_counter() > deadline):
            return
        with watch.searching():
            counted = count_patterns(alone, until, progress, dict.fromkeys(flexible, 1 - part))
        if counted is not None and counted.status in ("optimal", "feasible"):
            amounts = [(alone.choices[index], count) for index, count in sorted(counted.amounts.items())]
            assignment = assign_counts(alone, counted.layouts, amounts)
            with watch.searching():
                known = restated(problem, assignment)
                loosened = None if known is None else add_second_tenants(problem, known, shares.prices)
            yield loosened
