"""The place command: a decoder's layers on particular GPUs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace

from torchsplit_core import workflow
from torchsplit_core.cli_common import hand_over, with_progress
from torchsplit_core.cli_partition import EXIT_OF_STATUS
from torchsplit_core.files import read_file
from torchsplit_core.values import PlacementOutcome

Command = Callable[[str, Callable[[argparse.Namespace], int], str], argparse.ArgumentParser]
Options = Callable[[argparse.ArgumentParser], None]


def add_place_command(command: Command, output: Options) -> None:
    """Add place to the command line through its `command(name, run, text)` and its shared options."""
    made = command("place", _place, "place a decoder's layers on particular GPUs, with the bound of the best")
    made.add_argument("request", metavar="REQUEST")
    made.add_argument(
        "--method",
        choices=("exact", "literal"),
        help="instead of the request's: exact, or the published program as it stands",
    )
    made.add_argument("--time-limit", type=float, metavar="S", help="instead of the request's")
    output(made)


def _place(options: argparse.Namespace) -> int:
    _, request = read_file(options.request, expected="torchsplit.placement_request")
    solver = request.solver
    if options.method:
        solver = replace(solver, method=options.method)
    if options.time_limit is not None:
        solver = replace(solver, time_limit_s=options.time_limit)
    request = replace(request, solver=solver)
    outcome: PlacementOutcome = with_progress(lambda progress: workflow.place(request, progress=progress))
    hand_over(outcome, options)
    print(_summary(outcome), file=sys.stderr)
    return EXIT_OF_STATUS[outcome.status]


def _summary(outcome: PlacementOutcome) -> str:
    """Status, the throughput with its gap, and the pipeline in a line."""
    if outcome.throughput is None:
        return f"{outcome.status}: {outcome.message}"
    # In the literal units a link's transfers/s may be the least: the figure then has no one unit.
    unit = " tokens/s" if outcome.units == "tokens_per_s" else ""
    text = f"{outcome.status}: {outcome.throughput:.6g}{unit}"
    if outcome.status == "feasible":
        gap = "not known" if outcome.gap is None else f"{100 * outcome.gap:.2g} %"
        text += f", gap to the bound {gap}"
    pipeline = "; ".join(
        f"layers {part.start_layer}–{part.end_layer} on {', '.join(map(str, part.gpu_ids))}"
        for part in outcome.segments
    )
    return f"{text}. {pipeline}"
