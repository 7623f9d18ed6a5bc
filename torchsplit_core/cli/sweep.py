"""The sweep command: varies one parameter of a plan request over a range, and prints a table."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsplit_core import files
from torchsplit_core.cli.arguments.outputs import output_option
from torchsplit_core.cli.arguments.request_options import apply_demands_as_minima, demands_as_minima_option
from torchsplit_core.cli.arguments.state_options import current_option, with_current
from torchsplit_core.cli.common import Command, with_progress
from torchsplit_core.values import InputFault
from torchsplit_core.values.errors import quoted, suggestion

if TYPE_CHECKING:
    # Imported for types only: the planner takes long to load, and other commands do not need it.
    from torchsplit_core.latency_slo.worst_response import WorstResponse
    from torchsplit_core.planning.sweep.points import Parameter, SweepPoint, SweepRequest

DEFAULT_STEPS = 8
COLUMNS = (
    "value", "status", "proven", "objective", "bound", "bound_from", "gap", "gpus_used", "least_normalised",
    "total_rps", "pareto", "note", "p95_ms", "p95_model", "p95_limit_ms",
)  # fmt: skip
_RANGE = re.compile(r"(?P<start>[^.]+(?:\.\d+)?)\.\.(?P<stop>[^/]+)(?:/(?P<steps>.+))?")


def add_sweep_command(command: Command) -> None:
    """Add sweep to the command line through its `command(name, run)`."""
    parser = command("sweep", _sweep)
    parser.add_argument("request", metavar="REQUEST", help="a file of a plan request, or -")
    parser.add_argument(
        "--vary",
        required=True,
        metavar="WHAT:WHICH=VALUES",
        help="gpus:A100-80GB=1..8, demand:bert=10,20,40, weight:bert=0.5..2/4 (4 values), min_throughput:bert=5..20, "
        "touched_gpus=0..4 (of the current state), attainment=0.9,0.95,0.99 (fewest GPUs for a share of the samples)",
    )
    current_option(parser)
    parser.add_argument(
        "--time-limit", type=float, default=60.0, metavar="S", help="for all points (default 60)"
    )
    demands_as_minima_option(parser)
    output_option(parser, "FILE.csv or FILE.json (default, and -: CSV to standard output)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of CSV")


def parse_vary(text: str) -> SweepRequest:
    """Parse `gpus:A100-80GB=1..8`. Raises InputFault."""
    from torchsplit_core.planning.sweep.points import OF_ALL, PARAMETERS, SweepRequest

    what, equals, values = text.rpartition("=")
    name, _, target = what.partition(":")
    # How many GPUs may change is of the whole fleet, and a share of the samples of all models.
    if not equals or (name not in OF_ALL) is not bool(target.strip()):
        raise InputFault(
            "--vary",
            f"{quoted(text)} is not WHAT:WHICH=VALUES",
            "Write for example gpus:A100-80GB=1..8, touched_gpus=0..4 or attainment=0.9,0.99.",
        )
    if name not in PARAMETERS:
        raise InputFault(
            "--vary", f"{quoted(name)} cannot be varied", suggestion(name, PARAMETERS, "parameters")
        )
    return SweepRequest(name, target.strip(), _values(name, values))


def _values(parameter: Parameter, text: str) -> tuple[float, ...]:
    """Parse `1..8`, `0.5..2/4` (four values) or `10,20,40`."""
    from torchsplit_core.planning.sweep.points import COUNTS, MAX_VALUES, spread_values

    match = _RANGE.fullmatch(text.strip())
    if match is None:
        return tuple(_number(part) for part in text.split(","))
    start, stop = _number(match["start"]), _number(match["stop"])
    if match["steps"] is None and parameter in COUNTS and stop - start < MAX_VALUES:
        return spread_values(parameter, start, stop, max(1, int(stop - start) + 1))
    steps = _number(match["steps"] or str(DEFAULT_STEPS))
    if steps != int(steps):
        raise InputFault(
            "--vary", f"{match['steps']} steps are not a whole number", "Write for example 0.5..2/4."
        )
    return spread_values(parameter, start, stop, int(steps))


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not float("-inf") < number < float("inf"):
        raise InputFault("--vary", f"value {quoted(text)} is not a number", "Write 1..8 or 10,20,40.")
    return number


def _sweep(options: argparse.Namespace) -> int:
    from torchsplit_core.workflow.sweeps import sweep, worst_responses

    if not 0 < options.time_limit < float("inf"):
        raise InputFault("--time-limit", f"is {options.time_limit:g}, not above 0", "Give seconds above 0.")
    what = parse_vary(options.vary)
    suffix = Path(options.output).suffix if options.output else ""
    if suffix not in ("", ".csv", ".json"):
        raise InputFault(
            "-o",
            f"{quoted(options.output)} ends neither in .csv nor in .json",
            "Give a name that ends in one of them.",
        )
    _, request = files.read_file(options.request, expected="torchsplit.plan_request")
    request = with_current(apply_demands_as_minima(request, options), options)
    points = with_progress(
        lambda progress: sweep(request, what, time_limit_s=options.time_limit, progress=progress)
    )
    waits = with_progress(lambda progress: worst_responses(request, what, points, progress=progress))
    rows = table(points, waits)
    if options.output:
        files.replace_file(Path(options.output), _json(rows) if suffix == ".json" else _csv(rows))
    if options.json or not options.output:
        sys.stdout.write(_json(rows) if options.json else _csv(rows))
    solved = [point for point in points if point.gpus_used is not None]
    proven = sum(point.proven for point in solved)
    without = f", {len(points) - len(solved)} without a plan" if len(solved) < len(points) else ""
    print(
        f"{len(points)} values of {what.parameter} {what.target}: {proven} proven{without}", file=sys.stderr
    )
    if solved:
        return 0
    return 3 if all(point.status == "infeasible" for point in points) else 4


def table(points: Sequence[SweepPoint], waits: Mapping[float, WorstResponse | None]) -> list[dict[str, Any]]:
    """One row per value; unknown figures are None."""
    from torchsplit_core.planning.sweep.points import describe_point, undominated_points

    front = {point.value for point in undominated_points(points)}
    return [
        {
            "value": point.value,
            "status": point.status,
            "proven": point.proven,
            "objective": point.objective,
            "bound": point.bound,
            "bound_from": point.bound_from,
            "gap": point.gap,
            "gpus_used": point.gpus_used,
            "least_normalised": point.least,
            "total_rps": point.total_rps,
            "pareto": point.value in front,
            "note": describe_point(point),
            "p95_ms": worst.p95_ms if worst else None,
            "p95_model": worst.model if worst else None,
            "p95_limit_ms": worst.limit_ms if worst else None,
        }
        for point in points
        for worst in (waits.get(point.value),)
    ]


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    from torchsplit_core.tables.write_csv import rows_csv

    return rows_csv(COLUMNS, rows, digits=9)


def _json(rows: Sequence[dict[str, Any]]) -> str:
    return json.dumps(list(rows), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
