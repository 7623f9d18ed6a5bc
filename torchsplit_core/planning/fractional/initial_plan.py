"""The quick fractional plan, the fairest of three: pooled shares packed on slices in a chain, their whole slices with
further tenants on the others, and a plan of whole slices with further tenants."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from torchsplit_core.planning.fractional.added_tenants.owners import (
    ADDED_SHARE,
    RESTS,
    as_fractional,
    cases_of,
    own_slices,
    second_tenant_models,
)
from torchsplit_core.planning.fractional.added_tenants.slice_classes import add_tenants
from torchsplit_core.planning.fractional.packing import pack_shares
from torchsplit_core.planning.fractional.relaxation import AggregatedShares
from torchsplit_core.planning.outcome.assignment import Assignment, build_planned_gpus
from torchsplit_core.planning.outcome.build import build_plan_outcome, build_planned_models, keeps_minima
from torchsplit_core.planning.patterns import solve_patterns
from torchsplit_core.planning.problem.build import Problem
from torchsplit_core.planning.request.objective import first_level_objective, level_count
from torchsplit_core.planning.timing import Stopwatch, partial_deadline
from torchsplit_core.planning.tolerance import TOLERANCE
from torchsplit_core.values import PlanOutcome, Progress

GOOD_GAP = 1e-3
"""Relative distance from the pooled bound up to which whole slices are not tried beside a packed plan."""

SECOND_TENANTS_S = 0.2
"""Least remaining seconds for trying whole slices beside a packed plan."""

HOLD_BACK_SHARES = (0.0, 0.01, 0.02, 0.04)
"""Parts by which models that can be second tenants are held back, one after the other."""

FIRST_SHARE = 0.5
"""Part of the time for the first of them: where it is far from the best whole slices, so are the others."""


def initial_plan(
    problem: Problem,
    exclusive: Callable[[], Problem],
    shares: AggregatedShares,
    watch: Stopwatch,
    deadline: float,
    progress: Progress,
) -> PlanOutcome | None:
    """The fairer of the packed pooled shares and whole slices with second tenants; None if there is neither.

    `exclusive` gives the problem with whole slices; `watch` already has the time of the shares.
    """
    details: dict[str, str | int | float] = {"method": "pooled", "pooled_value": shares.bound}
    amounts = [(problem.choices[number], part) for number, part in sorted(shares.amounts.items())]
    candidates: list[tuple[list[float], Assignment]] = []

    def add(name: str, assignment: Assignment | None) -> None:
        values = _sorted_levels(problem, assignment)
        if assignment is not None and values is not None:
            candidates.append((values, assignment))
            details[name] = max(values[0], float(details.get(name, 0.0)))
            problem.report(values[0], lambda: build_planned_gpus(problem.request, assignment))

    with watch.searching():
        packed = pack_shares(problem, shares.layouts, amounts)
    add("packed_value", packed)

    def is_open() -> bool:
        good = any(
            values[min(shares.level, len(values) - 1)] >= shares.bound * (1 - GOOD_GAP)
            for values, _ in candidates
        )
        return not candidates or (not good and deadline - time.perf_counter() > SECOND_TENANTS_S)

    until, cases = partial_deadline(deadline, ADDED_SHARE), {choice.case for choice, _ in amounts}
    for rest in RESTS:
        if not is_open() or time.perf_counter() > until:
            break
        with watch.searching():
            added = add_tenants(problem, own_slices(problem, shares, rest), cases, until)
        add("added_value", added)
    if is_open():
        until = partial_deadline(deadline, 0.5)
        for with_second in _with_second_tenants(problem, exclusive(), shares, watch, until, progress):
            add("guests_value", with_second)
    if not candidates:
        return None
    values, assignment = max(candidates, key=lambda item: item[0])
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
    return build_plan_outcome(
        problem,
        assignment,
        proven=proven,
        tie_break_proven=True,
        bounds=bounds,
        statistics=watch.statistics(details),
    )


def _sorted_levels(problem: Problem, assignment: Assignment | None) -> list[float] | None:
    """The sorted levels of an assignment; None without one, or if it misses a minimum behind its link."""
    models = () if assignment is None else build_planned_models(problem, assignment)
    return sorted(m.normalised for m in models) if models and keeps_minima(problem, models) else None


def _with_second_tenants(
    problem: Problem,
    exclusive: Problem,
    shares: AggregatedShares,
    watch: Stopwatch,
    deadline: float,
    progress: Progress,
) -> Iterator[Assignment | None]:
    """Whole slices, counted by patterns, with second tenants on them.

    Models that fit beside others are held back a little more each time: whole slices then give more to models that must
    be alone, and second tenants get it back in fractions.
    """
    request = exclusive.request
    first_level_problem = replace(
        exclusive, request=replace(request, objective=first_level_objective(request.objective))
    )
    flexible = second_tenant_models(problem)
    for number, part in enumerate(HOLD_BACK_SHARES):
        until = partial_deadline(deadline, 1 / (len(HOLD_BACK_SHARES) - number) if number else FIRST_SHARE)
        if number and (not flexible or time.perf_counter() > deadline):
            return
        with watch.searching():
            pattern_solution = solve_patterns(
                first_level_problem, until, progress, dict.fromkeys(flexible, 1 - part)
            )
        # From here on levels on the way are not those of the request.
        first_level_problem = replace(first_level_problem, on_incumbent=None)
        if pattern_solution is not None and pattern_solution.status in ("optimal", "feasible"):
            assignment = pattern_solution.assign(first_level_problem)
            with watch.searching():
                fractional = as_fractional(problem, assignment)
                added = None
                if fractional is not None:
                    added = add_tenants(problem, fractional, cases_of(fractional), deadline)
            yield added
