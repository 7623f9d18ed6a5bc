"""Rows of routed co-locations for requests that stay on their GPU (stage_there, kept_there, leaving).

The part of a flow that stays on a GPU is the lesser of its two members' rates there. It is maximised only where it
lowers the traffic, so "at most either" means "the lesser of both". Each GPU is a group.
"""

from __future__ import annotations

from typing import Any

from torchsplit_core.planning.formulation.model import Formulation
from torchsplit_core.planning.request.colocation_index import ColocationMember
from torchsplit_core.solver.pyomo_model import pyo


def add_flows(formulation: Formulation) -> None:
    """φ[f], the share of a flow's requests that leaves its GPU, and κ[f,g], the share that stays on a GPU."""
    model, flows = formulation.model, formulation.problem.colocation_index.flows
    sides = [
        tuple(
            _member_rates(formulation, member, flow.rate_rps, f"flow_{f}_{side}")
            for side, member in enumerate(pair)
        )
        for f, flow in enumerate(flows)
        for pair in ((flow.first, flow.second),)
    ]
    both = [(f, g) for f, (first, second) in enumerate(sides) for g in sorted(first.keys() & second.keys())]
    model.phi = pyo.Var(range(len(flows)), bounds=(0, 1))
    model.kappa = pyo.Var(both, bounds=(0, 1))
    model.kept_there = pyo.ConstraintList()
    model.leaving = pyo.ConstraintList()
    for f, g in both:
        for rates in sides[f]:
            model.kept_there.add(model.kappa[f, g] - rates[g] <= 0)
    for f in range(len(flows)):
        model.leaving.add(model.phi[f] + sum(model.kappa[key] for key in both if key[0] == f) >= 1)


def _member_rates(
    formulation: Formulation, member: ColocationMember, scale: float, name: str
) -> dict[int, Any]:
    """By GPU, the rate of a member over `scale`: of its stage, or of the slowest stage of its model."""
    by_group: dict[int, Any] = {}
    for number, case in enumerate(formulation.problem.cases):
        sums = []
        for stage in member.stages_of(case.model, case.variant, case.stages):
            by_gpu: dict[int, Any] = {}
            formulation.check_deadline()
            for use, term in formulation.stage_terms(
                number, stage, scale, f"{name}_{number}_{stage}"
            ).items():
                g = formulation.slice_uses[use].choice.group
                by_gpu[g] = by_gpu.get(g, 0.0) + term
            sums.append(by_gpu)
        if len(sums) > 1:
            sums = [_slowest_stage(formulation, sums, f"{name}_{number}")]
        for g, term in sums[0].items() if sums else ():
            by_group[g] = by_group.get(g, 0.0) + term
    return by_group


def _slowest_stage(formulation: Formulation, sums: list[dict[int, Any]], name: str) -> dict[int, Any]:
    """o[c,g]: at most the rate of each stage on the GPU."""
    everywhere = sorted(set.intersection(*map(set, sums)))
    least, rows = pyo.Var(everywhere, domain=pyo.NonNegativeReals), pyo.ConstraintList()
    formulation.model.add_component(f"o_{name}", least)
    formulation.model.add_component(f"stage_there_{name}", rows)
    for g in everywhere:
        for by_gpu in sums:
            rows.add(least[g] - by_gpu[g] <= 0)
    return {g: least[g] for g in everywhere}
