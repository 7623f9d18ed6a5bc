"""The command estimate-serving."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from torchsplit_core import files
from torchsplit_core.cli.arguments.outputs import output_option
from torchsplit_core.cli.common import Command, with_progress
from torchsplit_core.cli.tables import read_table

SHOWN_REASONS = 20
"""Most rows without a prediction whose reason is printed."""


def add_estimate_serving_command(command: Command) -> None:
    """Add estimate-serving to the command line through its `command(name, run)`."""
    parser = command("estimate-serving", _estimate)
    parser.add_argument(
        "rows",
        metavar="ROWS.csv",
        help="a row a stage: model or config, gpu, tp, the engine's settings, rate and lengths or a log of requests; "
        "rows with figures (ttft_mean_ms …) calibrate the others of their kind",
    )
    output_option(parser)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON to standard output")


def _estimate(options: argparse.Namespace) -> int:
    from torchsplit_core.serving_estimates.table import estimate_serving

    text = read_table(options.rows)
    table = with_progress(
        lambda progress: estimate_serving(
            text, origin=options.rows, folder=Path(options.rows).parent, progress=progress
        )
    )
    if options.output:
        files.replace_file(Path(options.output), table.csv_text())
    if options.json:
        sys.stdout.write(table.json_text())
    elif not options.output:
        sys.stdout.write(table.csv_text())
    reasons = [f"row {place}: {row.reason}" for place, row in enumerate(table.rows, 1) if row.reason]
    for reason in reasons[:SHOWN_REASONS]:
        print(f"not predicted: {reason}", file=sys.stderr)
    if len(reasons) > SHOWN_REASONS:
        print(f"not predicted: {len(reasons) - SHOWN_REASONS} rows more", file=sys.stderr)
    print(table.summary, file=sys.stderr)
    return 0
