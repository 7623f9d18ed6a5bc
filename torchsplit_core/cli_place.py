"""The place command: a decoder's layers on particular GPUs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace

from torchsplit_core import workflow
from torchsplit_core.cli_common import hand_over, with_progress
from torchsplit_core.cli_partition import EXIT_OF_STATUS
from torchsplit_core.files import read_file, write_file
from torchsplit_core.values import InputFault, PlacementOutcome, PlacementRequest

Command = Callable[[str, Callable[[argparse.Namespace], int], str], argparse.ArgumentParser]
Options = Callable[[argparse.ArgumentParser], None]

BUILDS = {
    "phase": "phase",
    "sequence": "sequence_length",
    "batch": "batch_size",
    "max_gpus": "max_gpus_per_segment",
    "efficiency": "communication_efficiency",
    "split": "split",
    "network": "network_gb_per_s",
    "inside": "inside_gb_per_s",
    "matrix": "matrix",
}
"""Options that build a request, with what they are called there."""


def add_place_command(command: Command, output: Options) -> None:
    """Add place to the command line through its `command(name, run, text)` and its shared options."""
    made = command("place", _place, "place a decoder's layers on particular GPUs, with the bound of the best")
    made.add_argument(
        "input",
        metavar="REQUEST|MODEL",
        help="a placement request, or with --fleet a config.json or a known decoder (llama-3.1-70b, …)",
    )
    made.add_argument("--fleet", metavar="2x8xH100-SXM5-80GB", help="nodes x GPUs x type, several by commas")
    made.add_argument("--phase", choices=("prefill", "decode"), help="default decode")
    made.add_argument("--sequence", type=int, metavar="TOKENS", help="length of a sequence (default 2048)")
    made.add_argument("--batch", type=int, metavar="N", help="sequences at once (default 32)")
    made.add_argument("--max-gpus", type=int, metavar="N", help="at most in a segment (default 1)")
    made.add_argument("--efficiency", type=float, metavar="SHARE", help="of several GPUs (default 0.85)")
    made.add_argument("--split", choices=("equal", "proportional"), help="of the batch (default equal)")
    made.add_argument("--network", type=float, metavar="GB_PER_S", help="between nodes (default 100 Gbit/s)")
    made.add_argument(
        "--inside", type=float, metavar="GB_PER_S", help="in a node (default: NVLink, else PCIe)"
    )
    made.add_argument(
        "--matrix", metavar="FILE.csv", help="GB/s from each GPU to each other instead of these"
    )
    made.add_argument("--request", metavar="FILE", help="also write the request that --fleet makes")
    made.add_argument(
        "--method",
        choices=("exact", "literal"),
        help="instead of the request's: exact, or the published program as it stands",
    )
    made.add_argument("--time-limit", type=float, metavar="S", help="instead of the request's")
    output(made)


def _place(options: argparse.Namespace) -> int:
    request = _request(options)
    solver = request.solver
    if options.method:
        solver = replace(solver, method=options.method)
    if options.time_limit is not None:
        solver = replace(solver, time_limit_s=options.time_limit)
    request = replace(request, solver=solver)
    if options.request:
        write_file(request, options.request)
    outcome: PlacementOutcome = with_progress(lambda progress: workflow.place(request, progress=progress))
    hand_over(outcome, options)
    print(_summary(outcome), file=sys.stderr)
    return EXIT_OF_STATUS[outcome.status]


def _request(options: argparse.Namespace) -> PlacementRequest:
    given = {
        name: value for option, name in BUILDS.items() if (value := getattr(options, option)) is not None
    }
    if options.fleet:
        return workflow.placement_request(options.input, options.fleet, **given)
    if given or options.request:
        option = next((key for key, name in BUILDS.items() if name in given), "request")
        raise InputFault(
            f"--{option.replace('_', '-')}",
            getattr(options, option),
            "it goes with --fleet",
            "Say it in the request, or add --fleet.",
        )
    request: PlacementRequest = read_file(options.input, expected="torchsplit.placement_request")[1]
    return request


def _summary(outcome: PlacementOutcome) -> str:
    """Status, the throughput with its gap, and the pipeline in a line."""
    if outcome.throughput is None:
        return f"{outcome.status}: {outcome.message}"
    # In the literal units a link's transfers/s may be the least: the figure then has no one unit.
    unit = " tokens/s" if outcome.units == "tokens_per_s" else ""
    text = f"{outcome.status}: {outcome.throughput:.6g}{unit}"
    if outcome.status == "feasible":
        gap = "not known" if outcome.gap is None else f"{100 * outcome.gap:.2g} %"
        text += f", gap to the bound {gap}"
    pipeline = "; ".join(
        f"layers {part.start_layer}–{part.end_layer} on {', '.join(map(str, part.gpu_ids))}"
        for part in outcome.segments
    )
    return f"{text}. {pipeline}"
