"""Options of the command train on how gradients become weights, and on when the run is measured."""

from __future__ import annotations

import argparse

from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.strategy.held_out import ValidationOptions
from torchsplit_core.values.strategy.updates import SCHEDULES, UpdateOptions


def add_update_options(parser: argparse.ArgumentParser) -> None:
    """Add --accumulate, --clip-norm and the options of the schedule and of the validation."""
    parser.add_argument(
        "--accumulate",
        type=int,
        metavar="N",
        help="passes of a step whose gradients are added up (default: as the strategy's micro-batch makes)",
    )
    parser.add_argument(
        "--clip-norm",
        type=float,
        metavar="N",
        help="the most that the 2-norm of a step's gradients may be (default: no limit)",
    )
    parser.add_argument(
        "--schedule",
        choices=SCHEDULES,
        help="how the learning rate goes on from the optimizer's (default: the client's schedule, or it stays)",
    )
    parser.add_argument(
        "--warmup-steps",
        type=int,
        default=0,
        metavar="N",
        help="steps for which the learning rate rises first (default: 0)",
    )
    parser.add_argument(
        "--schedule-steps",
        type=int,
        metavar="N",
        help="the step at which the schedule ends (default: the last step of the run's first start)",
    )
    parser.add_argument(
        "--validate-every",
        type=int,
        metavar="STEPS",
        help="from one measurement on held-out samples to the next (default: one, of the finished run)",
    )
    parser.add_argument(
        "--best",
        metavar="METRIC",
        help="keep the checkpoint whose METRIC is best: NAME, NAME:min or NAME:max (of a loss: the smallest)",
    )


def update_options(options: argparse.Namespace) -> UpdateOptions:
    """What these options ask for. Raises InputFault."""
    return UpdateOptions(
        options.clip_norm, options.schedule, options.warmup_steps, options.schedule_steps, options.accumulate
    )


def validation_options(options: argparse.Namespace) -> ValidationOptions:
    """What these options ask for. Raises InputFault."""
    if options.best and options.validate_every is None:
        raise InputFault(
            "--best",
            f"is {quoted(options.best)}, but nothing is measured before the end of the run",
            "Give --validate-every too.",
        )
    return ValidationOptions(options.validate_every, options.best)
