"""plan --over-windows: a plan for each window of the day beside one that holds all day."""

from __future__ import annotations

import argparse
import sys

from torchsplit_core import workflow
from torchsplit_core.cli.common import EXIT_OF_STATUS, with_progress, write_outcome
from torchsplit_core.cli.transition import change_times
from torchsplit_core.values import InputFault, PlanRequest


def check_day_options(options: argparse.Namespace) -> None:
    """Raise InputFault for options that belong to one plan, and for those of a day without --over-windows."""
    if not options.over_windows:
        for name, value in (("--start-s", options.start_s), ("--drain-s", options.drain_s)):
            if value:
                raise InputFault(
                    name, "is given without --over-windows", "Transitions are between windows of a day."
                )
        return
    for name in ("explain", "simulate"):
        if getattr(options, name):
            raise InputFault(
                f"--{name}",
                "is of one plan, and --over-windows makes several",
                "Plan a window by itself for it.",
            )


def plan_over_windows(request: PlanRequest, options: argparse.Namespace) -> int:
    """Plan the day, write the outcome and print its summary; the exit code is that of the windows."""
    from torchsplit_core.day_plans.summary import day_lines

    times = change_times(options)
    outcome = with_progress(lambda progress: workflow.plan_day(request, times=times, progress=progress))
    write_outcome(outcome, options)
    for line in day_lines(request, outcome):
        print(line, file=sys.stderr)
    return EXIT_OF_STATUS[outcome.status]
