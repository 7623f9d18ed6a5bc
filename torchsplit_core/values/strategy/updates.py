"""How a run turns gradients into weights: the norm that they are clipped to, and the schedule of the learning rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torchsplit_core.values.errors import InputFault, quoted

ScheduleKind = Literal["constant", "linear", "cosine"]
SCHEDULES: tuple[ScheduleKind, ...] = get_args(ScheduleKind)


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """`clip_norm`: the most that the 2-norm of a step's gradients may be, None without a limit.

    `schedule`: how the learning rate goes on from the optimizer's, None if it stays or a schedule is given as an
    object; `warmup_steps` that it rises for first; `schedule_steps`: the step at which it ends, None for the run's
    last. `accumulate`: passes of a full step whose gradients are added up, None for as many as the strategy's
    micro-batch makes. Raises InputFault for a norm that is not positive, and for steps without a schedule or below what
    they can be.
    """

    clip_norm: float | None = None
    schedule: ScheduleKind | None = None
    warmup_steps: int = 0
    schedule_steps: int | None = None
    accumulate: int | None = None

    def __post_init__(self) -> None:
        if self.clip_norm is not None and not 0 < self.clip_norm < float("inf"):
            raise InputFault(
                "--clip-norm", f"is {self.clip_norm:g}, not a positive finite number", "Give for example 1.0."
            )
        if self.schedule is not None and self.schedule not in SCHEDULES:
            raise InputFault(
                "--schedule", f"is {quoted(self.schedule)}", f"Give one of {', '.join(SCHEDULES)}."
            )
        least = {"warmup_steps": 0, "schedule_steps": 1, "accumulate": 1}
        for name, minimum in least.items():
            value = getattr(self, name)
            option = f"--{name.replace('_', '-')}"
            if value is not None and value < minimum:
                raise InputFault(
                    option, f"is {value}, below the least value {minimum}", f"Give {minimum} or more."
                )
            if value and self.schedule is None and name != "accumulate":
                raise InputFault(option, f"is {value}, but there is no schedule", "Give --schedule too.")
        if self.schedule_steps is not None and self.warmup_steps > self.schedule_steps:
            raise InputFault(
                "--warmup-steps",
                f"is {self.warmup_steps}, above the {self.schedule_steps} steps of the schedule",
                f"Give at most {self.schedule_steps}.",
            )
