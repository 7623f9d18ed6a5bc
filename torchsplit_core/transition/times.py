"""How long the steps of a change take. Untested on hardware: published or assumed figures, to be replaced by one's own.

create, destroy: medians of 52 to 132 ms and 120 to 167 ms for all instances of a layout on an A100 (300 runs a layout);
the larger ends are taken for each instance. Switching MIG mode needs a reset on Ampere, drain and start depend on the
server and its model: these three are assumptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchsplit_core.values.transition.outcome import StepAction


@dataclass(frozen=True, slots=True)
class ChangeTimes:
    """Seconds of each step. `start_s` is the time until an instance serves: its process starts, loads and warms up;
    `model_start_s` has it by model where it is known."""

    create_s: float = 0.132
    destroy_s: float = 0.167
    drain_s: float = 5.0
    start_s: float = 20.0
    mig_mode_s: float = 10.0
    model_start_s: Mapping[str, float] = field(default_factory=dict)

    def seconds(self, action: StepAction, models: tuple[str, ...] = ()) -> float:
        """Of one step. The tenants of one instance start and stop side by side."""
        if action == "start":
            return max(
                (self.model_start_s.get(model, self.start_s) for model in models), default=self.start_s
            )
        by_action = {"create": self.create_s, "destroy": self.destroy_s, "stop": self.drain_s}
        return by_action.get(action, self.mig_mode_s)
