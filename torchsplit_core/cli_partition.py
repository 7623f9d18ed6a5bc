"""The partition command: a costed graph or a model into stages, and the stages as files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchsplit_core import workflow
from torchsplit_core.cli_common import hand_over, with_progress
from torchsplit_core.files import read_file
from torchsplit_core.values import InputFault, PartitionOutcome

Command = Callable[[str, Callable[[argparse.Namespace], int], str], argparse.ArgumentParser]
Options = Callable[[argparse.ArgumentParser], None]
EXIT_OF_STATUS = {"optimal": 0, "feasible": 0, "infeasible": 3, "timeout": 4}


def add_partition_command(command: Command, trust: Options, output: Options) -> None:
    """Add partition to the command line through its `command(name, run, text)` and its shared options."""
    made = command("partition", _partition, "cut a model, or a costed graph, into stages")
    made.add_argument("input", metavar="REQUEST.json|SOURCE")
    made.add_argument("--profile", metavar="FILE", help="the model's profile (with a source)")
    made.add_argument("--stages", type=int, default=2, help="at most this many parts (default 2)")
    made.add_argument("--top-k", type=int, default=5, help="candidates to keep (default 5)")
    made.add_argument(
        "--link", type=float, metavar="GB_PER_S", help="link between stages (default: no transfer time)"
    )
    made.add_argument("--time-limit", type=float, default=60.0, metavar="S")
    made.add_argument(
        "--export", metavar="DIR", help="also write the parts of a candidate as .pt2 files with a manifest"
    )
    made.add_argument(
        "--candidate", type=int, metavar="N", help="which one to export, counted from 1 (default: the best)"
    )
    trust(made)
    output(made)


def _partition(options: argparse.Namespace) -> int:
    outcome = _of_request(options) if Path(options.input).suffix == ".json" else _of_source(options)
    hand_over(outcome, options)
    best = f", best {outcome.candidates[0].max_load_ms:.4g} ms" if outcome.candidates else ""
    print(
        f"{outcome.status}: {len(outcome.candidates)} candidates{best}. {outcome.message}".rstrip(),
        file=sys.stderr,
    )
    if options.export and outcome.candidates:
        _export(options, outcome)
    return EXIT_OF_STATUS[outcome.status]


def _of_request(options: argparse.Namespace) -> PartitionOutcome:
    from torchsplit_core.partitioning import solve_partition

    if options.export:
        raise InputFault(
            "--export", options.export, "parts are those of a model", "Pass its source instead of a request."
        )
    _, request = read_file(options.input, expected="torchsplit.partition_request")
    outcome: PartitionOutcome = with_progress(lambda progress: solve_partition(request, progress=progress))
    return outcome


def _of_source(options: argparse.Namespace) -> PartitionOutcome:
    if not options.profile:
        raise InputFault(
            "--profile", "none", "cutting a model needs its profile", "Run torchsplit profile first."
        )
    if not 1 <= options.stages <= 64:
        raise InputFault("--stages", options.stages, "stages are 1 to 64", "Pass for example --stages 2.")
    if options.candidate is not None and not options.export:
        raise InputFault("--candidate", options.candidate, "it goes with --export", "Add --export DIR.")
    if options.export:
        from torchsplit_core.stages.folder import check_target

        check_target(Path(options.export))
    _, found = read_file(options.profile, expected="torchsplit.profile")
    outcome: PartitionOutcome = with_progress(
        lambda progress: workflow.partition(
            options.input,
            found,
            stages=options.stages,
            top_k=options.top_k,
            link_gb_per_s=options.link,
            time_limit_s=options.time_limit,
            trust=options.trust,
            progress=progress,
        )
    )
    return outcome


def _export(options: argparse.Namespace, outcome: PartitionOutcome) -> None:
    """Write the parts of the candidate asked for, and say what was written."""
    from torchsplit_core.stages.export import export_stages

    number = 1 if options.candidate is None else options.candidate
    if not 1 <= number <= len(outcome.candidates):
        raise InputFault(
            "--candidate",
            number,
            f"candidates are 1 to {len(outcome.candidates)}",
            "Pass a smaller number, or a larger --top-k.",
        )

    def write(progress: Any) -> Any:
        return export_stages(
            options.input,
            outcome.candidates[number - 1],
            options.export,
            architecture_hash=outcome.architecture_hash,
            trust=options.trust,
            progress=progress,
        )

    manifest = with_progress(write)
    for note in manifest.notes:
        print(f"note: {note}", file=sys.stderr)
    checked = ", ".join(map(str, manifest.verified_batches))
    told = f"equal to the model to the bit at batch {checked}" if checked else "not compared with the model"
    print(f"{options.export}: {len(manifest.stages)} parts, {told}", file=sys.stderr)
