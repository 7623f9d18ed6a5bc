"""Shares that survive the loss of any GPU: tenants of equal slices change places, and no GPU has too much of any."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from torchsplit_core.planning.fractional.added_tenants.slice_classes import presence_shares
from torchsplit_core.planning.fractional.packing import equalise_shares
from torchsplit_core.planning.outcome.assignment import AssignedSlice, Assignment, build_planned_gpus
from torchsplit_core.planning.outcome.build import build_planned_models
from torchsplit_core.planning.outcome.resilience import rates_after_worst_failure, survives_failure
from torchsplit_core.planning.problem.build import Choice, Problem
from torchsplit_core.planning.tolerance import TOLERANCE


def made_to_survive(
    problem: Problem, assignment: Assignment, most_rps: dict[int, float]
) -> Assignment | None:
    """The same tenants, spread over GPUs where no hard co-location forbids it, with shares that survive; None without.

    The assignment is changed. `most_rps` then gets, by model that lost too much, what one GPU may have of it.
    """
    if not problem.colocation_index.hard_members:
        _spread(problem, assignment)
    request = problem.request
    minima = [spec.min_throughput_rps or 0.0 for spec in request.models]
    short: set[int] = set()
    while True:
        gpus = build_planned_gpus(request, assignment)
        left = rates_after_worst_failure(request, gpus)
        further = {model for model, rate in enumerate(left) if rate < minima[model] * (1 - TOLERANCE)} - short
        if not further:
            return assignment if survives_failure(request, gpus) else None
        planned = build_planned_models(problem, assignment)
        most_rps.update({model: planned[model].throughput_rps - minima[model] for model in further})
        short |= further
        if equalise_shares(problem, assignment, presence_shares(problem), short) is None:
            return None


def _spread(problem: Problem, assignment: Assignment) -> None:
    """Give tenants of equal slices other places: those with most of a model first, where least of it is."""
    number_of = {name: number for number, name in enumerate(assignment.layouts)}
    rates = np.zeros((len(problem.request.models), len(number_of)))
    total = np.zeros(len(rates))
    free: dict[tuple[int, str], dict[int, list[AssignedSlice]]] = defaultdict(lambda: defaultdict(list))
    contents: list[tuple[tuple[int, str], list[tuple[Choice, float]]]] = []
    for slice_ in assignment.slices:
        pool = slice_.group, slice_.profile
        free[pool][number_of[slice_.gpu_id]].append(slice_)
        contents.append((pool, slice_.tenants))
        for choice, share in slice_.tenants:
            total[choice.model] += share * choice.rate_rps
    parts = [
        [(choice.model, share * choice.rate_rps / total[choice.model]) for choice, share in tenants]
        for _, tenants in contents
    ]
    order = sorted(range(len(contents)), key=lambda n: -max((part for _, part in parts[n]), default=0.0))
    for number in order:
        pool, tenants = contents[number]
        gpus = np.array([gpu for gpu, slices in free[pool].items() if slices])
        most = np.zeros(len(gpus))
        for model, part in parts[number]:
            most = np.maximum(most, rates[model, gpus] + part)
        gpu = int(gpus[most.argmin()])
        free[pool][gpu].pop().tenants = tenants
        for model, part in parts[number]:
            rates[model, gpu] += part
