"""The commands estimate-training and strategy."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from torchsplit_core import files, workflow
from torchsplit_core.cli.arguments.outputs import OutputFile, output_option
from torchsplit_core.cli.common import EXIT_OF_STATUS, Command, Options, with_progress, write_outcome
from torchsplit_core.cli.tables import read_table
from torchsplit_core.values import InputFault
from torchsplit_core.values.progress import Progress
from torchsplit_core.values.strategy.request import SourceSizes

if TYPE_CHECKING:
    from torchsplit_core.graph.torch_graph import TorchGraph
    from torchsplit_core.strategy.supported import Runner
    from torchsplit_core.values import Profile
    from torchsplit_core.values.strategy.outcome import StrategyCandidate, StrategyOutcome
    from torchsplit_core.values.strategy.request import StrategyRequest

SHOWN_REASONS = 20
"""Most rows without a prediction whose reason is printed."""


def add_training_commands(command: Command, trust: Options, output: Options) -> None:
    """Add estimate-training and strategy to the command line through its `command(name, run)` and shared options."""
    strategy_parser = command("strategy", _strategy)
    strategy_parser.add_argument("input", metavar="REQUEST", help="a strategy request, or -")
    strategy_parser.add_argument(
        "--explain",
        action="store_true",
        help="search nothing: print which choices an exported file and a training run carry out, for this model",
    )
    strategy_parser.add_argument(
        "--export",
        action=OutputFile,
        metavar="FILE.py",
        help="also write a candidate as a plain PyTorch file for torchrun",
    )
    strategy_parser.add_argument(
        "--candidate",
        type=int,
        metavar="N",
        help="which one to export, counted from 1 (default: the best that can be)",
    )
    trust(strategy_parser)
    output(strategy_parser)
    estimate_parser = command("estimate-training", _estimate)
    estimate_parser.add_argument(
        "rows", metavar="ROWS.csv", help="a row a training: model sizes, GPUs, how it is divided"
    )
    output_option(estimate_parser)
    estimate_parser.add_argument(
        "--known",
        metavar="MEASURED.csv",
        help="one to three measured rows of yours (iter_s filled): their offset holds for rows of their framework "
        "and GPU",
    )
    estimate_parser.add_argument(
        "--json", action="store_true", help="print the rows as JSON to standard output"
    )


def _estimate(options: argparse.Namespace) -> int:
    from torchsplit_core.strategy.estimated_table import estimate_table

    table = estimate_table(
        read_table(options.rows),
        read_table(options.known) if options.known else "",
        origin=options.rows,
        known_origin=options.known or "",
    )
    if options.output:
        files.replace_file(Path(options.output), table.csv_text())
    if options.json:
        sys.stdout.write(table.json_text())
    elif not options.output:
        sys.stdout.write(table.csv_text())
    for reason in table.reasons[:SHOWN_REASONS]:
        print(f"not predicted: {reason}", file=sys.stderr)
    if len(table.reasons) > SHOWN_REASONS:
        print(f"not predicted: {len(table.reasons) - SHOWN_REASONS} rows more", file=sys.stderr)
    for line in table.summary:
        print(line, file=sys.stderr)
    return 0


def _choose_candidate(outcome: StrategyOutcome, number: int | None) -> StrategyCandidate:
    """The candidate of that number (from 1); if None, the best that can be exported, else the best."""
    if number is None:
        exportable = (candidate for candidate in outcome.candidates if candidate.not_exportable is None)
        return next(exportable, outcome.candidates[0])
    position = number
    if not 1 <= position <= len(outcome.candidates):
        raise InputFault(
            "--candidate",
            f"is {position}, and the candidates found are 1 to {len(outcome.candidates)}",
            "Give one of them, or raise top_k in the request.",
        )
    return outcome.candidates[position - 1]


def _profile(request: StrategyRequest, folder: Path) -> Profile | None:
    """The profile that a request for a source names, in the request's `folder` or else the current one."""
    if not isinstance(request.model, SourceSizes) or request.model.profile is None:
        return None
    sibling = folder / request.model.profile
    profile: Profile = files.read_file(
        str(sibling if sibling.is_file() else request.model.profile), expected="torchsplit.profile"
    )[1]
    return profile


def find_strategy(
    request: StrategyRequest,
    folder: Path,
    *,
    runners: tuple[Runner, ...] | None = None,
    trust: bool,
    progress: Progress,
) -> tuple[StrategyOutcome, TorchGraph | None]:
    """The outcome of a request in that folder, and the graph of its model if that is given by a source.

    `runners`: what must be able to execute the candidates (None: any).
    """
    from torchsplit_core.strategy.supported import RUNNERS

    profile = _profile(request, folder)
    graph = None
    if isinstance(request.model, SourceSizes):
        graph = workflow.trace(request.model.source, trust=trust)
    outcome = workflow.strategy(
        request, graph=graph, profile=profile, runners=runners or RUNNERS, trust=trust, progress=progress
    )
    return outcome, graph


def _strategy(options: argparse.Namespace) -> int:
    request = files.read_file(options.input, expected="torchsplit.strategy_request")[1]
    if options.explain:
        from torchsplit_core.strategy.supported import traits_of
        from torchsplit_core.workflow.capabilities import capability_table

        sys.stdout.write(capability_table(traits_of(request.model)))
        return 0
    outcome, graph = with_progress(
        lambda progress: find_strategy(
            request, Path(options.input).parent, trust=options.trust, progress=progress
        )
    )
    write_outcome(outcome, options)
    refused = sum(refusal.count for refusal in outcome.refused)
    print(f"{outcome.status}: {outcome.message}", file=sys.stderr)
    print(f"{outcome.considered:,} choices considered, {refused:,} refused", file=sys.stderr)
    for refusal in outcome.refused:
        nearest = f"; nearest: {refusal.nearest}" if refusal.nearest else ""
        print(f"  {refusal.count:,}: {refusal.reason}{nearest}", file=sys.stderr)
    for number, candidate in enumerate(outcome.candidates, 1):
        if candidate.not_exportable:
            print(f"candidate {number} cannot be exported: {candidate.not_exportable}", file=sys.stderr)
    if options.export and outcome.candidates:
        # Last, so that the outcome is written even if the candidate cannot be exported.
        chosen = _choose_candidate(outcome, options.candidate)
        text = workflow.strategy_script(request, chosen, graph=graph, trust=options.trust)
        files.replace_file(Path(options.export), text)
    return EXIT_OF_STATUS[outcome.status]
