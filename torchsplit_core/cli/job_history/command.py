"""The options of history, and its table: demand by class of jobs and hour of the day."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from torchsplit_core import files
from torchsplit_core.cli.common import Command, Options
from torchsplit_core.cli.job_history.filled_request import MOST_NAMED, write_filled_request
from torchsplit_core.cli.tables import read_table
from torchsplit_core.values import InputFault, quoted

if TYPE_CHECKING:
    from datetime import tzinfo

    from torchsplit_core.tables.job_history.observed_hours import ObservedHours
    from torchsplit_core.tables.job_history.records import GpuJob


def add_history_command(command: Command, output: Options) -> None:
    """Add history to the command line through its `command(name, run)` and its shared options."""
    parser = command("history", _history)
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="tables of sacct (--parsable2 or CSV) and of DCGM's samples (CSV); one may be -",
    )
    parser.add_argument(
        "--class-by",
        choices=("job-name", "account", "partition", "user", "gres"),
        default="job-name",
        help="what makes jobs a class (default job-name, without numbers set off at its end: bert-17 is bert)",
    )
    parser.add_argument(
        "--time-zone", metavar="ZONE", help="of times that name none, for example Europe/Berlin (default UTC)"
    )
    parser.add_argument(
        "--from", dest="begin", metavar="TIME", help="count from here on (default: the hour of the first job)"
    )
    parser.add_argument(
        "--to", dest="end", metavar="TIME", help="count up to here (default: the end of the last job's hour)"
    )
    parser.add_argument("--skip-bad", action="store_true", help="leave out rows that cannot be read")
    parser.add_argument(
        "--request",
        metavar="PLAN_REQUEST",
        help="write this request with demand_windows and demand_samples in place of the table",
    )
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="CLASS=MODEL",
        help="a class whose model has another name",
    )
    parser.add_argument(
        "--windows",
        metavar="FROM-TO,…",
        help="UTC, at full hours, together a day, NAME= before one names it (default four of six hours)",
    )
    parser.add_argument(
        "--peak", action="store_true", help="also set demand_rps: the largest mean or p95 of a window"
    )
    output(parser)


def _history(options: argparse.Namespace) -> int:
    from torchsplit_core.tables.job_history.hourly_figures import hour_rows, hours_csv
    from torchsplit_core.tables.job_history.job_classes import jobs_by_class
    from torchsplit_core.tables.job_history.observed_hours import observed_hours
    from torchsplit_core.tables.job_history.read_files import read_history

    _check_options(options)
    zone = _zone(options.time_zone)
    texts = [(path, read_table(path)) for path in options.files]
    history = read_history(texts, zone=zone, skip_bad=options.skip_bad)
    bounds = (
        _moment(f"--{name}", text, zone) for name, text in (("from", options.begin), ("to", options.end))
    )
    observed = observed_hours(history, *bounds)
    classes = jobs_by_class(history.jobs, options.class_by)
    for note in history.notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"observed {observed.description}", file=sys.stderr)
    if observed.holes:
        days = ", ".join(observed.holes)
        print(f"warning: no row on {days}: not counted, neither as demand nor as none", file=sys.stderr)
    if options.request is not None:
        write_filled_request(classes, observed, options)
        return 0
    rows = hour_rows(classes, history.samples, observed, options.class_by)
    if options.output:
        files.replace_file(Path(options.output), hours_csv(rows))
    if options.json:
        listed = [asdict(row) for row in rows]
        sys.stdout.write(json.dumps(listed, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    elif not options.output:
        sys.stdout.write(hours_csv(rows))
    _print_classes(classes, observed)
    return 0


def _check_options(options: argparse.Namespace) -> None:
    if options.request is not None:
        return
    for name in ("map", "windows", "peak"):
        if getattr(options, name):
            raise InputFault(f"--{name}", "is given without --request", "Name the plan request to fill.")


def _zone(name: str | None) -> tzinfo | None:
    from zoneinfo import ZoneInfo

    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise InputFault(
            "--time-zone",
            f"unknown time zone {quoted(name)}",
            "Write for example Europe/Berlin, or UTC; a system without time zones needs the package tzdata.",
        ) from error


def _moment(option: str, text: str | None, zone: tzinfo | None) -> float | None:
    from datetime import UTC

    from torchsplit_core.tables.cell_parsing import CellFault
    from torchsplit_core.tables.job_history.moments import parse_moment

    if text is None:
        return None
    try:
        return parse_moment(text, zone or UTC)
    except CellFault as fault:
        raise InputFault(option, fault.problem, fault.remedy) from fault


def _print_classes(classes: Mapping[str, Sequence[GpuJob]], observed: ObservedHours) -> None:
    """What a plan needs of each class: jobs/s, and the rate of an instance that runs one job at a time."""
    from torchsplit_core.tables.job_history.hourly_figures import hour_series, mean, mean_duration_s

    for name, jobs in list(classes.items())[:MOST_NAMED]:
        rate = mean(hour_series(jobs, observed).rates)
        duration = mean_duration_s(jobs)
        served = (
            f"{duration:.4g} s each, one at a time {1 / duration:.3g} jobs/s" if duration else "duration n/a"
        )
        print(f"{name}: {rate:.3g} jobs/s, {served}", file=sys.stderr)
    if len(classes) > MOST_NAMED:
        print(f"and {len(classes) - MOST_NAMED} more classes", file=sys.stderr)
