"""A plan made without co-locations and without a spare GPU, dealt out so that it keeps both.

Equal GPUs leave it open which of them has which instance. Where the instances and layouts of the
plan can be dealt out with every pair on the same GPUs, and so that no GPU holds what a minimum cannot
spare, nothing of it is lost, and its proofs hold: what bounds the plans without these bounds those with them.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.planning.formulation.model import Formulation
from torchsplit_core.planning.formulation.solution import read_solution, separations_of
from torchsplit_core.planning.outcome.assignment import Assignment, assign_integer
from torchsplit_core.planning.patterns import PatternSolution
from torchsplit_core.planning.problem.build import Choice, Problem
from torchsplit_core.solver.pyomo_model import pyo


@dataclass(frozen=True)
class ColocatedAssignment:
    """The assignment, and the bytes of soft co-locations torn apart (the least for these instances)."""

    assignment: Assignment
    separations: float


def assign_colocated(
    formulation: Formulation, free: Problem, pattern_solution: PatternSolution, seconds: float
) -> ColocatedAssignment | None:
    """Deal the counts of the `free` problem out on a formulation that keeps more; None where none was found in time.

    Adds families dealt_layouts and dealt_instances to the model, so it is used for nothing else.
    """
    model, problem = formulation.model, formulation.problem
    free_group = {gpu: g for g, group in enumerate(free.groups) for gpu in group.gpu_ids}
    free_groups = [free_group[group.gpu_ids[0]] for group in problem.groups]
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
        # An instance stands on a slice where its model cannot be with its partners.
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


def _equivalence_key(choice: Choice, group: int) -> tuple[object, ...]:
    """What a choice is among equal GPUs, told apart or counted together."""
    return group, choice.case, choice.stage, choice.profile, choice.point


def _bytes_unit(formulation: Formulation) -> float:
    """The largest bytes per request, so that the objective's figures stay near 1."""
    return max(
        [1.0, *(colocation.bytes_per_request for colocation in formulation.problem.colocation_index.soft)]
    )
