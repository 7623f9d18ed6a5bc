"""held, held_use, touch_limit: GPUs that stay as they are now, and how many may not."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torchsplit_core.planning.formulation.model import Formulation, Mode
from torchsplit_core.planning.problem.held_gpus import HeldGpu, Occupant
from torchsplit_core.solver.pyomo_model import pyo

Spot = tuple[Occupant, int | None]
"""An occupant on the slices of its profile; with shares, on that slice of them."""


def add_held(formulation: Formulation) -> None:
    """Add them.

    A GPU that stays has the very instances of now, whatever case its models run; where no case has their points, it
    cannot stay. One that somebody else uses has to.
    """
    model, groups = formulation.model, formulation.problem.groups
    limit = formulation.problem.request.objective.max_touched_gpus
    model.held, model.held_use = pyo.ConstraintList(), pyo.ConstraintList()
    uses_by_spot: dict[tuple[int, Spot], list[int]] = {}
    for number, use in enumerate(formulation.slice_uses):
        choice = use.choice
        if groups[choice.group].held is not None:
            occupant = (choice.model, choice.variant, choice.stage, choice.point)
            uses_by_spot.setdefault((choice.group, (occupant, use.slot)), []).append(number)
    touched: Any = 0
    planned_instead = {group.instead for group in groups if group.held is not None}
    for g, group in enumerate(groups):
        anew = sum(model.y[g, number] for number in range(len(group.layouts)))
        if group.parts:
            # Of the GPUs it takes, those on which something runs are counted where that does not stay.
            touched += anew * sum(
                count
                for part, count in group.parts
                if part not in planned_instead and not groups[part].must_change
            )
            continue
        if group.held is None:
            if group.must_change:
                touched += len(group.gpu_ids)
                touched -= model.y[group.stays_in, 0] if group.stays_in is not None else 0
            elif g not in planned_instead:
                touched += anew
            continue
        stays, count = model.y[g, 0], len(group.gpu_ids)
        assert group.instead is not None
        others = range(len(groups[group.instead].layouts))
        model.held.add(stays + sum(model.y[group.instead, number] for number in others) <= count)
        if group.held.is_fixed:
            model.held.add(stays == count)
        touched += count - stays
        amounts = _amounts(group.held, formulation.mode)
        for spot in amounts:
            if (g, spot) not in uses_by_spot:
                model.held.add(stays == 0)
        for (at, spot), uses in uses_by_spot.items():
            if at == g:
                amount = amounts.get(spot, 0.0)
                model.held_use.add(sum(model.x[use] for use in uses) - amount * stays == 0)
                if formulation.mode == "concrete":
                    present = sum(model.b[use] for use in uses)
                    model.held_use.add(present - (stays if amount else 0) == 0)
    for g in {group.stays_in for group in groups if group.stays_in is not None}:
        # An engine on several GPUs stays only where it runs on.
        uses = [number for number, use in enumerate(formulation.slice_uses) if use.choice.group == g]
        model.held_use.add(sum(model.x[use] for use in uses) - model.y[g, 0] == 0)
    if limit is None:
        return
    if not isinstance(touched, int):
        model.touch_limit = pyo.Constraint(expr=touched <= limit)
    elif touched > limit:
        # None may stay: a count of layouts cannot be below 0, so that there is no plan.
        model.touch_limit = pyo.Constraint(expr=next(iter(model.y.values())) <= limit - touched)


def _amounts(held: HeldGpu, mode: Mode) -> dict[Spot, float]:
    """Instances of each occupant on one GPU, or its share of each slice."""
    if mode != "concrete":
        return {(occupant, None): float(count) for occupant, count in (held.occupants or {}).items()}
    slots: Counter[str] = Counter()
    shares: dict[Spot, float] = {}
    for item, occupants in held.busy_slices:
        for tenant, occupant in zip(item.tenants, occupants, strict=True):
            shares[occupant, slots[item.profile]] = tenant.share
        slots[item.profile] += 1
    return shares
