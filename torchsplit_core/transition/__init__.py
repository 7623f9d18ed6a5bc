"""From what runs on a host's GPUs now to a plan: what stays, and the steps that change the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.transition.fleet_names import fleet_state, names_by_plan
    from torchsplit_core.transition.solve import plan_transition
    from torchsplit_core.transition.state import check_state, read_state, state_of_plan
    from torchsplit_core.transition.table import step_rows, transition_table
    from torchsplit_core.transition.timeline import state_after, throughput_over_time
    from torchsplit_core.transition.times import ChangeTimes
    from torchsplit_core.transition.verification import transition_fault

__all__ = [
    "ChangeTimes",
    "check_state",
    "fleet_state",
    "names_by_plan",
    "plan_transition",
    "read_state",
    "state_after",
    "state_of_plan",
    "step_rows",
    "throughput_over_time",
    "transition_fault",
    "transition_table",
]

__getattr__ = on_demand(
    __name__,
    {
        "fleet_names": "fleet_state names_by_plan",
        "solve": "plan_transition",
        "state": "check_state read_state state_of_plan",
        "table": "step_rows transition_table",
        "timeline": "state_after throughput_over_time",
        "times": "ChangeTimes",
        "verification": "transition_fault",
    },
)
