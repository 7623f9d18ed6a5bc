"""The planner's program as it is handed around: the Pyomo model, and what its columns stand for.

build.py builds it; constraints.py adds its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pyomo.environ as pyo

from torchsplit_core.planning.problem.build import Choice, Problem
from torchsplit_core.planning.problem.colocation_sets import separated_bytes

Mode = Literal["exclusive", "pooled", "concrete"]
"""exclusive: whole slices; pooled: shares pooled over slices (a relaxation); concrete: shares slice by slice."""

Pools = dict[tuple[int, str, int | None], list[int]]
"""Uses by (group, profile, slot): those that share a capacity."""

MOST_RATE = 1e7
"""Largest rate of a share in units of the level: a model that needs less than 1e-7 of a slice gets that."""


@dataclass(frozen=True, slots=True)
class Use:
    """A choice on its pool; `slot` numbers the slices of the profile on one GPU, None where pooled.

    `layout` is the one layout of the group on whose GPUs a co-located model stands, None for any.
    """

    choice: Choice
    slot: int | None
    layout: int | None = None


@dataclass(frozen=True)
class Formulation:
    """The Pyomo model with what is needed to read an answer from it.

    `top` is a level that no plan's worst-served model can pass, where one is known beforehand.
    """

    problem: Problem
    mode: Mode
    model: Any
    uses: tuple[Use, ...]
    stage_uses: dict[tuple[int, int], list[int]]
    presence: tuple[int, ...]
    top: float = float("inf")

    def rate(self, index: int, scale: float, name: str) -> Any:
        """Throughput of a model that counts, divided by `scale`, as an expression to be pushed up.

        Families stage_rate and demand_cap. Where nothing above the scale counts (`name` starts
        with "level" or "minimum") a rate is cut: to 1 for whole instances, which changes nothing,
        and to MOST_RATE for shares. It keeps huge and tiny magnitudes out of one row.
        """
        model, request = self.model, self.problem.request
        cut = float("inf")
        if name.startswith(("level", "minimum")):
            cut = 1.0 if self.mode == "exclusive" else MOST_RATE
        parts = []
        cases = [number for number, case in enumerate(self.problem.cases) if case.model == index]
        for number in cases:
            sums = []
            for stage in range(self.problem.cases[number].stages):
                terms = [
                    self._part(use, min(cut, rate), scale, f"{name}_{use}")
                    for use in self.stage_uses.get((number, stage), [])
                    if (rate := self.uses[use].choice.rate_rps / scale) > 0
                ]
                sums.append(sum(terms))
            if len(sums) == 1:
                parts.append(sums[0])
                continue
            least = pyo.Var(domain=pyo.NonNegativeReals)
            model.add_component(f"v_{name}_{number}", least)
            rows = pyo.ConstraintList()
            model.add_component(f"stage_rate_{name}_{number}", rows)
            for total in sums:
                rows.add(least <= total)
            parts.append(least)
        total = sum(parts)
        spec = request.models[index]
        if not spec.cap_at_demand or name.startswith("minimum"):
            return total
        counted = pyo.Var(bounds=(0, spec.demand_rps / scale))
        model.add_component(f"counted_{name}_{index}", counted)
        model.add_component(f"demand_cap_{name}_{index}", pyo.Constraint(expr=counted - total <= 0))
        return counted

    def _part(self, use: int, rate: float, scale: float, name: str) -> Any:
        """What a use gives: its rate times its amount, and no more than the link lets one instance have (link_rate)."""
        model, cap = self.model, self.uses[use].choice.cap_rps / scale
        if self.mode != "concrete" or cap >= rate:
            return rate * model.x[use]
        part = pyo.Var(bounds=(0, cap))
        model.add_component(f"linked_{name}", part)
        model.add_component(f"link_rate_{name}", pyo.Constraint(expr=part - rate * model.x[use] <= 0))
        return part

    def penalty(self) -> Any:
        """γ · GiB beyond the slices + separation_weight · separations: what objectives pay (0 where neither)."""
        objective = self.problem.request.objective
        total: Any = 0.0
        if objective.memory_violation_penalty:
            gamma = objective.memory_violation_penalty
            if self.mode == "concrete":
                total += gamma * sum(self.model.excess.values())
            else:
                total += gamma * sum(
                    use.choice.excess_gib * self.model.x[number]
                    for number, use in enumerate(self.uses)
                    if use.choice.excess_gib > 0
                )
        if objective.separation_weight > 0:
            total += objective.separation_weight * self.separations()
        return total

    def separations(self) -> Any:
        """Σ over soft co-locations and GPUs of bytes_per_request where some but not all of the models stand."""
        spec = self.problem.request.colocations
        if self.mode == "pooled":
            return 0.0
        if self.problem.colocated:
            return sum(
                separated_bytes(self.problem.request, present) * self.model.y[g, number]
                for g, group in enumerate(self.problem.groups)
                for number, layout in enumerate(group.layouts)
                if (present := layout.present) is not None
            )
        if not hasattr(self.model, "q"):
            return 0.0
        return sum(spec[k].bytes_per_request * self.model.q[k, g] for k, g in self.model.q)
