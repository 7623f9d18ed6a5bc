"""The command transition: from what runs now to a plan, step by step."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchsplit_core import files
from torchsplit_core.cli.arguments.numbers_by_name import numbers_by_name
from torchsplit_core.cli.arguments.state_options import read_state_file
from torchsplit_core.cli.common import EXIT_OF_STATUS, Command, Options, write_outcome
from torchsplit_core.values import HostState, PlanOutcome, Transition
from torchsplit_core.values.limits import check_number

if TYPE_CHECKING:
    from torchsplit_core.transition import ChangeTimes


def add_transition_command(command: Command, output: Options) -> None:
    """Add transition to the command line through its `command(name, run)` and its shared options."""
    parser = command("transition", _transition)
    parser.add_argument("plan", metavar="PLAN", help="a file of a plan outcome, or -")
    transition_options(parser)
    parser.add_argument(
        "--text",
        action="store_true",
        help="print the table of steps instead of the outcome: who stops, when, for how long",
    )
    output(parser)


def transition_options(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add what makes a transition of a plan, beside the plan; `required`: a state must be given."""
    parser.add_argument(
        "--from",
        dest="state",
        required=required,
        metavar="STATE",
        help="a host state (torchsplit capture), or an earlier plan outcome that runs",
    )
    parser.add_argument(
        "--request",
        metavar="PLAN_REQUEST",
        help="of the plan: gives the demands (without it: the lesser of a model's rates before and after)",
    )
    parser.add_argument(
        "--prefer",
        choices=("gpus", "loss"),
        default="gpus",
        help="of transitions that keep as much: touch fewest GPUs first (default), or lose least first",
    )
    parser.add_argument(
        "--evict-foreign", action="store_true", help="stop tenants of others where the plan needs their place"
    )
    times_options(parser)


def times_options(parser: argparse.ArgumentParser) -> None:
    """Add the times that the steps of a transition take."""
    parser.add_argument(
        "--start-s",
        action="append",
        default=[],
        metavar="S|MODEL=S",
        help="seconds until an instance serves: start, load, warm-up (default 20, assumed)",
    )
    parser.add_argument(
        "--drain-s", type=float, default=None, metavar="S", help="seconds of a drain (default 5, assumed)"
    )


def plan_and_state(options: argparse.Namespace) -> tuple[PlanOutcome, HostState]:
    """The plan and the state that the options name. Raises InputFault."""
    _, plan = files.read_file(options.plan, expected="torchsplit.plan")
    return plan, read_state_file(options.state)


def transition_between(plan: PlanOutcome, state: HostState, options: argparse.Namespace) -> Transition:
    """The transition as the options ask for it. Raises InputFault."""
    from torchsplit_core.transition import plan_transition

    request = None
    if options.request is not None:
        request = files.read_file(options.request, expected="torchsplit.plan_request")[1]
    return plan_transition(
        plan,
        state,
        request=request,
        prefer_loss=options.prefer == "loss",
        evict_foreign=options.evict_foreign,
        times=change_times(options),
    )


def change_times(options: argparse.Namespace) -> ChangeTimes:
    """The times of `times_options`. Raises InputFault."""
    return _times(options.start_s, options.drain_s)


def _times(starts: Sequence[str], drain_s: float | None) -> ChangeTimes:
    from torchsplit_core.transition import ChangeTimes

    times, by_model = ChangeTimes(), {}
    start_s = times.start_s
    for name, seconds in numbers_by_name("--start-s", starts, "20, or bert=35"):
        check_number("--start-s", seconds)
        if name is None:
            start_s = seconds
        else:
            by_model[name] = seconds
    if drain_s is not None:
        check_number("--drain-s", drain_s)
    return ChangeTimes(
        drain_s=times.drain_s if drain_s is None else drain_s, start_s=start_s, model_start_s=by_model
    )


def _transition(options: argparse.Namespace) -> int:
    from torchsplit_core.transition import transition_table

    plan, state = plan_and_state(options)
    outcome = transition_between(plan, state, options)
    table = transition_table(outcome)
    if options.text:
        if options.output:
            files.write_file(outcome, options.output)
        print("\n".join(table))
    else:
        write_outcome(outcome, options)
        print(table[0], file=sys.stderr)
    return EXIT_OF_STATUS[outcome.status]
