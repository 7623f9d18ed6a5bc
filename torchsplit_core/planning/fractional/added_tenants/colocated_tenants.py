"""Shares on many GPUs with co-locations, or with the loss of a GPU to be survived."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from torchsplit_core.planning.exclusive.plan import ExclusiveResult
from torchsplit_core.planning.fractional.added_tenants.homes import share_homes
from torchsplit_core.planning.fractional.added_tenants.owners import (
    ADDED_SHARE,
    RESTS,
    as_fractional,
    cases_of,
    own_slices,
)
from torchsplit_core.planning.fractional.added_tenants.slice_classes import add_tenants
from torchsplit_core.planning.fractional.added_tenants.survival import made_to_survive
from torchsplit_core.planning.fractional.colocated_shares import ColocatedShares
from torchsplit_core.planning.fractional.relaxation import POOLED_SHARE, AggregatedShares, aggregate_shares
from torchsplit_core.planning.outcome.assignment import Assignment, build_planned_gpus
from torchsplit_core.planning.outcome.build import build_planned_models
from torchsplit_core.planning.patterns.colocated import hard_sets
from torchsplit_core.planning.problem.build import Problem, build_problem
from torchsplit_core.planning.request.objective import requires_resilience
from torchsplit_core.planning.timing import Stopwatch, partial_deadline

BOUND_S = 0.5
"""Least seconds for pooled shares: their bound is worth more than the last ones of a search."""

HOME_SHARE, HOME_S = 0.04, 0.4
"""Part of the remaining time for whole layouts of pooled shares that only give a bound and prices, and for those of
homes; and least seconds for the latter, on which the whole plan stands."""


def bring_together(
    problem: Problem, deadline: float, watch: Stopwatch
) -> tuple[AggregatedShares | None, ColocatedShares | None]:
    """The pooled shares without co-locations and the loss of a GPU, and a plan with both; else None."""
    request = problem.request
    with watch.searching():
        free = build_problem(
            replace(request, colocations=(), objective=replace(request.objective, survives=0))
        )
        hard = any(item.mode == "hard" for item in request.colocations)
        part = HOME_SHARE if hard else POOLED_SHARE
        until = max(partial_deadline(deadline, part), time.perf_counter() + BOUND_S)
        shares = aggregate_shares(free, until)
        if shares is None:
            return None, None
        if time.perf_counter() > deadline:
            return shares, None
        tied = replace(
            free,
            request=request,
            colocation_index=problem.colocation_index,
            on_incumbent=problem.on_incumbent,
        )
        start: Callable[[float], Assignment] = partial(own_slices, tied, shares)
        cases = {tied.choices[number].case for number in shares.amounts}
        if hard:
            sets = hard_sets(tied.colocation_index, len(request.models))
            until = min(deadline, max(partial_deadline(deadline, HOME_SHARE), time.perf_counter() + HOME_S))
            homes = None if sets is None else share_homes(tied, sets, shares, until)
            if homes is None:
                return shares, None
            start, cases = homes.own_slices, homes.cases
        until = partial_deadline(deadline, ADDED_SHARE)
        best: ColocatedShares | None = None
        most_rps: dict[int, float] = {}
        for rest in RESTS:
            if best is None or time.perf_counter() < until:
                shared = _with_tenants(tied, start(rest), cases, until, most_rps)
                best = max((item for item in (best, shared) if item), key=first_level, default=None)
        return shares, best


def share_whole(
    problem: Problem, whole: ExclusiveResult, deadline: float, watch: Stopwatch
) -> ColocatedShares | None:
    """Further tenants beside those of whole slices, which keep co-locations."""
    with watch.searching():
        assignment = None if whole.assignment is None else as_fractional(problem, whole.assignment)
        if assignment is None:
            return None
        until = partial_deadline(deadline, ADDED_SHARE)
        return _with_tenants(problem, assignment, cases_of(assignment), until, {})


def _with_tenants(
    problem: Problem,
    assignment: Assignment,
    cases: Collection[int],
    deadline: float,
    most_rps: dict[int, float],
) -> ColocatedShares | None:
    """These slices with further tenants, where the loss of a GPU is survived, if it has to be.

    `most_rps`: see `made_to_survive`; the next attempt heeds it.
    """
    added = add_tenants(problem, assignment, cases, deadline, most_rps)
    if added is not None and requires_resilience(problem.request):
        added = made_to_survive(problem, added, most_rps)
    if added is None:
        return None
    gpus = build_planned_gpus(problem.request, added)
    colocated = ColocatedShares(problem, added)
    problem.report(first_level(colocated), lambda: gpus)
    return colocated


def first_level(shares: ColocatedShares) -> float:
    """The level of its worst-served model."""
    return min(model.normalised for model in build_planned_models(shares.problem, shares.assignment))
