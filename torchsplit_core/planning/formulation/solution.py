"""A solver's answer as whole numbers, and what it is worth, reckoned without the solver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchsplit_core.planning.formulation.model import Formulation
from torchsplit_core.planning.problem.colocation_sets import separated_bytes
from torchsplit_core.solver.pyomo_model import Answer

NOTHING = 1e-7
"""A share below this is none."""


@dataclass(frozen=True)
class Solution:
    """Layout counts by (group, layout) and instances (or shares) by use, with the throughputs they give.

    `values` are the solver's own, by the id of the Pyomo variable.
    """

    layouts: Mapping[tuple[int, int], int]
    amounts: Mapping[int, float]
    rates: tuple[float, ...]
    values: Mapping[int, float]


def read_solution(built: Formulation, answer: Answer) -> Solution:
    """Round what is whole and reckon every model's throughput from the points themselves."""
    model = built.model
    layouts = {}
    for key in model.y:
        count = round(answer.values.get(id(model.y[key]), 0.0))
        if count:
            layouts[key] = count
    amounts: dict[int, float] = {}
    for use in model.x:
        value = answer.values.get(id(model.x[use]), 0.0)
        if built.mode == "exclusive":
            value = float(round(value))
        elif built.mode == "concrete" and round(answer.values.get(id(model.b[use]), 0.0)) == 0:
            value = 0.0
        if value > NOTHING:
            amounts[use] = value
    return Solution(layouts, amounts, rates_of(built, amounts), answer.values)


def rates_of(built: Formulation, amounts: Mapping[int, float]) -> tuple[float, ...]:
    """Throughput of each model: over its variants in use, the least stage of each."""
    rates = [0.0] * len(built.problem.request.models)
    for number, case in enumerate(built.problem.cases):
        least = min(
            sum(_rate(built, use, amounts.get(use, 0.0)) for use in built.stage_uses.get((number, stage), []))
            for stage in range(case.stages)
        )
        rates[case.model] += least
    return tuple(rates)


def _rate(built: Formulation, use: int, amount: float) -> float:
    """The requests/s of a use: one that is an instance has no more than its link lets it have, a pool of them may."""
    choice = built.uses[use].choice
    rate = amount * choice.rate_rps
    return min(rate, choice.cap_rps) if built.mode == "concrete" else rate


def penalty_of(built: Formulation, solution: Solution) -> float:
    """What the objective pays in this solution (see Formulation.penalty), from the whole numbers."""
    objective = built.problem.request.objective
    total = 0.0
    if objective.memory_violation_penalty:
        total += objective.memory_violation_penalty * _excess(built, solution)
    if objective.separation_weight > 0:
        total += objective.separation_weight * separations_of(built, solution)
    return total


def separations_of(built: Formulation, solution: Solution) -> float:
    """Σ bytes_per_request over the GPUs where a soft co-location is torn apart."""
    if built.mode == "pooled":
        return 0.0
    if built.problem.colocated:
        return sum(
            count * separated_bytes(built.problem.request, present)
            for (g, number), count in solution.layouts.items()
            if (present := built.problem.groups[g].layouts[number].present) is not None
        )
    names = [spec.name for spec in built.problem.request.models]
    there: dict[int, set[str]] = {}
    for use in solution.amounts:
        choice = built.uses[use].choice
        there.setdefault(choice.group, set()).add(names[choice.model])
    total = 0.0
    for item in built.problem.request.colocations:
        if item.mode == "soft":
            wanted = set(item.models)
            total += item.bytes_per_request * sum(
                0 < len(wanted & here) < len(wanted) for here in there.values()
            )
    return total


def _excess(built: Formulation, solution: Solution) -> float:
    if built.mode != "concrete":
        return sum(built.uses[use].choice.excess_gib * amount for use, amount in solution.amounts.items())
    held: dict[tuple[int, str, int | None], float] = {}
    for use in solution.amounts:
        choice = built.uses[use].choice
        key = (choice.group, choice.profile, built.uses[use].slot)
        held[key] = held.get(key, 0.0) + choice.memory_gib
    capacity = built.problem.capacity_gib
    return sum(
        max(0.0, memory - capacity[built.problem.groups[group].type, profile])
        for (group, profile, _), memory in held.items()
    )
