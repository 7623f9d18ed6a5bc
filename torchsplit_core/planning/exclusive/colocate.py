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
from torchsplit_core.planning.patterns import Counted
from torchsplit_core.planning.problem.build import Choice, Problem
from torchsplit_core.solver.pyomo_model import pyo


@dataclass(frozen=True)
class Dealt:
    """The assignment, and the bytes of soft co-locations torn apart (the least for these instances)."""

    assignment: Assignment
    separations: float


def deal(built: Formulation, free: Problem, counted: Counted, seconds: float) -> Dealt | None:
    """Deal the counts of the `free` problem out on a formulation that keeps more; None where none was found in time.

    Adds families dealt_layouts and dealt_instances to the model, so it is used for nothing else.
    """
    model, problem = built.model, built.problem
    owner = {gpu: g for g, group in enumerate(free.groups) for gpu in group.gpu_ids}
    bucket = [owner[group.gpu_ids[0]] for group in problem.groups]
    model.dealt_layouts = pyo.ConstraintList()
    model.dealt_instances = pyo.ConstraintList()
    wanted: dict[tuple[int, tuple[str, ...]], int] = {}
    for (group, number), count in counted.layouts.items():
        key = (group, counted.profiles[group, number])
        wanted[key] = wanted.get(key, 0) + count
    columns: dict[tuple[int, tuple[str, ...]], list[tuple[int, int]]] = {}
    for g, group_of in enumerate(problem.groups):
        for number, layout in enumerate(group_of.layouts):
            columns.setdefault((bucket[g], layout.profiles), []).append((g, number))
    for key, members in columns.items():
        total = sum(model.y[member] for member in members)
        model.dealt_layouts.add(total == wanted.get(key, 0))
    amounts = {_place(free.choices[i], free.choices[i].group): n for i, n in counted.amounts.items()}
    uses: dict[tuple[object, ...], list[int]] = {}
    for number, use in enumerate(built.uses):
        uses.setdefault(_place(use.choice, bucket[use.choice.group]), []).append(number)
    if not amounts.keys() <= uses.keys() or not wanted.keys() <= columns.keys():
        # An instance stands on a slice where its model cannot be with its partners.
        return None
    for place, there in uses.items():
        model.dealt_instances.add(sum(model.x[use] for use in there) == amounts.get(place, 0))
    apart = built.separations()
    model.no_cost = pyo.Var(bounds=(0, 0))
    model.deal_objective = pyo.Objective(expr=apart / _unit(built) + model.no_cost)
    answer = built.solve(seconds)
    if answer.status not in ("optimal", "feasible"):
        return None
    solution = read_solution(built, answer)
    return Dealt(assign_integer(built, solution), separations_of(built, solution))


def _place(choice: Choice, bucket: int) -> tuple[object, ...]:
    """What a choice is among equal GPUs, told apart or counted together."""
    return bucket, choice.case, choice.stage, choice.profile, choice.point


def _unit(built: Formulation) -> float:
    """The largest bytes per request, so that the objective's figures stay near 1."""
    return max([1.0, *(tie.bytes_per_request for tie in built.problem.ties.soft)])
