"""A host state with the names of a request's fleet, so that a plan can begin with it (`current`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchsplit_core.hardware.host_state.assignment import FleetMatching
from torchsplit_core.hardware.host_state.engine_groups import with_common_groups
from torchsplit_core.values import HostState, InputFault, PlanOutcome, quoted


def names_by_plan(plan: PlanOutcome, state: HostState) -> dict[str, str]:
    """By GPU of the state the GPU of the plan that it comes nearest to; empty where the plan does not fit there."""
    state = with_common_groups(state, plan.gpus)
    for assignment in FleetMatching(plan, state, evict=True).assignments():
        return {match.host.id: match.target.id for match in assignment.matches if match.target is not None}
    return {}


def fleet_state(fleet: Mapping[str, str], state: HostState, names: Mapping[str, str]) -> HostState:
    """The state with the ids of a fleet, which has each GPU's type: the same ones, else those of `names`, else the next
    free one of the type.

    An empty GPU that the fleet has no place for is left out; one in use raises InputFault.
    """
    if all(fleet.get(gpu.id) == gpu.type for gpu in state.gpus):
        return HostState(state.gpus)
    free = {name: kind for name, kind in fleet.items() if name not in names.values()}
    gpus = []
    for gpu in state.gpus:
        name = names.get(gpu.id)
        if fleet.get(name or "") != gpu.type:
            name = next((other for other, kind in free.items() if kind == gpu.type), None)
        if name is not None:
            free.pop(name, None)
            gpus.append(replace(gpu, id=name))
        elif gpu.instances:
            raise InputFault(
                "What runs now",
                f"has {quoted(gpu.id)}, a {gpu.type} in use that the scenario's fleet has no place for",
                "Add it to the fleet to plan with few changes.",
            )
    return HostState(tuple(gpus))
