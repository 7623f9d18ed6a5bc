"""The command windows: a trace of demand as windows of a plan request."""

from __future__ import annotations

import argparse
import sys

from torchsplit_core import files
from torchsplit_core.cli.common import Command, Options, write_outcome
from torchsplit_core.cli.day.trace_options import add_trace_options, factors_of, pairs_of
from torchsplit_core.cli.tables import read_table
from torchsplit_core.values import InputFault

DEMANDS = ("largest", "p95", "both")
DEFAULT_SLOT_S = 600
"""Bounds of windows unless --slot says otherwise: every ten minutes, or the trace's step if that is more."""


def add_windows_command(command: Command, output: Options) -> None:
    """Add windows to the command line through its `command(name, run)` and its shared options."""
    parser = command("windows", _windows)
    parser.add_argument("request", metavar="REQUEST", help="a file of a plan request, or -")
    parser.add_argument(
        "--trace",
        required=True,
        metavar="TRACE.csv",
        help="time_s (seconds since a midnight, UTC) and a column of requests/s for each model",
    )
    parser.add_argument(
        "--windows",
        required=True,
        type=int,
        metavar="K",
        help="how many; their bounds are those of least cost",
    )
    parser.add_argument(
        "--demand",
        choices=DEMANDS,
        default="largest",
        help="of a window: the largest value of all days, the p95 of its values, or both their mean and p95",
    )
    add_trace_options(parser)
    parser.add_argument(
        "--slot", type=int, metavar="MIN", help="minutes between bounds (default 10, or the trace's step)"
    )
    parser.add_argument("--zeros-are-holes", action="store_true", help="do not count moments without demand")
    parser.add_argument(
        "--peak", action="store_true", help="also set demand_rps: the largest rate of a window"
    )
    output(parser)


def _windows(options: argparse.Namespace) -> int:
    from torchsplit_core.planning.request.validate import validate
    from torchsplit_core.tables.demand_trace.request_windows import (
        WindowSettings,
        trace_of_models,
        with_trace_windows,
        without_zeros,
    )
    from torchsplit_core.tables.demand_trace.trace_csv import read_demand_trace

    _, request = files.read_file(options.request, expected="torchsplit.plan_request")
    trace = read_demand_trace(read_table(options.trace), options.trace)
    if options.zeros_are_holes:
        trace = without_zeros(trace)
    trace, notes = trace_of_models(trace, request, pairs_of(options.map), factors_of(options.scale))
    slot_s = max(DEFAULT_SLOT_S, trace.step_s) if options.slot is None else 60 * _minutes(options.slot)
    settings = WindowSettings(options.windows, options.demand, slot_s)
    changed, cut = with_trace_windows(request, trace, settings, peak=options.peak)
    validate(changed)
    write_outcome(changed, options)
    print(f"{trace.days:.4g} days, a row every {trace.step_s / 60:g} min", file=sys.stderr)
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)
    names = ", ".join(window.name for window in changed.models[0].demand_windows)
    print(
        f"windows: {names}; cost {cut.cost:.4g} (demand in parts of each model's largest × hours)",
        file=sys.stderr,
    )
    return 0


def _minutes(minutes: int) -> int:
    if minutes < 1:
        raise InputFault("--slot", f"is {minutes} minutes", "Give at least 1.")
    return minutes
