"""The partition command: cuts a costed graph or a model into stages, and writes the stages as files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsplit_core import files, workflow
from torchsplit_core.cli.arguments.outputs import OutputFolder
from torchsplit_core.cli.common import EXIT_OF_STATUS, Command, Options, with_progress, write_outcome
from torchsplit_core.files.contract import STANDARD_STREAM
from torchsplit_core.values import InputFault
from torchsplit_core.values.errors import quoted
from torchsplit_core.values.units import GIB

if TYPE_CHECKING:
    from torchsplit_core.values import PartitionOutcome


def add_partition_command(command: Command, trust: Options, output: Options) -> None:
    """Add partition to the command line through its `command(name, run)` and its shared options."""
    parser = command("partition", _partition)
    parser.add_argument(
        "input",
        metavar="REQUEST.json|SOURCE",
        help="a costed graph as a partition request (- too), or a model with its --profile",
    )
    parser.add_argument("--profile", metavar="FILE", help="the model's profile (with a source)")
    parser.add_argument(
        "--stages", type=int, default=2, metavar="N", help="at most this many parts (default 2)"
    )
    parser.add_argument("--top-k", type=int, default=5, metavar="N", help="candidates to keep (default 5)")
    parser.add_argument(
        "--link", type=float, metavar="GB_PER_S", help="link between stages (default: no transfer time)"
    )
    parser.add_argument(
        "--objective",
        choices=("throughput", "latency"),
        help="least load of the slowest stage (default), or least time of one batch through all stages",
    )
    parser.add_argument(
        "--memory", type=float, metavar="GIB", help="weights and activations of a stage at most"
    )
    parser.add_argument(
        "--time-factors",
        metavar="1,1,2",
        help="stages on unequal devices: by what each one multiplies the profiled times",
    )
    parser.add_argument(
        "--behind",
        metavar="VALUE[,VALUE]",
        help="a cut of your own, behind these values of the graph, beside the bound of the best into as many stages",
    )
    parser.add_argument(
        "--pareto",
        action="store_true",
        help="candidates of 1 to --stages stages that no other beats in load, bytes across cuts and memory",
    )
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="S", help="to search (default 60)")
    parser.add_argument(
        "--export",
        action=OutputFolder,
        metavar="DIR",
        help="also write the parts of a candidate as .pt2 files with a manifest",
    )
    parser.add_argument(
        "--candidate", type=int, metavar="N", help="which one to export, counted from 1 (default: the best)"
    )
    trust(parser)
    output(parser)


def _partition(options: argparse.Namespace) -> int:
    named = options.input == STANDARD_STREAM or Path(options.input).suffix == ".json"
    outcome = _partition_request(options) if named else _partition_source(options)
    write_outcome(outcome, options)
    print(_summary(outcome), file=sys.stderr)
    if options.export and outcome.candidates:
        _export(options, outcome)
    return EXIT_OF_STATUS[outcome.status]


def _summary(outcome: PartitionOutcome) -> str:
    """Status, number of candidates, the best value of the objective, and its gap."""
    from torchsplit_core.partitioning.candidates import objective_value

    text = f"{outcome.status}: {len(outcome.candidates)} candidates"
    if outcome.candidates:
        value = objective_value(outcome.candidates[0], outcome.objective)
        what = "slowest stage" if outcome.objective == "throughput" else "one batch through all stages"
        text += f", best {value:.4g} ms ({what})"
        if outcome.gap:
            text += f", at most {100 * outcome.gap:.2g} % above the best possible"
    return f"{text}. {outcome.message}".rstrip()


def _partition_request(options: argparse.Namespace) -> PartitionOutcome:
    from torchsplit_core.partitioning import solve_partition

    if options.export:
        raise InputFault(
            "--export",
            f"{options.input} is a costed graph, and only a model has parts to write",
            "Pass the model's source in place of the request.",
        )
    for name in ("objective", "memory", "time_factors", "behind", "pareto"):
        if getattr(options, name):
            raise InputFault(
                f"--{name.replace('_', '-')}",
                f"is given with the request {options.input}, and only a source takes it",
                "Say it in the request.",
            )
    _, request = files.read_file(options.input, expected="torchsplit.partition_request")
    outcome: PartitionOutcome = with_progress(lambda progress: solve_partition(request, progress=progress))
    return outcome


def _partition_source(options: argparse.Namespace) -> PartitionOutcome:
    if not options.profile:
        raise InputFault(
            "--profile",
            "is missing, and a model is cut by its profile",
            "Run torchsplit profile first, and give its file.",
        )
    if not 1 <= options.stages <= 64:
        raise InputFault("--stages", f"is {options.stages}, not 1 to 64", "Give for example --stages 2.")
    if options.memory is not None and not 0 < options.memory < float("inf"):
        raise InputFault(
            "--memory", f"is {options.memory:g}, not a size above 0", "Give GiB, for example --memory 10."
        )
    factors = _time_factors(options)
    if options.behind and (options.pareto or options.memory is not None):
        other = "--pareto" if options.pareto else "--memory"
        raise InputFault(
            "--behind",
            f"is given with {other}, and a cut of your own leaves nothing to choose",
            f"Leave {other} out.",
        )
    if options.candidate is not None and not options.export:
        raise InputFault(
            "--candidate", f"is {options.candidate}, but nothing is exported", "Add --export DIR."
        )
    if options.export:
        from torchsplit_core.stages.export_folder import check_target

        check_target(Path(options.export))
    _, profile = files.read_file(options.profile, expected="torchsplit.profile")
    outcome: PartitionOutcome
    if options.behind:
        outcome = with_progress(
            lambda progress: workflow.own_partition(
                options.input,
                profile,
                tuple(name.strip() for name in options.behind.split(",")),
                link_gb_per_s=options.link,
                objective=options.objective or "throughput",
                time_factors=factors,
                time_limit_s=options.time_limit,
                trust=options.trust,
                progress=progress,
            )
        )
        return outcome
    outcome = with_progress(
        lambda progress: workflow.partition(
            options.input,
            profile,
            stages=options.stages,
            top_k=options.top_k,
            pareto=options.pareto,
            link_gb_per_s=options.link,
            memory_bytes=None if options.memory is None else int(options.memory * GIB),
            objective=options.objective or "throughput",
            time_factors=factors,
            time_limit_s=options.time_limit,
            trust=options.trust,
            progress=progress,
        )
    )
    return outcome


def _time_factors(options: argparse.Namespace) -> tuple[float, ...] | None:
    if options.time_factors is None:
        return None
    try:
        factors = tuple(float(part) for part in options.time_factors.split(","))
    except ValueError:
        factors = ()
    if not factors or not all(0 < factor < float("inf") for factor in factors):
        raise InputFault(
            "--time-factors",
            f"is {quoted(options.time_factors)}, not numbers above 0 with commas between",
            "Give for example 1,1,2.",
        )
    if not options.behind and len(factors) != options.stages:
        raise InputFault(
            "--time-factors",
            f"has {len(factors)} numbers for {options.stages} stages",
            "Give one for each stage, or change --stages.",
        )
    return factors


def _export(options: argparse.Namespace, outcome: PartitionOutcome) -> None:
    """Write the parts of the requested candidate, or else of the first that can be cut; print what was written."""
    from torchsplit_core.stages.export import export_first

    first = 1 if options.candidate is None else options.candidate
    if not 1 <= first <= len(outcome.candidates):
        raise InputFault(
            "--candidate",
            f"is {first}, and the candidates found are 1 to {len(outcome.candidates)}",
            "Give one of them, or a larger --top-k.",
        )
    candidates = outcome.candidates if options.candidate is None else outcome.candidates[first - 1 : first]

    def write(progress: Any) -> Any:
        return export_first(
            options.input,
            candidates,
            options.export,
            architecture_hash=outcome.architecture_hash,
            trust=options.trust,
            progress=progress,
        )

    written = with_progress(write)
    for number, reason in enumerate(written.refused, start=first):
        print(f"candidate {number} cannot be written: {reason}", file=sys.stderr)
    manifest = written.manifest
    for note in manifest.notes:
        print(f"note: {note}", file=sys.stderr)
    checked = ", ".join(map(str, manifest.verified_batches))
    verification = (
        f"equal to the model to the bit at batch {checked}" if checked else "not compared with the model"
    )
    print(
        f"{options.export}: {len(manifest.stages)} parts of candidate {first + written.number}, {verification}",
        file=sys.stderr,
    )
