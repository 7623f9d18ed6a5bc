"""A solver's answer as whole numbers, and what it is worth, reckoned without the solver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchsplit_core.planning.formulation.model import Formulation
from torchsplit_core.planning.request.ties import Member
from torchsplit_core.solver.pyomo_model import ModelSolution

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


def read_solution(built: Formulation, answer: ModelSolution) -> Solution:
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
        total += objective.separation_weight * apart_of(built, solution)
    return total


def apart_of(built: Formulation, solution: Solution) -> float:
    """Bytes of soft co-locations torn apart and bytes/s of routed ones that leave their GPU."""
    return separations_of(built, solution) + (0.0 if built.mode == "pooled" else _leaving(built, solution))


def _leaving(built: Formulation, solution: Solution) -> float:
    """Bytes/s that routed co-locations send between GPUs; each GPU is a group of its own."""
    total = 0.0
    for flow in built.problem.ties.flows:
        first, second = (_rates_there(built, member, solution) for member in (flow.first, flow.second))
        kept = sum(min(rate, second.get(g, 0.0)) for g, rate in first.items())
        total += flow.leaving(kept)
    return total


def _rates_there(built: Formulation, member: Member, solution: Solution) -> dict[int, float]:
    """By group the requests/s of a member: those of its stage, or of the slowest stage of its model."""
    found: dict[int, float] = {}
    for number, case in enumerate(built.problem.cases):
        stages = member.stages_of(case.model, case.variant, case.stages)
        there: list[dict[int, float]] = [{} for _ in stages]
        for stage, totals in zip(stages, there, strict=True):
            for use in built.stage_uses.get((number, stage), []):
                g, rate = built.uses[use].choice.group, _rate(built, use, solution.amounts.get(use, 0.0))
                totals[g] = totals.get(g, 0.0) + rate
        for g in set().union(*there):
            found[g] = found.get(g, 0.0) + min(totals.get(g, 0.0) for totals in there)
    return found


def separations_of(built: Formulation, solution: Solution) -> float:
    """Σ bytes_per_request over the GPUs where a soft co-location is torn apart."""
    if built.mode == "pooled":
        return 0.0
    ties = built.problem.ties
    if built.problem.colocated:
        return sum(
            count * ties.separated_bytes(present)
            for (g, number), count in solution.layouts.items()
            if (present := built.problem.groups[g].layouts[number].present) is not None
        )
    there: dict[int, frozenset[int]] = {}
    for use in solution.amounts:
        choice = built.uses[use].choice
        there[choice.group] = there.get(choice.group, frozenset()) | built.problem.members(choice)
    return sum(map(ties.separated_bytes, there.values()))


def _excess(built: Formulation, solution: Solution) -> float:
    if built.mode != "concrete":
        return sum(built.uses[use].choice.excess_gib * amount for use, amount in solution.amounts.items())
    held: dict[tuple[int, str, int | None], float] = {}
    for use in solution.amounts:
        choice = built.uses[use].choice
        key = (choice.group, choice.profile, built.uses[use].slot)
        held[key] = held.get(key, 0.0) + choice.memory_gib
    return sum(
        max(0.0, memory - built.problem.size_gib(group, profile))
        for (group, profile, _), memory in held.items()
    )
