"""The place command: places a decoder's layers on particular GPUs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from torchsplit_core import files, workflow
from torchsplit_core.cli.arguments.outputs import OutputFile
from torchsplit_core.cli.common import EXIT_OF_STATUS, Command, Options, with_progress, write_outcome
from torchsplit_core.values import (
    InputFault,
)
from torchsplit_core.values.placement import Split
from torchsplit_core.values.units import GB, GIB

if TYPE_CHECKING:
    from torchsplit_core.placement.alternatives import Alternative
    from torchsplit_core.placement.comparison import ComparedMethod
    from torchsplit_core.values import (
        PlacedSegment,
        PlacementFrontier,
        PlacementOutcome,
        PlacementRequest,
    )

REQUEST_KEYWORDS = {
    "phase": "phase",
    "sequence": "sequence_length",
    "batch": "batch_size",
    "max_gpus": "max_gpus_per_segment",
    "efficiency": "communication_efficiency",
    "split": "split",
    "in_flight": "sequences_in_flight",
    "prefill_chunk": "prefill_chunk",
    "network": "network_gib_per_s",
    "inside": "inside_gib_per_s",
    "matrix": "matrix",
}
"""Options that build a request, with the names of the request's fields."""

LINK_OPTIONS = ("network", "inside")
"""Options in GB/s, the unit of vendors; a request has GiB/s."""

SETTING_OPTIONS = ("max_gpus", "split", "in_flight", "replicas", "method")
"""If none of these is given, the command prints what other settings would give."""

MOST_SHOWN = 8
"""Most pipelines that the summary lists."""


def add_place_command(command: Command, output: Options) -> None:
    """Add place to the command line through its `command(name, run)` and its shared options."""
    parser = command("place", _place)
    parser.add_argument(
        "input",
        metavar="REQUEST|MODEL",
        help="a placement request, or with --fleet a config.json or a known decoder (llama-3.1-70b, …)",
    )
    parser.add_argument(
        "--fleet", metavar="2x8xH100-SXM5-80GB", help="nodes x GPUs x type, several by commas"
    )
    parser.add_argument("--phase", choices=("prefill", "decode"), help="default decode")
    parser.add_argument("--sequence", type=int, metavar="TOKENS", help="length of a sequence (default 2048)")
    parser.add_argument("--batch", type=int, metavar="N", help="sequences at once (default 32)")
    parser.add_argument("--max-gpus", type=int, metavar="N", help="at most in a segment (default 1)")
    parser.add_argument("--efficiency", type=float, metavar="SHARE", help="of several GPUs (default 0.85)")
    parser.add_argument(
        "--split",
        choices=get_args(Split),
        help="of the batch (default equal), or tensor: every layer cut among the GPUs of a segment",
    )
    parser.add_argument(
        "--in-flight",
        type=int,
        metavar="N",
        help="sequences in flight in a decode (default: a batch a segment)",
    )
    parser.add_argument(
        "--prefill-chunk", type=int, metavar="TOKENS", help="of prompts beside a decode (default: none)"
    )
    parser.add_argument(
        "--network", type=float, metavar="GB_PER_S", help="between nodes (default 12.5: 100 Gbit/s)"
    )
    parser.add_argument(
        "--inside", type=float, metavar="GB_PER_S", help="in a node (default: NVLink, else PCIe)"
    )
    parser.add_argument(
        "--matrix", metavar="FILE.csv", help="GB/s from each GPU to each other instead of these"
    )
    parser.add_argument(
        "--request", action=OutputFile, metavar="FILE", help="also write the request that --fleet makes"
    )
    parser.add_argument(
        "--method",
        choices=("exact", "literal"),
        help="instead of the request's: exact, or the published program as it stands",
    )
    parser.add_argument("--time-limit", type=float, metavar="S", help="instead of the request's")
    parser.add_argument(
        "--replicas",
        type=int,
        metavar="N",
        help="instead of the request's: at most so many pipelines at once, for the largest sum",
    )
    parser.add_argument(
        "--frontier",
        action=OutputFile,
        metavar="FILE",
        help="also write throughput against latency of one pipeline, as JSON, or as a table where it ends in .csv",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="also tell what one GPU a segment, counts of GPUs only and particular GPUs come to, side by side",
    )
    output(parser)


def _place(options: argparse.Namespace) -> int:
    request, version = _request(options)
    solver = request.solver
    if options.method:
        solver = replace(solver, method=options.method)
    if options.time_limit is not None:
        solver = replace(solver, time_limit_s=options.time_limit)
    request = replace(request, solver=solver)
    if options.replicas is not None:
        request = replace(request, max_replicas=options.replicas)
    if options.request:
        files.write_file(request, options.request, version)
    if options.frontier:
        curve = with_progress(lambda progress: workflow.placement_frontier(request, progress=progress))
        _write_curve(curve, Path(options.frontier), version)
        print(_curve_summary(curve), file=sys.stderr)
    if options.compare:
        comparison = with_progress(lambda progress: workflow.compare_placements(request, progress=progress))
        print(_format_comparison(comparison), file=sys.stderr)
    if options.compare or request.solver.method == "literal":
        print(workflow.literal_size(request), file=sys.stderr)
    outcome: PlacementOutcome = with_progress(lambda progress: workflow.place(request, progress=progress))
    write_outcome(outcome, options, version)
    print(_summary(outcome), file=sys.stderr)
    if options.fleet and all(getattr(options, name) is None for name in SETTING_OPTIONS):
        others = with_progress(
            lambda progress: workflow.placement_alternatives(request, options.fleet, progress=progress)
        )
        print(_format_alternatives(outcome, others), file=sys.stderr, end="")
    return EXIT_OF_STATUS[outcome.status]


def _request(options: argparse.Namespace) -> tuple[PlacementRequest, int | None]:
    """The request, and the version of its file, which is also that of the outcome. None: the newest."""
    given = {
        name: value * GB / GIB if option in LINK_OPTIONS else value
        for option, name in REQUEST_KEYWORDS.items()
        if (value := getattr(options, option)) is not None
    }
    if options.fleet:
        return workflow.placement_request(options.input, options.fleet, **given), None
    if given or options.request:
        option = next((key for key, name in REQUEST_KEYWORDS.items() if name in given), "request")
        raise InputFault(
            f"--{option.replace('_', '-')}",
            "is given without --fleet; it makes a request, and a request is given",
            "Write it into the request, or give a model and --fleet.",
        )
    version, request = files.read_versioned(options.input, expected="torchsplit.placement_request")
    return request, version


def _summary(outcome: PlacementOutcome) -> str:
    """Status, throughput, gap, and each pipeline on a line."""
    if outcome.throughput is None:
        return f"{outcome.status}: {outcome.message}"
    # In literal units a link's transfers/s may be the minimum, so the figure has no single unit.
    unit = " tokens/s" if outcome.units == "tokens_per_s" else ""
    text = f"{outcome.status}: {outcome.throughput:.6g}{unit}"
    if outcome.status == "feasible":
        gap = "not known" if outcome.gap is None else f"{100 * outcome.gap:.2g} %"
        text += f", gap to the bound {gap}"
    text += _format_token_time(outcome)
    if outcome.sequences_in_flight is not None:
        text += f", {outcome.sequences_in_flight:,} sequences in flight"
    if len(outcome.replicas) < 2:
        return f"{text}. {_format_layers(outcome.segments)}"
    shown = [
        f"{replica.throughput:.6g}{unit}: {_format_layers(replica.segments)}"
        for replica in outcome.replicas[:MOST_SHOWN]
    ]
    if len(outcome.replicas) > MOST_SHOWN:
        shown.append(f"and {len(outcome.replicas) - MOST_SHOWN} more")
    return "\n  ".join([f"{text} in {len(outcome.replicas)} pipelines", *shown])


def _format_token_time(outcome: PlacementOutcome) -> str:
    """The time per token of a sequence, and how much of it is waiting; "" if the phase is not decode."""
    seconds = outcome.seconds_per_token
    if seconds is None:
        return ""
    text = f", {1e3 * seconds:.4g} ms a token"
    if outcome.latency_s is not None and seconds > 1.001 * outcome.latency_s:
        text += f" (a pass {1e3 * outcome.latency_s:.4g} ms, the rest waits for the slowest segment)"
    return text


def _format_alternatives(outcome: PlacementOutcome, others: Sequence[Alternative]) -> str:
    """A header and one line per alternative; "" if there are none."""
    width = max((len(alternative.options) for alternative in others), default=0)
    lines = [
        f"  {alternative.options.ljust(width)}  {_format_difference(outcome, alternative.outcome)}"
        for alternative in others
    ]
    return "\n".join(["Other settings on this fleet give:", *lines, ""]) if lines else ""


def _format_difference(outcome: PlacementOutcome, other: PlacementOutcome) -> str:
    if _is_same(outcome, other):
        return "the same"
    return f"{other.throughput:.6g} tokens/s{_format_token_time(other)}, {other.status}"


def _is_same(first: PlacementOutcome, second: PlacementOutcome) -> bool:
    """Whether throughput and time are equal to three significant digits."""

    def figures(outcome: PlacementOutcome) -> tuple[str, str]:
        return (
            f"{outcome.throughput or 0.0:.3g}",
            f"{outcome.seconds_per_token or outcome.latency_s or 0.0:.3g}",
        )

    return figures(first) == figures(second)


def _format_comparison(comparison: Sequence[ComparedMethod]) -> str:
    """A header and one line per solver."""
    from torchsplit_core.placement.comparison import comparison_rows

    rows = [("solver", "tokens/s", "on its GPUs", "status", "GPUs"), *comparison_rows(comparison)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _format_layers(segments: Sequence[PlacedSegment]) -> str:
    return "; ".join(
        f"layers {part.start_layer}–{part.end_layer} on {', '.join(map(str, part.gpu_ids))}"
        for part in segments
    )


def _write_curve(curve: PlacementFrontier, path: Path, version: int | None) -> None:
    """Write the curve as a contract file, or to a .csv path as one line per point."""
    if path.suffix != ".csv":
        files.write_file(curve, path, version)
        return
    lines = ["throughput,latency_s,latency_bound_s,segments,gpus"]
    for point in curve.points:
        gpus = sum(len(part.gpu_ids) for part in point.segments)
        figures = f"{point.throughput!r},{point.latency_s!r},{point.latency_bound_s!r}"
        lines.append(f"{figures},{len(point.segments)},{gpus}")
    files.replace_file(path, "\n".join(lines) + "\n")


def _curve_summary(curve: PlacementFrontier) -> str:
    """Status, number of points, the first and last point, and the outcome's message."""
    if not curve.points:
        return f"curve {curve.status}: {curve.message}"
    low, high = curve.points[0], curve.points[-1]
    unit = " tokens/s" if curve.units == "tokens_per_s" else ""
    count = f"{len(curve.points)} points" if len(curve.points) > 1 else "one point"
    text = f"curve {curve.status}: {count}, {low.throughput:.6g}{unit} in {low.latency_s:.4g} s"
    if len(curve.points) > 1:
        text += f" to {high.throughput:.6g}{unit} in {high.latency_s:.4g} s"
    return f"{text}. {curve.message}".rstrip()
