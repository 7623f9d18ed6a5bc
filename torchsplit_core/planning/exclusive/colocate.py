"""A plan made without co-locations, dealt out so that it keeps them.

Equal GPUs leave it open which of them has which instance. Where the instances and layouts of the
plan without co-locations can be dealt out with every pair on the same GPUs, nothing of it is
lost, and its proofs hold: what bounds the plans without co-locations bounds those with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyomo.environ as pyo

from torchsplit_core.planning.formulation.model import Formulation
from torchsplit_core.planning.formulation.solution import read_solution, separations_of
from torchsplit_core.planning.outcome.assignment import Assignment, assign_integer
from torchsplit_core.planning.patterns import Counted
from torchsplit_core.solver.pyomo_model import solve


@dataclass(frozen=True)
class Dealt:
    """The assignment, and the bytes of soft co-locations torn apart (the least for these instances)."""

    assignment: Assignment
    separations: float


def deal(built: Formulation, counted: Counted, seconds: float) -> Dealt | None:
    """Deal the counts out on a formulation with presences; None where none was found in time.

    Adds families dealt_layouts and dealt_instances to the model, so it is used for nothing else.
    """
    model, problem = built.model, built.problem
    model.dealt_layouts = pyo.ConstraintList()
    model.dealt_instances = pyo.ConstraintList()
    wanted: dict[tuple[int, tuple[str, ...]], int] = {}
    for (group, number), count in counted.layouts.items():
        key = (group, counted.profiles[group, number])
        wanted[key] = wanted.get(key, 0) + count
    columns: dict[tuple[int, tuple[str, ...]], list[int]] = {}
    for g, group_of in enumerate(problem.groups):
        for number, layout in enumerate(group_of.layouts):
            columns.setdefault((g, layout.profiles), []).append(number)
    for (g, profiles), numbers in columns.items():
        total = sum(model.y[g, number] for number in numbers)
        model.dealt_layouts.add(total == wanted.get((g, profiles), 0))
    index_of = {id(choice): number for number, choice in enumerate(problem.choices)}
    uses: dict[int, list[int]] = {}
    for number, use in enumerate(built.uses):
        uses.setdefault(index_of[id(use.choice)], []).append(number)
    if not counted.amounts.keys() <= uses.keys() or not wanted.keys() <= columns.keys():
        # An instance stands on a slice where its model cannot be with its partners.
        return None
    for index, members in uses.items():
        total = sum(model.x[use] for use in members)
        model.dealt_instances.add(total == counted.amounts.get(index, 0))
    apart = built.separations()
    model.no_cost = pyo.Var(bounds=(0, 0))
    model.deal_objective = pyo.Objective(expr=apart / _unit(built) + model.no_cost)
    answer = solve(model, seconds)
    if answer.status not in ("optimal", "feasible"):
        return None
    solution = read_solution(built, answer)
    return Dealt(assign_integer(built, solution), separations_of(built, solution))


def _unit(built: Formulation) -> float:
    """The largest bytes per request, so that the objective's figures stay near 1."""
    return max([1.0, *(tie.bytes_per_request for tie in built.problem.ties.soft)])
