"""The states that transitions begin with: host states, and those that earlier plans describe."""

from __future__ import annotations

from typing import Any

from torchsplit_core.hardware.host_state.validity import check_state
from torchsplit_core.values import HostState, InputFault, PlanOutcome, StateGpu, StateInstance, quoted

__all__ = ["check_state", "read_state", "state_of_plan"]


def state_of_plan(plan: PlanOutcome) -> HostState:
    """The state of hosts on which this plan runs as drawn. Raises InputFault for an outcome without a plan."""
    if plan.status not in ("optimal", "feasible"):
        raise InputFault(
            "state",
            f"is a plan outcome with the status {quoted(plan.status)}, so nothing runs by it",
            "Pass a host state, or an outcome that has a plan.",
        )
    return HostState(
        tuple(
            StateGpu(
                gpu.id,
                gpu.type,
                instances=tuple(StateInstance(i.profile, i.start, None, i.tenants) for i in gpu.slices),
            )
            for gpu in plan.gpus
        )
    )


def read_state(value: Any, origin: str = "state") -> HostState:
    """A host state, of a state or of an earlier plan outcome; checked. Raises InputFault."""
    state: HostState = state_of_plan(value) if isinstance(value, PlanOutcome) else value
    check_state(state, origin)
    return state
