"""The planner's mixed-integer program in Pyomo. docs/internals/formulations.md lists the same families.

Indices: m model, n member of co-locations (a model, or a stage of one), c case (a variant that can run),
s stage, g GPU group, l layout, p profile, u use (one point of one stage on the slices of one pool). A pool
is a profile of a group, or one slice of it where slices are told apart (`concrete`).

| family | formula | function |
|---|---|---|
| layout_choice | Σ_l y[g,l] ≤ GPUs of g | add_layouts |
| slice_capacity | Σ_u∈pool x[u] ≤ Σ_l slices(l, pool) · y[g,l] | add_capacity |
| home_capacity | Σ_u∈(g,l,p) x[u] ≤ slices(l, p) · y[g,l], co-located u only | add_assignment_links |
| home_presence | Σ_u∈(n,g,l) x[u] ≥ y[g,l] for n present with l, implied by no stage | add_assignment_links |
| held | y[stays] + Σ_l y[anew,l] ≤ GPUs that hold the same now | add_held |
| held_use | Σ_c x[u] = instances (shares) of now · y[stays] | add_held |
| touch_limit | Σ GPUs that do not stay + Σ_l y[g,l] of empty ones ≤ max_touched_gpus | add_held |
| twin_order | Σ_l l·y[g,l] ≥ Σ_l l·y[g+1,l] for swappable GPUs | add_layouts |
| gpu_limit | Σ_g GPUs(g) · Σ_l y[g,l] ≤ GPUs that groups of GPUs and single ones share | add_layouts |
| one_variant | Σ_c∈m w[c] ≤ 1 | add_variants |
| variant_use | x[u] ≤ X · w[c] | add_variants |
| every_stage | Σ_u∈(c,s) present(u) ≥ w[c] | add_variants |
| latency_level | Σ_ℓ δ[c,s,ℓ] = w[c] | add_latency |
| latency_use | x[u] ≤ X · Σ_{ℓ ≥ latency(u)} δ[c,s,ℓ] | add_latency |
| latency_limit | Σ_s Σ_ℓ ℓ·δ[c,s,ℓ] + transfer ≤ limit · (1 + f[m]) | add_latency |
| share_present | x[u] ≤ b[u] | add_tenants |
| share_latency | x[u] ≥ Λ[c] / (limit − transfer) − (1 − b[u]) | add_tenants |
| slice_memory | Σ_u memory(u)·b[u] ≤ memory of the slice + e[pool] | add_tenants |
| slice_alone | Σ_{u'≠u} b[u'] ≤ (uses of the slice − 1) · (1 − b[u]) where the memory of u is unknown | add_tenants |
| slice_tenants | Σ_u b[u] ≤ the most tenants | add_tenants |
| link_rate | z[u] ≤ rate(u)·x[u], z[u] ≤ link / bytes a request carries | rate |
| stage_rate | v[c] ≤ Σ_u∈(c,s) rate(u)·x[u] / scale | rate |
| demand_cap | rate(m) ≤ demand / scale | rate |
| min_throughput | rate(m) ≥ 1 − e[m], scale = the minimum | add_minimum |
| worst_loss | λ[c,s] ≥ Σ_u∈(c,s,g) rate(u)·x[u] / scale for every GPU g | rate_after_loss |
| after_loss | v[c] ≤ Σ_u∈(c,s) rate(u)·x[u] / scale − λ[c,s] | rate_after_loss |
| survival | Σ_c v[c] ≥ 1 − e[m], scale = the minimum | add_survival |
| presence | x[u] ≤ X·a[n,g], Σ_u present(u) ≥ a[n,g] | add_colocation |
| hard_colocation | a[n,g] = a[n',g] | add_colocation |
| separation | q[k,g] ≥ a[n,g] − a[n',g] | add_colocation |
| stage_there | o[c,g] ≤ Σ_u∈(c,s,g) rate(u)·x[u] / R for every stage s | add_flows |
| kept_there | κ[f,g] ≤ what the GPU has of the first member, and of the second, over R | add_flows |
| leaving | φ[f] ≥ 1 − Σ_g κ[f,g] | add_flows |

leximin.py has the levels of leximin, objectives.py the other objectives.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from torchsplit_core.planning.formulation import constraints
from torchsplit_core.planning.formulation.flows import add_flows
from torchsplit_core.planning.formulation.held import add_held
from torchsplit_core.planning.formulation.model import Formulation, Mode, Pools, SliceUse
from torchsplit_core.planning.problem.build import Problem
from torchsplit_core.planning.timing import check_deadline
from torchsplit_core.solver.pyomo_model import pyo


def build(
    problem: Problem, mode: Mode, *, without_minima: bool = False, until: float = float("inf")
) -> Formulation:
    """Everything but the objective. `without_minima` leaves min_throughput_rps out.

    Raises OutOfTime if it is not built by `until` (time.perf_counter).
    """
    begun = time.perf_counter()
    model = pyo.ConcreteModel()
    uses, pools = _slice_uses(problem, mode, until)
    stage_uses: dict[tuple[int, int], list[int]] = {}
    for number, use in enumerate(uses):
        stage_uses.setdefault((use.choice.case, use.choice.stage), []).append(number)
    upper_bounds = [_upper_bound(problem, use, mode) for use in uses]
    check_deadline(until)
    model.x = pyo.Var(
        range(len(uses)),
        domain=pyo.NonNegativeIntegers if mode == "exclusive" else pyo.NonNegativeReals,
        bounds=lambda _, number: (0, upper_bounds[number]),
    )
    # Members of a hard pair that cannot run count too if presence matters: they are on no GPU.
    presence = sorted(problem.colocation_index.members - problem.colocated)
    formulation = Formulation(problem, mode, model, uses, stage_uses, tuple(presence), build_deadline=until)
    formulation.check_deadline()
    constraints.add_layouts(formulation)
    constraints.add_capacity(formulation, pools)
    if problem.colocated:
        constraints.add_assignment_links(formulation)
    if mode == "concrete":
        model.b = pyo.Var(range(len(uses)), domain=pyo.Binary)
    constraints.add_variants(formulation, upper_bounds)
    constraints.add_latency(formulation, upper_bounds)
    if mode == "concrete":
        constraints.add_tenants(formulation, pools)
    if problem.request.objective.max_touched_gpus is not None:
        add_held(formulation)
    if presence and mode != "pooled":
        # Pooled shares have no GPU; dropping co-location only enlarges the relaxation.
        constraints.add_colocation(formulation, upper_bounds)
    if problem.colocation_index.flows and mode != "pooled" and not problem.elastic:
        add_flows(formulation)
    if not without_minima:
        constraints.add_minimum(formulation)
        constraints.add_survival(formulation)
    return replace(formulation, build_s=time.perf_counter() - begun)


def _slice_uses(problem: Problem, mode: Mode, until: float) -> tuple[tuple[SliceUse, ...], Pools]:
    uses: list[SliceUse] = []
    pools: Pools = {}
    for choice in problem.choices:
        check_deadline(until)
        slots: Sequence[int | None] = [None]
        if mode == "concrete":
            slots = range(
                max(
                    layout.usable_counts.get(choice.profile, 0)
                    for layout in problem.groups[choice.group].layouts
                )
            )
        layout_numbers: Sequence[int | None] = [None]
        members = problem.colocation_members(choice) & problem.colocated
        if members:
            layout_numbers = [
                number
                for number, layout in enumerate(problem.groups[choice.group].layouts)
                if choice.profile in layout.usable_counts
                and members <= (layout.present_members or frozenset())
            ]
        for slot in slots:
            for layout_number in layout_numbers:
                pools.setdefault((choice.group, choice.profile, slot), []).append(len(uses))
                uses.append(SliceUse(choice, slot, layout_number))
    return tuple(uses), pools


def _upper_bound(problem: Problem, use: SliceUse, mode: Mode) -> int:
    """X: the most instances (or whole shares) of one use."""
    if mode == "concrete":
        return 1
    group = problem.groups[use.choice.group]
    if use.layout is not None:
        return len(group.gpu_ids) * group.layouts[use.layout].usable_counts.get(use.choice.profile, 0)
    return len(group.gpu_ids) * max(
        layout.usable_counts.get(use.choice.profile, 0) for layout in group.layouts
    )
