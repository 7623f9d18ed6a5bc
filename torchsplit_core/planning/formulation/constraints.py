"""The constraint families of the formulation, one function each; formulation.py lists their formulas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchsplit_core.planning.formulation.model import Formulation, Pools
from torchsplit_core.planning.request.objective import must_survive
from torchsplit_core.solver.pyomo_model import pyo

LEAST_SHARE = 1e-4
"""Least share of a tenant whose presence a co-location demands: without it, "present" would mean nothing."""


def add_layouts(built: Formulation) -> None:
    """layout_choice and twin_order: which layouts the GPUs of each group take."""
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
        if group.symmetric_to is not None:
            rank = sum(
                (number + 1) * (model.y[group.symmetric_to, number] - model.y[g, number]) for number in here
            )
            model.twin_order.add(rank >= 0)


def add_capacity(built: Formulation, pools: Pools) -> None:
    """slice_capacity: no more uses of a pool than the layouts give slices."""
    model = built.model
    model.slice_capacity = pyo.ConstraintList()
    for (g, profile, slot), members in pools.items():
        built.look()
        there: Any = 0
        for number, layout in enumerate(built.problem.groups[g].layouts):
            count = layout.useful.get(profile, 0)
            if slot is not None:
                count = int(count > slot)
            there += count * model.y[g, number]
        model.slice_capacity.add(sum(model.x[use] for use in members) - there <= 0)


def add_homes(built: Formulation) -> None:
    """home_capacity and home_presence: members of co-locations stand where the layout says they are present."""
    model, problem = built.model, built.problem
    model.home_capacity = pyo.ConstraintList()
    model.home_presence = pyo.ConstraintList()
    by_slice: dict[tuple[int, int, str], list[int]] = {}
    by_member: dict[tuple[int, int, int], list[int]] = {}
    for number, use in enumerate(built.uses):
        if use.layout is not None:
            by_slice.setdefault((use.choice.group, use.layout, use.choice.profile), []).append(number)
            for member in problem.members(use.choice):
                by_member.setdefault((use.choice.group, use.layout, member), []).append(number)
    for (g, layout, profile), members in by_slice.items():
        built.look()
        count = problem.groups[g].layouts[layout].useful[profile]
        model.home_capacity.add(sum(model.x[use] for use in members) - count * model.y[g, layout] <= 0)
    for g, group in enumerate(problem.groups):
        for number, candidate in enumerate(group.layouts):
            built.look()
            for member in sorted(problem.ties.needed(candidate.present or frozenset())):
                there = sum(model.x[use] for use in by_member.get((g, number, member), []))
                model.home_presence.add(there - model.y[g, number] >= 0)


def add_variants(built: Formulation, most: Sequence[int]) -> None:
    """one_variant, variant_use, every_stage: all stages of one variant, or nothing."""
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
            built.look()
            if not cases[number].levels:
                for use in members:
                    model.variant_use.add(model.x[use] - most[use] * model.w[number] <= 0)
            if built.mode != "pooled":
                there = model.x if built.mode == "exclusive" else model.b
                model.every_stage.add(sum(there[use] for use in members) - model.w[number] >= 0)


def add_latency(built: Formulation, most: Sequence[int]) -> None:
    """latency_level, latency_use, latency_limit: the longest latencies in use keep the limit together."""
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
            enough = {own: sum(model.delta[number, stage, x] for x in levels if x >= own) for own in levels}
            for use in built.stage_uses.get((number, stage), []):
                built.look()
                own = built.uses[use].choice.point.latency_ms
                model.latency_use.add(model.x[use] - most[use] * enough[own] <= 0)
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


def add_tenants(built: Formulation, pools: Pools) -> None:
    """share_present, share_latency, slice_memory, slice_alone, slice_tenants: what one slice can hold."""
    model, problem = built.model, built.problem
    request = problem.request
    model.share_present = pyo.ConstraintList()
    model.share_latency = pyo.ConstraintList()
    model.slice_memory = pyo.ConstraintList()
    model.slice_tenants = pyo.ConstraintList()
    model.slice_alone = pyo.ConstraintList()
    for use in range(len(built.uses)):
        model.share_present.add(model.x[use] - model.b[use] <= 0)
        if not problem.members(built.uses[use].choice).isdisjoint(built.presence):
            model.share_present.add(model.x[use] - LEAST_SHARE * model.b[use] >= 0)
    for (number, _), members in built.stage_uses.items():
        case = problem.cases[number]
        if not case.levels or case.budget_ms is None:
            continue
        needed = longest(built, number) / case.budget_ms
        for use in members:
            built.look()
            # At least the share its own latency needs (tighter without δ), and the share Λ needs.
            own = built.uses[use].choice.point.latency_ms / case.budget_ms
            model.share_latency.add(model.x[use] - own * model.b[use] >= 0)
            model.share_latency.add(model.x[use] - needed + (1 - model.b[use]) >= 0)
    soft = request.objective.memory_violation_penalty is not None
    keys = list(pools)
    model.excess = pyo.Var(range(len(keys)), domain=pyo.NonNegativeReals)
    for index, key in enumerate(keys):
        built.look()
        size = problem.size_gib(key[0], key[1])
        memory = [(built.uses[use].choice.memory_gib, use) for use in pools[key]]
        if sum(need for need, _ in memory) > size:
            spare = model.excess[index] if soft else 0.0
            model.slice_memory.add(
                sum(need * model.b[use] for need, use in memory if need > 0) - spare <= size
            )
        for use in pools[key]:
            if built.uses[use].choice.alone and len(pools[key]) > 1:
                others = sum(model.b[other] for other in pools[key] if other != use)
                model.slice_alone.add(others - (len(pools[key]) - 1) * (1 - model.b[use]) <= 0)
        if request.max_tenants_per_slice is not None:
            model.slice_tenants.add(sum(model.b[use] for use in pools[key]) <= request.max_tenants_per_slice)


def add_colocation(built: Formulation, most: Sequence[int]) -> None:
    """presence, hard_colocation, separation: who stands on which GPU."""
    model, problem = built.model, built.problem
    groups = range(len(problem.groups))
    model.a = pyo.Var(built.presence, groups, domain=pyo.Binary)
    model.presence_up = pyo.ConstraintList()
    model.presence_down = pyo.ConstraintList()
    members: dict[tuple[int, int], list[int]] = {}
    for number, use in enumerate(built.uses):
        built.look()
        for member in sorted(problem.members(use.choice)):
            members.setdefault((member, use.choice.group), []).append(number)
            model.presence_up.add(model.x[number] - most[number] * model.a[member, use.choice.group] <= 0)
    there = model.b if built.mode == "concrete" else model.x
    for member in built.presence:
        for g in groups:
            # The indicator must also force use, or a co-location is met by indicators alone.
            present = sum(there[number] for number in members.get((member, g), []))
            model.presence_down.add(present - model.a[member, g] >= 0)
    model.hard_colocation = pyo.ConstraintList()
    model.separation = pyo.ConstraintList()
    soft = [k for k, tie in enumerate(problem.ties.ties) if not tie.hard]
    model.q = pyo.Var(soft, groups, bounds=(0, 1))
    for k, tie in enumerate(problem.ties.ties):
        for g in groups:
            for first, second in zip(tie.members, tie.members[1:] + tie.members[:1], strict=True):
                apart = model.a[first, g] - model.a[second, g]
                if tie.hard:
                    model.hard_colocation.add(apart == 0)
                else:
                    model.separation.add(model.q[k, g] - apart >= 0)


def add_minimum(built: Formulation) -> None:
    """min_throughput, and e[m] (the share of the minimum given up) where the problem is elastic."""
    model, request = built.model, built.problem.request
    demanded = [i for i, spec in enumerate(request.models) if spec.min_throughput_rps]
    model.min_throughput = pyo.ConstraintList()
    if built.problem.elastic:
        model.given_up = pyo.Var(demanded, bounds=(0, 1))
    for index in demanded:
        built.look()
        least = request.models[index].min_throughput_rps
        assert least is not None
        rate = built.rate(index, least, f"minimum_{index}")
        if isinstance(rate, int | float):
            # No use at all: the row would have no variable, so an empty sum says it instead.
            nothing = pyo.Var(bounds=(0, 0))
            model.add_component(f"nothing_{index}", nothing)
            rate = nothing
        model.min_throughput.add(rate - _needed(built, index) >= 0)


def add_survival(built: Formulation) -> None:
    """survival: the minima once more, without what stands on any one GPU. GPUs have a group each then."""
    model, request = built.model, built.problem.request
    if not must_survive(request):
        return
    model.survival = pyo.ConstraintList()
    for index, spec in enumerate(request.models):
        if spec.min_throughput_rps:
            rate = built.rate_after_loss(index, spec.min_throughput_rps, f"minimum_after_loss_{index}")
            if not isinstance(rate, int | float):
                # Without any use min_throughput says already that there is no plan.
                model.survival.add(rate - _needed(built, index) >= 0)


def _needed(built: Formulation, index: int) -> Any:
    """The part of a model's minimum that must be kept."""
    return 1 - built.model.given_up[index] if built.problem.elastic else 1.0
