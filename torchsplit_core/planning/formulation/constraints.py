"""The constraint families of the formulation, one function each; build.py lists their formulas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchsplit_core.planning.formulation.model import Formulation, Pools
from torchsplit_core.planning.request.objective import requires_resilience
from torchsplit_core.solver.pyomo_model import pyo

MIN_SHARE = 1e-4
"""Least share of a tenant whose presence a co-location requires: with less, "present" would mean nothing."""


def add_layouts(formulation: Formulation) -> None:
    """layout_choice, twin_order and gpu_limit: which layouts the GPUs of each group take."""
    model, groups = formulation.model, formulation.problem.groups
    keys = [(g, number) for g, group in enumerate(groups) for number in range(len(group.layouts))]
    model.y = pyo.Var(
        keys, domain=pyo.NonNegativeIntegers, bounds=lambda _, g, number: (0, len(groups[g].gpu_ids))
    )
    model.layout_choice = pyo.ConstraintList()
    model.twin_order = pyo.ConstraintList()
    for g, group in enumerate(groups):
        if not group.layouts:
            continue
        numbers = range(len(group.layouts))
        model.layout_choice.add(sum(model.y[g, number] for number in numbers) <= len(group.gpu_ids))
        if group.twin_of is not None:
            rank = sum(
                (number + 1) * (model.y[group.twin_of, number] - model.y[g, number]) for number in numbers
            )
            model.twin_order.add(rank >= 0)
    model.gpu_limit = pyo.ConstraintList()
    for limit in formulation.problem.limits:
        taken = sum(
            count * model.y[g, number] for g, count in limit.takes for number in range(len(groups[g].layouts))
        )
        model.gpu_limit.add(taken <= limit.most)


def add_capacity(formulation: Formulation, pools: Pools) -> None:
    """slice_capacity: a pool has no more uses than the layouts give it slices."""
    model = formulation.model
    model.slice_capacity = pyo.ConstraintList()
    for (g, profile, slot), members in pools.items():
        formulation.check_deadline()
        available: Any = 0
        for number, layout in enumerate(formulation.problem.groups[g].layouts):
            count = layout.usable_counts.get(profile, 0)
            if slot is not None:
                count = int(count > slot)
            available += count * model.y[g, number]
        model.slice_capacity.add(sum(model.x[use] for use in members) - available <= 0)


def add_assignment_links(formulation: Formulation) -> None:
    """home_capacity and home_presence: co-located members are where their layout has them present."""
    model, problem = formulation.model, formulation.problem
    model.home_capacity = pyo.ConstraintList()
    model.home_presence = pyo.ConstraintList()
    by_slice: dict[tuple[int, int, str], list[int]] = {}
    by_member: dict[tuple[int, int, int], list[int]] = {}
    for number, use in enumerate(formulation.slice_uses):
        if use.layout is not None:
            by_slice.setdefault((use.choice.group, use.layout, use.choice.profile), []).append(number)
            for member in problem.colocation_members(use.choice):
                by_member.setdefault((use.choice.group, use.layout, member), []).append(number)
    for (g, layout, profile), members in by_slice.items():
        formulation.check_deadline()
        count = problem.groups[g].layouts[layout].usable_counts[profile]
        model.home_capacity.add(sum(model.x[use] for use in members) - count * model.y[g, layout] <= 0)
    for g, group in enumerate(problem.groups):
        for number, candidate in enumerate(group.layouts):
            formulation.check_deadline()
            for member in sorted(
                problem.colocation_index.minimal_members(candidate.present_members or frozenset())
            ):
                instances = sum(model.x[use] for use in by_member.get((g, number, member), []))
                model.home_presence.add(instances - model.y[g, number] >= 0)


def add_variants(formulation: Formulation, upper_bounds: Sequence[int]) -> None:
    """one_variant, variant_use, every_stage: all stages of one variant, or none."""
    model, cases = formulation.model, formulation.problem.cases
    case_models = [case.model for case in cases]
    chosen = [
        number
        for number, case in enumerate(cases)
        if case_models.count(case.model) > 1 or case.stages > 1 or case.has_latency_levels
    ]
    model.w = pyo.Var(chosen, domain=pyo.Binary)
    model.one_variant = pyo.ConstraintList()
    model.variant_use = pyo.ConstraintList()
    model.every_stage = pyo.ConstraintList()
    for model_number in dict.fromkeys(case_models):
        model_cases = [number for number in chosen if cases[number].model == model_number]
        if len(model_cases) > 1:
            model.one_variant.add(sum(model.w[number] for number in model_cases) <= 1)
    for number in chosen:
        for stage in range(cases[number].stages):
            members = formulation.stage_uses.get((number, stage), [])
            if not members:
                # No kept layout offers slices for this stage: the variant cannot run.
                model.w[number].fix(0)
                continue
            formulation.check_deadline()
            if not cases[number].has_latency_levels:
                for use in members:
                    model.variant_use.add(model.x[use] - upper_bounds[use] * model.w[number] <= 0)
            if formulation.mode != "pooled":
                presence = model.x if formulation.mode == "exclusive" else model.b
                model.every_stage.add(sum(presence[use] for use in members) - model.w[number] >= 0)


def add_latency(formulation: Formulation, upper_bounds: Sequence[int]) -> None:
    """latency_level, latency_use, latency_limit: the longest latencies in use together keep the limit."""
    model, request = formulation.model, formulation.problem.request
    model.latency_level = pyo.ConstraintList()
    model.latency_use = pyo.ConstraintList()
    model.latency_limit = pyo.ConstraintList()
    keys = []
    for number, case in enumerate(formulation.problem.cases):
        if case.has_latency_levels:
            for stage in range(case.stages):
                keys += [(number, stage, level) for level in latency_levels(formulation, number, stage)]
    model.delta = pyo.Var(keys, domain=pyo.Binary)
    if formulation.problem.elastic_latency:
        limited = [i for i, spec in enumerate(request.models) if spec.max_latency_ms is not None]
        model.longer = pyo.Var(limited, domain=pyo.NonNegativeReals)
    for number, case in enumerate(formulation.problem.cases):
        if not case.has_latency_levels or case.budget_ms is None:
            continue
        limit = request.models[case.model].max_latency_ms
        assert limit is not None
        for stage in range(case.stages):
            levels = latency_levels(formulation, number, stage)
            model.latency_level.add(sum(model.delta[number, stage, x] for x in levels) - model.w[number] == 0)
            enough = {
                latency: sum(model.delta[number, stage, x] for x in levels if x >= latency)
                for latency in levels
            }
            for use in formulation.stage_uses.get((number, stage), []):
                formulation.check_deadline()
                latency = formulation.slice_uses[use].choice.point.latency_ms
                model.latency_use.add(model.x[use] - upper_bounds[use] * enough[latency] <= 0)
        room: Any = case.budget_ms / limit
        if formulation.problem.elastic_latency:
            # A negative budget (the transfer alone is too long) may bind only if the variant is chosen.
            loose = max(0.0, -room)
            room = room + loose * (1 - model.w[number]) + model.longer[case.model]
        model.latency_limit.add(longest_latency(formulation, number) / limit - room <= 0)


def latency_levels(formulation: Formulation, number: int, stage: int) -> list[float]:
    """The distinct latencies of a stage's points, ascending."""
    return sorted(
        {
            formulation.slice_uses[use].choice.point.latency_ms
            for use in formulation.stage_uses.get((number, stage), [])
        }
    )


def longest_latency(formulation: Formulation, number: int) -> Any:
    """Λ: the sum over a case's stages of the longest point latency in use, in milliseconds."""
    return sum(
        level * formulation.model.delta[number, stage, level]
        for stage in range(formulation.problem.cases[number].stages)
        for level in latency_levels(formulation, number, stage)
    )


def add_tenants(formulation: Formulation, pools: Pools) -> None:
    """share_present, share_latency, slice_memory, slice_alone, slice_tenants: what a slice can hold."""
    model, problem = formulation.model, formulation.problem
    request = problem.request
    model.share_present = pyo.ConstraintList()
    model.share_latency = pyo.ConstraintList()
    model.slice_memory = pyo.ConstraintList()
    model.slice_tenants = pyo.ConstraintList()
    model.slice_alone = pyo.ConstraintList()
    for use in range(len(formulation.slice_uses)):
        model.share_present.add(model.x[use] - model.b[use] <= 0)
        if not problem.colocation_members(formulation.slice_uses[use].choice).isdisjoint(
            formulation.presence
        ):
            model.share_present.add(model.x[use] - MIN_SHARE * model.b[use] >= 0)
    for (number, _), members in formulation.stage_uses.items():
        case = problem.cases[number]
        if not case.has_latency_levels or case.budget_ms is None:
            continue
        needed = longest_latency(formulation, number) / case.budget_ms
        for use in members:
            formulation.check_deadline()
            # At least the share for its own latency (tighter without δ), and the share that Λ needs.
            min_share = formulation.slice_uses[use].choice.point.latency_ms / case.budget_ms
            model.share_latency.add(model.x[use] - min_share * model.b[use] >= 0)
            model.share_latency.add(model.x[use] - needed + (1 - model.b[use]) >= 0)
    soft = request.objective.memory_violation_penalty is not None
    keys = list(pools)
    model.excess = pyo.Var(range(len(keys)), domain=pyo.NonNegativeReals)
    for index, key in enumerate(keys):
        formulation.check_deadline()
        size = problem.slice_memory_gib(key[0], key[1])
        memory = [(formulation.slice_uses[use].choice.memory_gib, use) for use in pools[key]]
        if sum(need for need, _ in memory) > size:
            spare = model.excess[index] if soft else 0.0
            model.slice_memory.add(
                sum(need * model.b[use] for need, use in memory if need > 0) - spare <= size
            )
        for use in pools[key]:
            if formulation.slice_uses[use].choice.needs_own_slice and len(pools[key]) > 1:
                others = sum(model.b[other] for other in pools[key] if other != use)
                model.slice_alone.add(others - (len(pools[key]) - 1) * (1 - model.b[use]) <= 0)
        if request.max_tenants_per_slice is not None:
            model.slice_tenants.add(sum(model.b[use] for use in pools[key]) <= request.max_tenants_per_slice)


def add_colocation(formulation: Formulation, upper_bounds: Sequence[int]) -> None:
    """presence, hard_colocation, separation: which members are on which GPU."""
    model, problem = formulation.model, formulation.problem
    groups = range(len(problem.groups))
    model.a = pyo.Var(formulation.presence, groups, domain=pyo.Binary)
    model.presence_up = pyo.ConstraintList()
    model.presence_down = pyo.ConstraintList()
    members: dict[tuple[int, int], list[int]] = {}
    for number, use in enumerate(formulation.slice_uses):
        formulation.check_deadline()
        for member in sorted(problem.colocation_members(use.choice)):
            members.setdefault((member, use.choice.group), []).append(number)
            model.presence_up.add(
                model.x[number] - upper_bounds[number] * model.a[member, use.choice.group] <= 0
            )
    uses = model.b if formulation.mode == "concrete" else model.x
    for member in formulation.presence:
        for g in groups:
            # The indicator must also force use, or indicators alone would satisfy a co-location.
            present = sum(uses[number] for number in members.get((member, g), []))
            model.presence_down.add(present - model.a[member, g] >= 0)
    model.hard_colocation = pyo.ConstraintList()
    model.separation = pyo.ConstraintList()
    soft = [k for k, colocation in enumerate(problem.colocation_index.colocations) if not colocation.hard]
    model.q = pyo.Var(soft, groups, bounds=(0, 1))
    for k, colocation in enumerate(problem.colocation_index.colocations):
        for g in groups:
            for first, second in zip(
                colocation.members, colocation.members[1:] + colocation.members[:1], strict=True
            ):
                apart = model.a[first, g] - model.a[second, g]
                if colocation.hard:
                    model.hard_colocation.add(apart == 0)
                else:
                    model.separation.add(model.q[k, g] - apart >= 0)


def add_minimum(formulation: Formulation) -> None:
    """min_throughput, with e[m] (the share of the minimum that is given up) if the problem is elastic."""
    model, request = formulation.model, formulation.problem.request
    demanded = [i for i, spec in enumerate(request.models) if spec.min_throughput_rps]
    model.min_throughput = pyo.ConstraintList()
    if formulation.problem.elastic:
        model.given_up = pyo.Var(demanded, bounds=(0, 1))
    for index in demanded:
        formulation.check_deadline()
        least = request.models[index].min_throughput_rps
        assert least is not None
        rate = formulation.rate(index, least, f"minimum_{index}")
        if isinstance(rate, int | float):
            # Without any use the row would have no variable, so an empty sum states it.
            nothing = pyo.Var(bounds=(0, 0))
            model.add_component(f"nothing_{index}", nothing)
            rate = nothing
        model.min_throughput.add(rate - _required_part(formulation, index) >= 0)


def add_survival(formulation: Formulation) -> None:
    """survival: the minima once more, without the instances of any one GPU; each GPU is a group."""
    model, request = formulation.model, formulation.problem.request
    if not requires_resilience(request):
        return
    model.survival = pyo.ConstraintList()
    for index, spec in enumerate(request.models):
        if spec.min_throughput_rps:
            rate = formulation.rate_after_loss(index, spec.min_throughput_rps, f"minimum_after_loss_{index}")
            if not isinstance(rate, int | float):
                # Without any use min_throughput already makes the program infeasible.
                model.survival.add(rate - _required_part(formulation, index) >= 0)


def _required_part(formulation: Formulation, index: int) -> Any:
    """The part of a model's minimum that must be met."""
    return 1 - formulation.model.given_up[index] if formulation.problem.elastic else 1.0
