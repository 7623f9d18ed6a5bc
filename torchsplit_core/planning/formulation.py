"""The planner's mixed-integer program in Pyomo. docs/formulations.md lists the same families.

Indices: m model, c case (a variant that can run), s stage, g GPU group, l layout, p profile,
u use (one point of one stage on the slices of one pool). A pool is a profile of a group, or one
slice of it where slices are told apart (`concrete`).

| family | formula | function |
|---|---|---|
| layout_choice | Σ_l y[g,l] ≤ GPUs of g | _layouts |
| slice_capacity | Σ_u∈pool x[u] ≤ Σ_l slices(l, pool) · y[g,l] | _capacity |
| twin_order | Σ_l l·y[g,l] ≥ Σ_l l·y[g+1,l] for swappable GPUs | _layouts |
| one_variant | Σ_c∈m w[c] ≤ 1 | _variants |
| variant_use | x[u] ≤ X · w[c] | _variants |
| every_stage | Σ_u∈(c,s) present(u) ≥ w[c] | _variants |
| latency_level | Σ_ℓ δ[c,s,ℓ] = w[c] | _latency |
| latency_use | x[u] ≤ X · Σ_{ℓ ≥ latency(u)} δ[c,s,ℓ] | _latency |
| latency_limit | Σ_s Σ_ℓ ℓ·δ[c,s,ℓ] + transfer ≤ limit · (1 + f[m]) | _latency |
| share_present | x[u] ≤ b[u] | _tenants |
| share_latency | x[u] ≥ Λ[c] / (limit − transfer) − (1 − b[u]) | _tenants |
| slice_memory | Σ_u memory(u)·b[u] ≤ memory of the slice + e[pool] | _tenants |
| slice_tenants | Σ_u b[u] ≤ the most tenants | _tenants |
| stage_rate | v[c] ≤ Σ_u∈(c,s) rate(u)·x[u] / scale | rate |
| demand_cap | rate(m) ≤ demand / scale | rate |
| min_throughput | rate(m) ≥ 1 − e[m], scale = the minimum | _minimum |
| presence | x[u] ≤ X·a[m,g], Σ_u present(u) ≥ a[m,g] | _colocation |
| hard_colocation | a[m,g] = a[m',g] | _colocation |
| separation | q[k,g] ≥ a[m,g] − a[m',g] | _colocation |

The levels of leximin stand in leximin.py, the other objectives in objectives.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyomo.environ as pyo

from torchsplit_core.planning.expand import Choice, Problem

Mode = Literal["exclusive", "aggregate", "concrete"]
"""exclusive: whole slices; aggregate: shares pooled over slices (a relaxation); concrete: shares slice by slice."""

LEAST_SHARE = 1e-4
"""Least share of a tenant whose presence a co-location demands: without it, "present" would mean nothing."""


MOST_RATE = 1e7
"""Largest rate of a share in units of the level: a model that needs less than 1e-7 of a slice gets that."""


@dataclass(frozen=True, slots=True)
class Use:
    """A choice on its pool; `slot` numbers the slices of the profile on one GPU, None where pooled."""

    choice: Choice
    slot: int | None


@dataclass(frozen=True)
class Formulation:
    """The Pyomo model with what is needed to read an answer from it."""

    problem: Problem
    mode: Mode
    model: Any
    uses: tuple[Use, ...]
    stage_uses: dict[tuple[int, int], list[int]]
    presence: tuple[int, ...]

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
        if self.mode == "aggregate":
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
    presence = sorted({_index(problem, name) for item in problem.request.colocations for name in item.models})
    built = Formulation(problem, mode, model, uses, stage_uses, tuple(presence))
    _layouts(built)
    _capacity(built, pools)
    if mode == "concrete":
        model.b = pyo.Var(range(len(uses)), domain=pyo.Binary)
    _variants(built, most)
    _latency(built, most)
    if mode == "concrete":
        _tenants(built, pools)
    if presence and mode != "aggregate":
        # Pooled shares cannot say who stands where; without co-location the relaxation only grows.
        _colocation(built, most)
    if not without_minima:
        _minimum(built)
    return built


def _index(problem: Problem, name: str) -> int:
    return next(number for number, model in enumerate(problem.request.models) if model.name == name)


def _uses(
    problem: Problem, mode: Mode
) -> tuple[tuple[Use, ...], dict[tuple[int, str, int | None], list[int]]]:
    uses: list[Use] = []
    pools: dict[tuple[int, str, int | None], list[int]] = {}
    for choice in problem.choices:
        slots: Sequence[int | None] = [None]
        if mode == "concrete":
            slots = range(
                max(layout.useful.get(choice.profile, 0) for layout in problem.groups[choice.group].layouts)
            )
        for slot in slots:
            pools.setdefault((choice.group, choice.profile, slot), []).append(len(uses))
            uses.append(Use(choice, slot))
    return tuple(uses), pools


def _most(problem: Problem, use: Use, mode: Mode) -> int:
    """X: the most instances (or whole shares) of one use."""
    if mode == "concrete":
        return 1
    group = problem.groups[use.choice.group]
    return len(group.gpu_ids) * max(layout.useful.get(use.choice.profile, 0) for layout in group.layouts)


def _layouts(built: Formulation) -> None:
    model, groups = built.model, built.problem.groups
    keys = [(g, number) for g, group in enumerate(groups) for number in range(len(group.layouts))]
    model.y = pyo.Var(
        keys, domain=pyo.NonNegativeIntegers, bounds=lambda _, g, number: (0, len(groups[g].gpu_ids))
    )
    model.layout_choice = pyo.ConstraintList()
    model.twin_order = pyo.ConstraintList()
    for g, group in enumerate(groups):
        if not group.layouts:
            continue
        here = range(len(group.layouts))
        model.layout_choice.add(sum(model.y[g, number] for number in here) <= len(group.gpu_ids))
        if group.twin_of is not None:
            rank = sum(
                (number + 1) * (model.y[group.twin_of, number] - model.y[g, number]) for number in here
            )
            model.twin_order.add(rank >= 0)


def _capacity(built: Formulation, pools: dict[tuple[int, str, int | None], list[int]]) -> None:
    model = built.model
    model.slice_capacity = pyo.ConstraintList()
    for (g, profile, slot), members in pools.items():
        there: Any = 0
        for number, layout in enumerate(built.problem.groups[g].layouts):
            count = layout.useful.get(profile, 0)
            if slot is not None:
                count = int(count > slot)
            there += count * model.y[g, number]
        model.slice_capacity.add(sum(model.x[use] for use in members) - there <= 0)


def _variants(built: Formulation, most: Sequence[int]) -> None:
    model, cases = built.model, built.problem.cases
    owners = [case.model for case in cases]
    chosen = [
        number
        for number, case in enumerate(cases)
        if owners.count(case.model) > 1 or case.stages > 1 or case.levels
    ]
    model.w = pyo.Var(chosen, domain=pyo.Binary)
    model.one_variant = pyo.ConstraintList()
    model.variant_use = pyo.ConstraintList()
    model.every_stage = pyo.ConstraintList()
    for owner in dict.fromkeys(owners):
        mine = [number for number in chosen if cases[number].model == owner]
        if len(mine) > 1:
            model.one_variant.add(sum(model.w[number] for number in mine) <= 1)
    for number in chosen:
        for stage in range(cases[number].stages):
            members = built.stage_uses.get((number, stage), [])
            if not members:
                # A stage whose points stand on slices that no kept layout offers: the variant cannot run.
                model.w[number].fix(0)
                continue
            if not cases[number].levels:
                for use in members:
                    model.variant_use.add(model.x[use] - most[use] * model.w[number] <= 0)
            if built.mode != "aggregate":
                there = model.x if built.mode == "exclusive" else model.b
                model.every_stage.add(sum(there[use] for use in members) - model.w[number] >= 0)


def _latency(built: Formulation, most: Sequence[int]) -> None:
    model, request = built.model, built.problem.request
    model.latency_level = pyo.ConstraintList()
    model.latency_use = pyo.ConstraintList()
    model.latency_limit = pyo.ConstraintList()
    keys = []
    for number, case in enumerate(built.problem.cases):
        if case.levels:
            for stage in range(case.stages):
                keys += [(number, stage, level) for level in levels_of(built, number, stage)]
    model.delta = pyo.Var(keys, domain=pyo.Binary)
    if built.problem.elastic_latency:
        limited = [i for i, spec in enumerate(request.models) if spec.max_latency_ms is not None]
        model.longer = pyo.Var(limited, domain=pyo.NonNegativeReals)
    for number, case in enumerate(built.problem.cases):
        if not case.levels or case.budget_ms is None:
            continue
        limit = request.models[case.model].max_latency_ms
        assert limit is not None
        for stage in range(case.stages):
            levels = levels_of(built, number, stage)
            model.latency_level.add(sum(model.delta[number, stage, x] for x in levels) - model.w[number] == 0)
            for use in built.stage_uses.get((number, stage), []):
                own = built.uses[use].choice.point.latency_ms
                enough = sum(model.delta[number, stage, x] for x in levels if x >= own)
                model.latency_use.add(model.x[use] - most[use] * enough <= 0)
        room: Any = case.budget_ms / limit
        if built.problem.elastic_latency:
            # A negative budget (the transfer alone is too long) must bind only the chosen variant.
            loose = max(0.0, -room)
            room = room + loose * (1 - model.w[number]) + model.longer[case.model]
        model.latency_limit.add(longest(built, number) / limit - room <= 0)


def levels_of(built: Formulation, number: int, stage: int) -> list[float]:
    """The different latencies of a stage's points, ascending."""
    return sorted(
        {built.uses[use].choice.point.latency_ms for use in built.stage_uses.get((number, stage), [])}
    )


def longest(built: Formulation, number: int) -> Any:
    """Λ: the sum over a case's stages of the longest point latency in use, in milliseconds."""
    return sum(
        level * built.model.delta[number, stage, level]
        for stage in range(built.problem.cases[number].stages)
        for level in levels_of(built, number, stage)
    )


def _tenants(built: Formulation, pools: dict[tuple[int, str, int | None], list[int]]) -> None:
    model, problem = built.model, built.problem
    request = problem.request
    model.share_present = pyo.ConstraintList()
    model.share_latency = pyo.ConstraintList()
    model.slice_memory = pyo.ConstraintList()
    model.slice_tenants = pyo.ConstraintList()
    for use in range(len(built.uses)):
        model.share_present.add(model.x[use] - model.b[use] <= 0)
        if built.uses[use].choice.model in built.presence:
            model.share_present.add(model.x[use] - LEAST_SHARE * model.b[use] >= 0)
    for (number, _), members in built.stage_uses.items():
        case = problem.cases[number]
        if not case.levels or case.budget_ms is None:
            continue
        for use in members:
            # At least the share its own latency needs (tighter without δ), and the share Λ needs.
            own = built.uses[use].choice.point.latency_ms / case.budget_ms
            model.share_latency.add(model.x[use] - own * model.b[use] >= 0)
            model.share_latency.add(
                model.x[use] - longest(built, number) / case.budget_ms + (1 - model.b[use]) >= 0
            )
    soft = request.objective.memory_violation_penalty is not None
    keys = list(pools)
    model.excess = pyo.Var(range(len(keys)), domain=pyo.NonNegativeReals)
    for index, key in enumerate(keys):
        size = problem.capacity_gib[problem.groups[key[0]].type, key[1]]
        memory = [(built.uses[use].choice.memory_gib, use) for use in pools[key]]
        if sum(need for need, _ in memory) > size:
            spare = model.excess[index] if soft else 0.0
            model.slice_memory.add(
                sum(need * model.b[use] for need, use in memory if need > 0) - spare <= size
            )
        if request.max_tenants_per_slice is not None:
            model.slice_tenants.add(sum(model.b[use] for use in pools[key]) <= request.max_tenants_per_slice)


def _colocation(built: Formulation, most: Sequence[int]) -> None:
    model, problem = built.model, built.problem
    groups = range(len(problem.groups))
    model.a = pyo.Var(built.presence, groups, domain=pyo.Binary)
    model.presence_up = pyo.ConstraintList()
    model.presence_down = pyo.ConstraintList()
    members: dict[tuple[int, int], list[int]] = {}
    for number, use in enumerate(built.uses):
        if use.choice.model in built.presence:
            members.setdefault((use.choice.model, use.choice.group), []).append(number)
            model.presence_up.add(
                model.x[number] - most[number] * model.a[use.choice.model, use.choice.group] <= 0
            )
    there = model.b if built.mode == "concrete" else model.x
    for owner in built.presence:
        for g in groups:
            # The indicator must also force use, or a co-location is met by indicators alone.
            present = sum(there[number] for number in members.get((owner, g), []))
            model.presence_down.add(present - model.a[owner, g] >= 0)
    model.hard_colocation = pyo.ConstraintList()
    model.separation = pyo.ConstraintList()
    soft = [k for k, item in enumerate(problem.request.colocations) if item.mode == "soft"]
    model.q = pyo.Var(soft, groups, bounds=(0, 1))
    for k, item in enumerate(problem.request.colocations):
        owners = [_index(problem, name) for name in item.models]
        for g in groups:
            for first, second in zip(owners, owners[1:] + owners[:1], strict=True):
                apart = model.a[first, g] - model.a[second, g]
                if item.mode == "hard":
                    model.hard_colocation.add(apart == 0)
                else:
                    model.separation.add(model.q[k, g] - apart >= 0)


def _minimum(built: Formulation) -> None:
    """min_throughput, and e[m] (the share of the minimum given up) where the problem is elastic."""
    model, request = built.model, built.problem.request
    demanded = [i for i, spec in enumerate(request.models) if spec.min_throughput_rps]
    model.min_throughput = pyo.ConstraintList()
    if built.problem.elastic:
        model.given_up = pyo.Var(demanded, bounds=(0, 1))
    for index in demanded:
        least = request.models[index].min_throughput_rps
        assert least is not None
        rate = built.rate(index, least, f"minimum_{index}")
        needed = 1 - model.given_up[index] if built.problem.elastic else 1.0
        if isinstance(rate, int | float):
            # No use at all: the row would have no variable, so an empty sum says it instead.
            nothing = pyo.Var(bounds=(0, 0))
            model.add_component(f"nothing_{index}", nothing)
            rate = nothing
        model.min_throughput.add(rate - needed >= 0)
