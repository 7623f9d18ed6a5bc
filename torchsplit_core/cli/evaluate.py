"""The evaluate command: writes the evaluation of the planner into a folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from torchsplit_core import files
from torchsplit_core.cli.arguments.outputs import OutputFile, OutputFolder
from torchsplit_core.cli.common import Command, with_progress
from torchsplit_core.values import InputFault
from torchsplit_core.values.errors import quoted


def add_evaluate_command(command: Command) -> None:
    """Add evaluate to the command line through its `command(name, run)`."""
    parser = command("evaluate", _evaluate)
    parser.add_argument(
        "-o", "--output", action=OutputFolder, metavar="DIR", required=True,
        help="folder for the outcome and its files; a run that was cut off goes on with what is there",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="fewer mixes and weights, shorter searches")
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="S",
        help="seconds that each plan may search for (default 5, with --quick 2); what is at most needed for all of "
        "them is told before they begin",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="begin anew, whatever a former run has left in DIR"
    )
    parser.add_argument(
        "--doc",
        action=OutputFile,
        metavar="FILE",
        help="also write it as a Markdown document, FILE.md, and the outcome beside that",
    )
    parser.add_argument("--json", action="store_true", help="print the outcome to standard output")


def _evaluate(options: argparse.Namespace) -> int:
    from torchsplit_core.evaluation import output_folder
    from torchsplit_core.evaluation.grid import settings_of
    from torchsplit_core.evaluation.report.markdown import document
    from torchsplit_core.evaluation.run import plans_to_search
    from torchsplit_core.evaluation.search_budget import effort_words
    from torchsplit_core.workflow.evaluation import evaluate

    limit = options.time_limit
    if limit is not None and not 0 < limit < float("inf"):
        raise InputFault("--time-limit", f"is {limit:g}, not above 0", "Give seconds above 0.")
    if options.doc and not options.doc.endswith(".md"):
        raise InputFault(
            "--doc", f"is {quoted(options.doc)}, not a Markdown file", "Give a name that ends in .md."
        )
    folder = Path(options.output)
    settings = settings_of(options.quick, limit)
    known = None if options.fresh else output_folder.read_previous(folder, settings)
    plans = plans_to_search(settings=settings, known=known)
    print(effort_words(plans, settings.time_limit_s), file=sys.stderr)
    outcome = with_progress(
        lambda progress: evaluate(
            quick=options.quick,
            time_limit_s=limit,
            known=known,
            keep=lambda partial: output_folder.save_outcome(partial, folder),
            progress=progress,
        )
    )
    output_folder.write_files(outcome, folder)
    if options.doc:
        files.replace_file(Path(options.doc), document(outcome))
        files.write_file(outcome, Path(options.doc).with_suffix(".json"))
    if options.json:
        sys.stdout.write(files.write_text(outcome))
    for claim in outcome.claims:
        print(f"claim {claim.number}: {claim.verdict}. {claim.text}", file=sys.stderr)
    print(f"{len(outcome.cases)} cases in {folder}", file=sys.stderr)
    return 0
