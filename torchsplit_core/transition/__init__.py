"""From what runs on a host's GPUs now to a plan: what stays, and the steps that change the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.transition.solve import plan_transition
    from torchsplit_core.transition.state import check_state, read_state, state_of_plan
    from torchsplit_core.transition.table import transition_table
    from torchsplit_core.transition.times import ChangeTimes
    from torchsplit_core.transition.verification import transition_fault

__all__ = [
    "ChangeTimes",
    "check_state",
    "plan_transition",
    "read_state",
    "state_of_plan",
    "transition_fault",
    "transition_table",
]

__getattr__ = on_demand(
    __name__,
    {
        "solve": "plan_transition",
        "state": "check_state read_state state_of_plan",
        "table": "transition_table",
        "times": "ChangeTimes",
        "verification": "transition_fault",
    },
)
