"""Learning-rate schedules: the named ones, and how many steps one has."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer, lr_scheduler

from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.strategy.updates import SCHEDULES, ScheduleKind, UpdateOptions


def schedule_of(
    optimizer: Optimizer, kind: ScheduleKind, steps: int, warmup_steps: int = 0
) -> lr_scheduler.LambdaLR:
    """A schedule that raises the learning rate evenly to the optimizer's over the first `warmup_steps`, then keeps it
    (`constant`) or lowers it to 0 at step `steps`: evenly (`linear`) or along half a cosine (`cosine`).

    Raises InputFault for an unknown kind.
    """
    if kind not in SCHEDULES:
        raise InputFault("--schedule", f"is {quoted(kind)}", f"Give one of {', '.join(SCHEDULES)}.")
    return lr_scheduler.LambdaLR(optimizer, _factor(kind, steps, warmup_steps))


def _factor(kind: ScheduleKind, steps: int, warmup_steps: int) -> Callable[[int], float]:
    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        progress = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
        if kind == "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        return 1 - progress if kind == "linear" else 1.0

    return factor


def schedule_steps(scheduler: Any) -> int | None:
    """The step from which one of torch's schedules changes nothing more; None if it has no such step or is unknown."""
    if isinstance(scheduler, lr_scheduler.SequentialLR):
        rest = schedule_steps(scheduler._schedulers[-1])
        return None if rest is None else scheduler._milestones[-1] + rest
    if isinstance(scheduler, lr_scheduler.ChainedScheduler):
        parts = [schedule_steps(part) for part in scheduler._schedulers]
        return None if None in parts else max(part for part in parts if part is not None)
    if isinstance(scheduler, lr_scheduler.MultiStepLR):
        return max(scheduler.milestones, default=0)
    for name in ("total_steps", "T_max", "total_iters"):
        if isinstance(steps := getattr(scheduler, name, None), int):
            return steps
    return None


def choose_schedule(
    optimizer: Optimizer, options: UpdateOptions, given: Any, last_step: int, facts: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """The schedule object of a run (None: the rate stays), and what run.json says of it.

    `given`: an object of the user's, None for that of the options. `facts`: the content of run.json so far: a named
    schedule that was begun keeps its length when the run is made longer. Raises InputFault for both kinds at once.
    """
    if given is not None:
        if options.schedule:
            raise InputFault(
                "the schedule",
                f"is given as {type(given).__name__} and as {options.schedule}",
                "Leave out one of the two.",
            )
        return given, {
            "schedule": type(given).__name__, "warmup_steps": 0, "schedule_steps": schedule_steps(given),
        }  # fmt: skip
    if options.schedule is None:
        return None, {"schedule": None, "warmup_steps": 0, "schedule_steps": None}
    steps = options.schedule_steps or facts.get("schedule_steps") or last_step
    if options.warmup_steps > steps:
        raise InputFault(
            "--warmup-steps",
            f"is {options.warmup_steps}, above the {steps} steps of the schedule",
            f"Give at most {steps}.",
        )
    scheduler = schedule_of(optimizer, options.schedule, steps, options.warmup_steps)
    return scheduler, {
        "schedule": options.schedule, "warmup_steps": options.warmup_steps, "schedule_steps": steps,
    }  # fmt: skip


def length_warning(facts: Mapping[str, Any], last_step: int) -> str:
    """A sentence if the schedule of run.json has more steps than the run, or leaves its last steps without a learning
    rate; "" otherwise."""
    steps = facts["schedule_steps"]
    if steps is None or steps == last_step:
        return ""
    if steps > last_step:
        return (
            f"the schedule has {steps} steps, but the run ends at step {last_step}: the learning rate does not reach "
            "the schedule's end"
        )
    if facts["schedule"] not in ("linear", "cosine"):
        return ""
    words = f"the schedule ends at step {steps}, before the run does at step {last_step}"
    return f"{words}: the learning rate is 0 from there on"
