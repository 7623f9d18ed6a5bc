"""The planner's mixed-integer program in Pyomo. docs/formulations.md lists the same families.

Indices: m model, c case (a variant that can run), s stage, g GPU group, l layout, p profile,
u use (one point of one stage on the slices of one pool). A pool is a profile of a group, or one
slice of it where slices are told apart (`concrete`).

| family | formula | function |
|---|---|---|
| layout_choice | Σ_l y[g,l] ≤ GPUs of g | add_layouts |
| slice_capacity | Σ_u∈pool x[u] ≤ Σ_l slices(l, pool) · y[g,l] | add_capacity |
| home_capacity | Σ_u∈(g,l,p) x[u] ≤ slices(l, p) · y[g,l], co-located u only | add_homes |
| home_presence | Σ_u∈(m,g,l) x[u] ≥ y[g,l] for every m present with l | add_homes |
| twin_order | Σ_l l·y[g,l] ≥ Σ_l l·y[g+1,l] for swappable GPUs | add_layouts |
| one_variant | Σ_c∈m w[c] ≤ 1 | add_variants |
| variant_use | x[u] ≤ X · w[c] | add_variants |
| every_stage | Σ_u∈(c,s) present(u) ≥ w[c] | add_variants |
| latency_level | Σ_ℓ δ[c,s,ℓ] = w[c] | add_latency |
| latency_use | x[u] ≤ X · Σ_{ℓ ≥ latency(u)} δ[c,s,ℓ] | add_latency |
| latency_limit | Σ_s Σ_ℓ ℓ·δ[c,s,ℓ] + transfer ≤ limit · (1 + f[m]) | add_latency |
| share_present | x[u] ≤ b[u] | add_tenants |
| share_latency | x[u] ≥ Λ[c] / (limit − transfer) − (1 − b[u]) | add_tenants |
| slice_memory | Σ_u memory(u)·b[u] ≤ memory of the slice + e[pool] | add_tenants |
| slice_tenants | Σ_u b[u] ≤ the most tenants | add_tenants |
| stage_rate | v[c] ≤ Σ_u∈(c,s) rate(u)·x[u] / scale | rate |
| demand_cap | rate(m) ≤ demand / scale | rate |
| min_throughput | rate(m) ≥ 1 − e[m], scale = the minimum | add_minimum |
| presence | x[u] ≤ X·a[m,g], Σ_u present(u) ≥ a[m,g] | add_colocation |
| hard_colocation | a[m,g] = a[m',g] | add_colocation |
| separation | q[k,g] ≥ a[m,g] − a[m',g] | add_colocation |

The levels of leximin stand in leximin.py, the other objectives in search.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyomo.environ as pyo

from torchsplit_core.planning import families
from torchsplit_core.planning.expand import Choice, Problem
from torchsplit_core.planning.presence import separated_bytes

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
                    min(cut, rate) * model.x[use]
                    for use in self.stage_uses.get((number, stage), [])
                    if (rate := self.uses[use].choice.point.throughput_rps / scale) > 0
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


def build(problem: Problem, mode: Mode, *, without_minima: bool = False) -> Formulation:
    """Everything but the objective. `without_minima` leaves min_throughput_rps out."""
    model = pyo.ConcreteModel()
    uses, pools = _uses(problem, mode)
    stage_uses: dict[tuple[int, int], list[int]] = {}
    case_of = {(case.model, case.variant): number for number, case in enumerate(problem.cases)}
    for number, use in enumerate(uses):
        stage_uses.setdefault((case_of[use.choice.model, use.choice.variant], use.choice.stage), []).append(
            number
        )
    most = [_most(problem, use, mode) for use in uses]
    model.x = pyo.Var(
        range(len(uses)),
        domain=pyo.NonNegativeIntegers if mode == "exclusive" else pyo.NonNegativeReals,
        bounds=lambda _, number: (0, most[number]),
    )
    # Where a presence is demanded the models of a hard pair that cannot run still count: they stand nowhere.
    presence = sorted(
        {problem.index_of(name) for item in problem.request.colocations for name in item.models}
        - problem.colocated
    )
    built = Formulation(problem, mode, model, uses, stage_uses, tuple(presence))
    families.add_layouts(built)
    families.add_capacity(built, pools)
    if problem.colocated:
        families.add_homes(built)
    if mode == "concrete":
        model.b = pyo.Var(range(len(uses)), domain=pyo.Binary)
    families.add_variants(built, most)
    families.add_latency(built, most)
    if mode == "concrete":
        families.add_tenants(built, pools)
    if presence and mode != "pooled":
        # Pooled shares cannot say who stands where; without co-location the relaxation only grows.
        families.add_colocation(built, most)
    if not without_minima:
        families.add_minimum(built)
    return built


def _uses(problem: Problem, mode: Mode) -> tuple[tuple[Use, ...], Pools]:
    uses: list[Use] = []
    pools: Pools = {}
    for choice in problem.choices:
        slots: Sequence[int | None] = [None]
        if mode == "concrete":
            slots = range(
                max(layout.useful.get(choice.profile, 0) for layout in problem.groups[choice.group].layouts)
            )
        hosts: Sequence[int | None] = [None]
        if choice.model in problem.colocated:
            hosts = [
                number
                for number, layout in enumerate(problem.groups[choice.group].layouts)
                if choice.profile in layout.useful and choice.model in (layout.present or ())
            ]
        for slot in slots:
            for host in hosts:
                pools.setdefault((choice.group, choice.profile, slot), []).append(len(uses))
                uses.append(Use(choice, slot, host))
    return tuple(uses), pools


def _most(problem: Problem, use: Use, mode: Mode) -> int:
    """X: the most instances (or whole shares) of one use."""
    if mode == "concrete":
        return 1
    group = problem.groups[use.choice.group]
    if use.layout is not None:
        return len(group.gpu_ids) * group.layouts[use.layout].useful.get(use.choice.profile, 0)
    return len(group.gpu_ids) * max(layout.useful.get(use.choice.profile, 0) for layout in group.layouts)
