"""A solver's solution as whole numbers, and its value computed without the solver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchsplit_core.planning.formulation.model import Formulation
from torchsplit_core.planning.request.colocation_index import ColocationMember
from torchsplit_core.solver.pyomo_model import ModelSolution

NEGLIGIBLE_SHARE = 1e-7
"""Smaller shares count as none."""


@dataclass(frozen=True)
class Solution:
    """Layout counts by (group, layout) and instances (or shares) by use, with the throughputs they give.

    `values` are the solver's own, by the id of the Pyomo variable.
    """

    layouts: Mapping[tuple[int, int], int]
    amounts: Mapping[int, float]
    rates: tuple[float, ...]
    values: Mapping[int, float]


def read_solution(formulation: Formulation, result: ModelSolution) -> Solution:
    """Round the integer variables and compute every model's throughput from its points."""
    model = formulation.model
    layouts = {}
    for key in model.y:
        count = round(result.values.get(id(model.y[key]), 0.0))
        if count:
            layouts[key] = count
    amounts: dict[int, float] = {}
    for use in model.x:
        value = result.values.get(id(model.x[use]), 0.0)
        if formulation.mode == "exclusive":
            value = float(round(value))
        elif formulation.mode == "concrete" and round(result.values.get(id(model.b[use]), 0.0)) == 0:
            value = 0.0
        if value > NEGLIGIBLE_SHARE:
            amounts[use] = value
    return Solution(layouts, amounts, rates_of(formulation, amounts), result.values)


def rates_of(formulation: Formulation, amounts: Mapping[int, float]) -> tuple[float, ...]:
    """Throughput of each model: the slowest stage of each variant in use, summed."""
    rates = [0.0] * len(formulation.problem.request.models)
    for number, case in enumerate(formulation.problem.cases):
        least = min(
            sum(
                _rate(formulation, use, amounts.get(use, 0.0))
                for use in formulation.stage_uses.get((number, stage), [])
            )
            for stage in range(case.stages)
        )
        rates[case.model] += least
    return tuple(rates)


def _rate(formulation: Formulation, use: int, amount: float) -> float:
    """The requests/s of a use: an instance is limited by its link, a pool is not."""
    choice = formulation.slice_uses[use].choice
    rate = amount * choice.rate_rps
    return min(rate, choice.cap_rps) if formulation.mode == "concrete" else rate


def penalty_of(formulation: Formulation, solution: Solution) -> float:
    """What the objective pays in this solution (Formulation.penalty), from the whole numbers."""
    objective = formulation.problem.request.objective
    total = 0.0
    if objective.memory_violation_penalty:
        total += objective.memory_violation_penalty * _excess(formulation, solution)
    if objective.separation_weight > 0:
        total += objective.separation_weight * traffic_of(formulation, solution)
    return total


def traffic_of(formulation: Formulation, solution: Solution) -> float:
    """Bytes of separated soft co-locations and bytes/s of routed ones that leave their GPU."""
    return separations_of(formulation, solution) + (
        0.0 if formulation.mode == "pooled" else _cross_gpu_bytes(formulation, solution)
    )


def _cross_gpu_bytes(formulation: Formulation, solution: Solution) -> float:
    """Bytes/s that routed co-locations send between GPUs; each GPU is a group."""
    total = 0.0
    for flow in formulation.problem.colocation_index.flows:
        first, second = (_member_rates(formulation, member, solution) for member in (flow.first, flow.second))
        local_rps = sum(min(rate, second.get(g, 0.0)) for g, rate in first.items())
        total += flow.cross_gpu_bytes(local_rps)
    return total


def _member_rates(formulation: Formulation, member: ColocationMember, solution: Solution) -> dict[int, float]:
    """By group the requests/s of a member: those of its stage, or of the slowest stage of its model."""
    by_group: dict[int, float] = {}
    for number, case in enumerate(formulation.problem.cases):
        stages = member.stages_of(case.model, case.variant, case.stages)
        stage_rates: list[dict[int, float]] = [{} for _ in stages]
        for stage, totals in zip(stages, stage_rates, strict=True):
            for use in formulation.stage_uses.get((number, stage), []):
                g, rate = (
                    formulation.slice_uses[use].choice.group,
                    _rate(formulation, use, solution.amounts.get(use, 0.0)),
                )
                totals[g] = totals.get(g, 0.0) + rate
        for g in set().union(*stage_rates):
            by_group[g] = by_group.get(g, 0.0) + min(totals.get(g, 0.0) for totals in stage_rates)
    return by_group


def separations_of(formulation: Formulation, solution: Solution) -> float:
    """Σ bytes_per_request over the GPUs on which a soft co-location is separated."""
    if formulation.mode == "pooled":
        return 0.0
    colocation_index = formulation.problem.colocation_index
    if formulation.problem.colocated:
        return sum(
            count * colocation_index.separated_bytes(present)
            for (g, number), count in solution.layouts.items()
            if (present := formulation.problem.groups[g].layouts[number].present_members) is not None
        )
    members_by_group: dict[int, frozenset[int]] = {}
    for use in solution.amounts:
        choice = formulation.slice_uses[use].choice
        members_by_group[choice.group] = members_by_group.get(
            choice.group, frozenset()
        ) | formulation.problem.colocation_members(choice)
    return sum(map(colocation_index.separated_bytes, members_by_group.values()))


def _excess(formulation: Formulation, solution: Solution) -> float:
    if formulation.mode != "concrete":
        return sum(
            formulation.slice_uses[use].choice.excess_gib * amount for use, amount in solution.amounts.items()
        )
    slice_memory: dict[tuple[int, str, int | None], float] = {}
    for use in solution.amounts:
        choice = formulation.slice_uses[use].choice
        key = (choice.group, choice.profile, formulation.slice_uses[use].slot)
        slice_memory[key] = slice_memory.get(key, 0.0) + choice.memory_gib
    return sum(
        max(0.0, memory - formulation.problem.slice_memory_gib(group, profile))
        for (group, profile, _), memory in slice_memory.items()
    )
