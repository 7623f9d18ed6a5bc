"""Assigns a plan made without co-locations and spare capacity to GPUs so that it keeps both.

Equal GPUs are interchangeable. If instances and layouts can be distributed so that co-located members share GPUs and no
GPU holds what a minimum cannot spare, nothing is lost and the proofs hold: a bound of plans without these constraints
bounds those with them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torchsplit_core.planning.formulation.model import Formulation
from torchsplit_core.planning.formulation.solution import read_solution, separations_of
from torchsplit_core.planning.outcome.assignment import Assignment, assign_integer
from torchsplit_core.planning.patterns import PatternSolution
from torchsplit_core.planning.problem.build import Choice, Problem
from torchsplit_core.solver.pyomo_model import pyo


@dataclass(frozen=True)
class ColocatedAssignment:
    """The assignment, and the bytes of soft co-locations that it separates (the least for these instances)."""

    assignment: Assignment
    separations: float


def assign_colocated(
    formulation: Formulation, free: Problem, pattern_solution: PatternSolution, seconds: float
) -> ColocatedAssignment | None:
    """Distribute the counts of the `free` problem by a stricter formulation; None if no way was found in time.

    Adds constraints dealt_layouts and dealt_instances to the model, which serves nothing else afterwards.
    """
    model, problem = formulation.model, formulation.problem
    free_groups = _free_groups(problem, free)
    model.dealt_layouts = pyo.ConstraintList()
    model.dealt_instances = pyo.ConstraintList()
    layout_counts: dict[tuple[int, tuple[str, ...]], int] = {}
    for (group, number), count in pattern_solution.layouts.items():
        key = (group, pattern_solution.profiles[group, number])
        layout_counts[key] = layout_counts.get(key, 0) + count
    columns: dict[tuple[int, tuple[str, ...]], list[tuple[int, int]]] = {}
    for g, group_of in enumerate(problem.groups):
        for number, layout in enumerate(group_of.layouts):
            columns.setdefault((free_groups[g], layout.profiles), []).append((g, number))
    for key, members in columns.items():
        total = sum(model.y[member] for member in members)
        model.dealt_layouts.add(total == layout_counts.get(key, 0))
    amounts = {
        _equivalence_key(free.choices[i], free.choices[i].group): n
        for i, n in pattern_solution.amounts.items()
    }
    uses: dict[tuple[object, ...], list[int]] = {}
    for number, use in enumerate(formulation.slice_uses):
        uses.setdefault(_equivalence_key(use.choice, free_groups[use.choice.group]), []).append(number)
    if not amounts.keys() <= uses.keys() or not layout_counts.keys() <= columns.keys():
        # An instance is on a slice where its model cannot be with its co-located members.
        return None
    for use_key, equal_uses in uses.items():
        model.dealt_instances.add(sum(model.x[use] for use in equal_uses) == amounts.get(use_key, 0))
    apart = formulation.separations()
    model.no_cost = pyo.Var(bounds=(0, 0))
    model.deal_objective = pyo.Objective(expr=apart / _bytes_unit(formulation) + model.no_cost)
    result = formulation.solve(seconds)
    if result.status not in ("optimal", "feasible"):
        return None
    solution = read_solution(formulation, result)
    return ColocatedAssignment(assign_integer(formulation, solution), separations_of(formulation, solution))


def _free_groups(problem: Problem, free: Problem) -> list[int]:
    """For each group the one of the `free` problem that counts its GPUs."""
    of_gpu = {gpu: g for g, group in enumerate(free.groups) if not group.parts for gpu in group.gpu_ids}
    of_parts = {frozenset(group.parts): g for g, group in enumerate(free.groups) if group.parts}
    counted: list[int] = []
    for group in problem.groups:
        if group.parts:
            taken: Counter[int] = Counter()
            for part, count in group.parts:
                taken[counted[part]] += count
            counted.append(of_parts[frozenset(taken.items())])
        else:
            counted.append(of_gpu[group.gpu_ids[0]])
    return counted


def _equivalence_key(choice: Choice, group: int) -> tuple[object, ...]:
    """What identifies a choice among equal GPUs, numbered or counted."""
    return group, choice.case, choice.stage, choice.profile, choice.point


def _bytes_unit(formulation: Formulation) -> float:
    """The largest bytes per request, so that the objective's figures stay near 1."""
    return max(
        [1.0, *(colocation.bytes_per_request for colocation in formulation.problem.colocation_index.soft)]
    )
