"""simulate DAY --trace: a planned day over a trace of demand, beside one plan and the threshold rule."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from torchsplit_core import files, workflow
from torchsplit_core.cli.common import with_progress, write_outcome
from torchsplit_core.cli.day.trace_options import add_trace_options, factors_of, pairs_of
from torchsplit_core.cli.tables import read_table
from torchsplit_core.cli.transition import change_times, times_options
from torchsplit_core.values import InputFault, PlanRequest

OF_A_DAY = ("trace_day", "map", "scale", "rule_target", "start_s", "drain_s")
OF_ONE_PLAN = ("arrivals", "find", "save_request", "requests_out")


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a day over a trace."""
    parser.add_argument(
        "--trace",
        metavar="TRACE.csv",
        help="simulate a planned day over it: time_s (seconds since a midnight, UTC), requests/s of each model",
    )
    parser.add_argument("--trace-day", type=int, metavar="N", help="of several days the N-th, from 1")
    add_trace_options(parser)
    parser.add_argument(
        "--rule-target",
        type=float,
        metavar="U",
        help="utilisation that the threshold rule beside the day keeps (default 0.7)",
    )
    times_options(parser)


def check_replay_options(options: argparse.Namespace) -> None:
    """Raise InputFault for options of a day without --trace, and for those of one plan with it."""
    for name in OF_ONE_PLAN if options.trace else OF_A_DAY:
        if getattr(options, name):
            flag = f"--{name.replace('_', '-')}"
            if options.trace:
                raise InputFault(
                    flag, "is of one plan, and --trace simulates a day of several", "Leave it out."
                )
            raise InputFault(flag, "is given without --trace", "It is of a day over a trace.")
    if options.trace and (options.load != 1.0 or options.engine != "local"):
        flag = "--load" if options.load != 1.0 else "--engine"
        raise InputFault(
            flag, "does not go with --trace", "Use --scale for other rates; a day is simulated here."
        )


def replay(options: argparse.Namespace, request: PlanRequest, limits: Mapping[str, float]) -> int:
    """Simulate the day, write the outcome and print its summary; `limits`: response times by model, ms."""
    from torchsplit_core.day_plans.replay.sides import ReplaySettings
    from torchsplit_core.day_plans.replay.summary import replay_lines
    from torchsplit_core.day_plans.replay.trace_day import one_day
    from torchsplit_core.tables.demand_trace.request_windows import trace_of_models
    from torchsplit_core.tables.demand_trace.trace_csv import read_demand_trace
    from torchsplit_core.values import ThresholdRule

    _, outcome = files.read_file(options.input, expected="torchsplit.day")
    trace = one_day(
        read_demand_trace(read_table(options.trace), options.trace), options.trace_day, options.trace
    )
    trace, notes = trace_of_models(trace, request, pairs_of(options.map), factors_of(options.scale))
    settings = ReplaySettings(
        rule=ThresholdRule() if options.rule_target is None else ThresholdRule(options.rule_target),
        times=change_times(options),
        replications=ReplaySettings().replications if options.replications is None else options.replications,
        seed=request.seed if options.seed is None else options.seed,
        requests_per_model=options.requests,
        limits_ms=dict(limits),
    )
    outcome = with_progress(lambda progress: workflow.replay_day(request, outcome, trace, settings, progress))
    write_outcome(outcome, options)
    for note in (*notes, *outcome.warnings):
        print(f"warning: {note}", file=sys.stderr)
    for line in replay_lines(outcome):
        print(line, file=sys.stderr)
    return 0
