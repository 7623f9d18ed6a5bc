"""The command line: the workflow's functions on files.

Exit codes: 0 done; 1 our own fault; 2 the input is at fault; 3 infeasible, the outcome file
says why; 4 nothing found in the time given.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from torchsplit_core import __version__, telemetry, workflow
from torchsplit_core.cli.app import add_app_command
from torchsplit_core.cli.common import hand_over, readable_too, tell_notes, with_progress
from torchsplit_core.cli.partition import EXIT_OF_STATUS, add_partition_command
from torchsplit_core.cli.place import add_place_command
from torchsplit_core.cli.profile import add_profile_command
from torchsplit_core.cli.sweep import add_sweep_command
from torchsplit_core.cli.tables import add_commands as add_table_commands
from torchsplit_core.files import read_file, replace_file
from torchsplit_core.values import InputFault, Objective, ObjectiveKind


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    # numpy's small matrices are several times slower with threads that wait for a busy machine.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    options = _parser().parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            telemetry.configure("torchsplit")
            with readable_too(getattr(options, "read", ())):
                return int(options.run(options))
    except InputFault as fault:
        print(f"torchsplit: {fault}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print("torchsplit: stopped", file=sys.stderr)
        return 130
    except Exception as error:  # noqa: BLE001 - the edge of the program: one line, never a traceback
        if os.environ.get("TORCHSPLIT_DEBUG"):
            traceback.print_exc()
        print(
            f"torchsplit: an internal fault ({type(error).__name__}: {error}). "
            "Run again with TORCHSPLIT_DEBUG=1 and report what it prints.",
            file=sys.stderr,
        )
        return 1


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """A warning of ours as one line; a library's warning to its developers is not the user's."""
    if issubclass(category, UserWarning):
        print(f"warning: {message}", file=sys.stderr)


def _trace(options: argparse.Namespace) -> int:
    graph = with_progress(
        lambda progress: workflow.trace(options.source, trust=options.trust, progress=progress)
    )
    hand_over(graph, options)
    print(f"{options.source}: {len(graph.nodes)} nodes, {len(graph.ops)} operations", file=sys.stderr)
    tell_notes(graph)
    return 0


def _draw(options: argparse.Namespace) -> int:
    _, graph = read_file(options.graph, expected="torchsplit.graph")
    opened = tuple(path for text in options.open for path in text.split(",") if path)
    text = workflow.drawing(
        graph,
        Path(options.output).suffix,
        options.what,
        opened,
        dark=options.dark,
        without=tuple(options.without),
    )
    replace_file(Path(options.output), text)
    return 0


def _request(options: argparse.Namespace) -> int:
    from torchsplit_core.planning.request.build import build_request, parse_fleet

    request = build_request(
        [read_file(path, expected="torchsplit.profile")[1] for path in options.profiles],
        parse_fleet(options.gpus),
        candidates=[read_file(path, expected="torchsplit.partition")[1] for path in options.candidates],
        demands=_table("--demand", options.demand),
        min_throughputs=_table("--min-throughput", options.min_throughput),
        max_latencies=_table("--max-latency", options.max_latency),
        weights=_table("--weight", options.weight),
        objective=Objective(kind=options.objective),
        sharing=options.sharing,
        link_gb_per_s=options.link,
        time_limit_s=options.time_limit,
    )
    for model in request.models:
        if not any(stage.points for variant in model.variants for stage in variant.stages):
            print(f"warning: {model.name} has no profile row for a slice of this fleet", file=sys.stderr)
    hand_over(request, options)
    return 0


def _plan(options: argparse.Namespace) -> int:
    _, request = read_file(options.request, expected="torchsplit.plan_request")
    outcome = with_progress(
        lambda progress: workflow.plan(request, explain=options.explain, progress=progress)
    )
    hand_over(outcome, options)
    objective = outcome.objective
    print(f"{outcome.status}: {objective.kind} {_figure(objective.value)}", end="", file=sys.stderr)
    if outcome.status in ("optimal", "feasible"):
        print(
            f", bound {_figure(objective.bound)}, gap {_figure(objective.gap)}, "
            f"{objective.proven_levels} levels proven",
            end="",
            file=sys.stderr,
        )
    print(file=sys.stderr)
    for warning in outcome.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    for conflict in outcome.conflicts:
        print(f"conflict: {conflict.message}", file=sys.stderr)
    if outcome.explanation is not None:
        for model in outcome.explanation.models:
            binding = ", ".join(limit.kind for limit in model.limits if limit.binds) or "nothing on its own"
            unsure = sum(limit.binds is None for limit in model.limits)
            more = f" ({unsure} not proven)" if unsure else ""
            print(f"binds {model.model}: {binding}{more}", file=sys.stderr)
    return EXIT_OF_STATUS[outcome.status]


def _figure(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


def _deploy(options: argparse.Namespace) -> int:
    _, outcome = read_file(options.plan, expected="torchsplit.plan")
    for path in workflow.deploy(outcome, Path(options.output), options.format):
        print(path)
    return 0


def _table(option: str, entries: Sequence[str]) -> dict[str, float]:
    """`bert=20` entries, several of them comma-separated or the option repeated."""
    table: dict[str, float] = {}
    for entry in (part for text in entries for part in text.split(",")):
        name, separator, value = entry.partition("=")
        try:
            table[name.strip()] = float(value)
        except ValueError:
            separator = ""
        if not separator or not name.strip():
            raise InputFault(option, entry, "an entry is MODEL=NUMBER", "Write for example bert=20.")
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchsplit",
        description="Trace, profile, partition, plan and deploy PyTorch models on MIG-partitioned GPUs.",
        epilog="SOURCE is sample:NAME (sample:NAME@large for real dimensions), FILE.pt2 (read, never executed) "
        "or FILE.py:NAME (executed, needs --trust).",
    )
    parser.add_argument("--version", action="version", version=f"torchsplit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        return made

    def output(made: argparse.ArgumentParser) -> None:
        made.add_argument("-o", "--output", metavar="FILE", help="write here (default: standard output)")
        made.add_argument("--json", action="store_true", help="print the outcome to standard output")

    def trust(made: argparse.ArgumentParser) -> None:
        made.add_argument(
            "--trust",
            action="store_true",
            help="execute the file: I trust it (isolated as far as this machine allows)",
        )
        made.add_argument(
            "--read",
            action="append",
            default=[],
            metavar="PATH",
            help="a file or folder that the model's code may read, weights for example; may be repeated",
        )

    made = command("trace", _trace, "export a model to its dataflow graph")
    made.add_argument("source")
    trust(made)
    output(made)

    made = command("draw", _draw, "draw a graph file as .svg, or as .dot for Graphviz")
    made.add_argument("graph", metavar="GRAPH")
    made.add_argument("-o", "--output", metavar="FILE", required=True, help="FILE.svg or FILE.dot")
    made.add_argument("--what", default="dataflow", help="dataflow, dominators, post-dominators or regions")
    made.add_argument(
        "--open", action="append", default=[], metavar="MODULE", help="draw it open; all: every one"
    )
    made.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="STEP",
        help="leave a step of the preparation out of regions and dominators: "
        "dead, constants, aliases, weights or side-band",
    )
    made.add_argument("--dark", action="store_true", help="for a dark ground")

    add_profile_command(command, trust, output)

    add_partition_command(command, trust, output)

    made = command("request", _request, "make a plan request of profiles and a fleet")
    made.add_argument("profiles", nargs="+", metavar="PROFILE")
    made.add_argument("--gpus", required=True, metavar="2xA100-80GB,1xA30-24GB")
    made.add_argument(
        "--candidates", nargs="+", default=[], metavar="FILE", help="partitions: each cut becomes a variant"
    )
    for option, text in (
        ("--demand", "requests/s to serve"),
        ("--min-throughput", "requests/s below which a plan is refused"),
        ("--max-latency", "ms one batch may take"),
        ("--weight", "its say in fairness"),
    ):
        made.add_argument(option, action="append", default=[], metavar="MODEL=N", help=text)
    made.add_argument("--objective", default="leximin", choices=get_args(ObjectiveKind))
    made.add_argument("--sharing", default="exclusive", choices=("exclusive", "fractional"))
    made.add_argument("--link", type=float, metavar="GB_PER_S")
    made.add_argument("--time-limit", type=float, default=60.0, metavar="S")
    output(made)

    made = command(
        "plan", _plan, "choose layouts, slices and shares; the outcome is verified and carries its bound"
    )
    made.add_argument("request")
    made.add_argument(
        "--explain",
        action="store_true",
        help="add what binds each model, what changes would bring and why no other layout (at most 5 s more)",
    )
    output(made)

    add_sweep_command(command)

    add_place_command(command, output)

    made = command("deploy", _deploy, "write the files that bring a plan onto GPUs")
    made.add_argument("plan")
    made.add_argument("-o", "--output", required=True, metavar="DIR")
    made.add_argument(
        "--format", action="append", metavar="mig-parted|nvidia-smi|kubernetes", help="default: all"
    )

    add_table_commands(command)

    add_app_command(command)
    return parser
