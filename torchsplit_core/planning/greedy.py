"""A fair plan in a fraction of a second, for when the search has no good one in its time.

Slices go, most useful first, to the model that is worst off; the layouts are improved one GPU
at a time while that raises the worst-served models. Nothing is proven here: the plan is
verified like any other and carries the bounds of the search.
"""

from __future__ import annotations

import time
from collections import Counter

from torchsplit_core.planning.formulation import Formulation
from torchsplit_core.planning.leximin import Search, level_values, no_worse, penalised, upper_rates
from torchsplit_core.planning.solution import Solution, normalised, rates_of

BUDGET_S = 0.4
"""Seconds for the improvement of the layouts; the first plan stands in milliseconds."""


def improve(built: Formulation, found: Search) -> None:
    """Put the greedy plan in the place of a missing or worse one; what the search has proven stays true."""
    request = built.problem.request
    applies = (
        request.objective.kind in ("leximin", "max_min")
        and built.mode == "exclusive"
        and not request.colocations
        and not penalised(built)
    )
    if not applies or found.status not in ("timeout", "feasible"):
        return
    solution = _construct(built, time.perf_counter() + BUDGET_S)
    if solution is None:
        return
    values = level_values(built, solution)
    count = len(values)
    if found.best is not None:
        before = level_values(built, found.best)
        if no_worse(before, values, count):
            return
    ceilings = sorted(normalised(built, tuple(upper_rates(built))))
    known = [*found.bounds, *ceilings[len(found.bounds) :]][: found.stages]
    found.best, found.values, found.status = solution, values, "feasible"
    found.bounds = [
        max(ceiling if bound is None else bound, value)
        for bound, value, ceiling in zip(known, values, ceilings, strict=False)
    ]


def _construct(built: Formulation, deadline: float) -> Solution | None:
    """The best plan of the local search; None where a model's minimum is missed."""
    problem, request = built.problem, built.problem.request
    units = [spec.weight * spec.demand_rps for spec in request.models]
    whole = {(case.model, case.variant) for case in problem.cases if case.stages == 1 and not case.levels}
    best_use: dict[tuple[int, str], dict[int, tuple[float, int]]] = {}
    for number, use in enumerate(built.uses):
        choice = use.choice
        if (choice.model, choice.variant) not in whole or choice.excess_gib > 0:
            continue
        worth = choice.point.throughput_rps / units[choice.model]
        pool = best_use.setdefault((choice.group, choice.profile), {})
        if worth > pool.get(choice.model, (0.0, 0))[0]:
            pool[choice.model] = (worth, number)
    order = sorted(best_use, key=lambda key: -sum(worth for worth, _ in best_use[key].values()))
    chosen = [0] * sum(len(group.gpu_ids) for group in problem.groups)
    group_of = [number for number, group in enumerate(problem.groups) for _ in group.gpu_ids]

    def deal(layouts: list[int]) -> tuple[list[float], Counter[int]]:
        """Every slice to the worst-served model that it serves; the sorted r and the uses."""
        slices: Counter[tuple[int, str]] = Counter()
        for gpu, layout in enumerate(layouts):
            group = group_of[gpu]
            for profile, count in problem.groups[group].layouts[layout].useful.items():
                slices[group, profile] += count
        served = [0.0] * len(units)
        amounts: Counter[int] = Counter()
        for key in order:
            for _ in range(slices[key]):
                model = min(best_use[key], key=lambda index: (served[index], index))
                worth, use = best_use[key][model]
                served[model] += worth
                amounts[use] += 1
        return sorted(served), amounts

    if not chosen or not best_use or any(not group.layouts for group in problem.groups):
        return None
    most = max(len(group.layouts) for group in problem.groups)
    starts = [[min(layout, len(problem.groups[g].layouts) - 1) for g in group_of] for layout in range(most)]
    best, layouts = max(((deal(start)[0], start) for start in starts), key=lambda item: item[0])
    improved = True
    while improved and time.perf_counter() < deadline:
        improved = False
        for gpu, group in enumerate(group_of):
            for layout in range(len(problem.groups[group].layouts)):
                trial = [*layouts[:gpu], layout, *layouts[gpu + 1 :]]
                value = deal(trial)[0]
                if value > best:
                    best, layouts, improved = value, trial, True
            if time.perf_counter() > deadline:
                break
    amounts = {use: float(count) for use, count in deal(layouts)[1].items()}
    rates = rates_of(built, amounts)
    for spec, rate in zip(request.models, rates, strict=True):
        if rate < (spec.min_throughput_rps or 0.0):
            return None
    return Solution(dict(Counter(zip(group_of, layouts, strict=True))), amounts, rates, {})
