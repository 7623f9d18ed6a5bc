"""The commands request, plan and deploy: profiles and a fleet to a plan, and the plan to files for the GPUs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from torchsplit_core import workflow
from torchsplit_core.cli.common import EXIT_OF_STATUS, Command, Options, hand_over, with_progress
from torchsplit_core.files import read_file
from torchsplit_core.values import InputFault, Objective, ObjectiveKind, PlanOutcome, PlanRequest


def add_plan_commands(command: Command, output: Options) -> None:
    """Add request and plan to the command line through its `command(name, run, text)` and its shared options."""
    made = command("request", _request, "make a plan request of profiles and a fleet")
    made.add_argument("profiles", nargs="+", metavar="PROFILE")
    made.add_argument("--gpus", required=True, metavar="2xA100-80GB,1xA30-24GB:whole,1xCPU-16c")
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
    _spare(made, 0)
    made.add_argument("--sharing", default="exclusive", choices=("exclusive", "fractional"))
    made.add_argument("--link", type=float, metavar="GB_PER_S")
    made.add_argument("--time-limit", type=float, default=60.0, metavar="S")
    output(made)

    made = command(
        "plan", _plan, "choose layouts, slices and shares; the outcome is verified and carries its bound"
    )
    made.add_argument("request")
    _spare(made, None)
    made.add_argument(
        "--explain",
        action="store_true",
        help="add what binds each model, what changes would bring and why no other layout (at most 5 s more)",
    )
    output(made)


def _spare(made: argparse.ArgumentParser, default: int | None) -> None:
    made.add_argument(
        "--spare",
        type=int,
        choices=(0, 1),
        default=default,
        metavar="0|1",
        help="1: every minimum still holds with any one GPU lost (objective.survives)",
    )


def add_deploy_command(command: Command) -> None:
    """Add deploy to the command line through its `command(name, run, text)`."""
    made = command("deploy", _deploy, "write the files that bring a plan onto GPUs")
    made.add_argument("plan")
    made.add_argument("-o", "--output", required=True, metavar="DIR")
    made.add_argument(
        "--format", action="append", metavar="mig-parted|nvidia-smi|kubernetes", help="default: all"
    )


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
        objective=Objective(kind=options.objective, survives=options.spare),
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
    if options.spare is not None:
        request = replace(request, objective=replace(request.objective, survives=options.spare))
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
    for line in _losses(request, outcome):
        print(line, file=sys.stderr)
    if outcome.explanation is not None:
        for model in outcome.explanation.models:
            binding = ", ".join(limit.kind for limit in model.limits if limit.binds) or "nothing on its own"
            unsure = sum(limit.binds is None for limit in model.limits)
            more = f" ({unsure} not proven)" if unsure else ""
            print(f"binds {model.model}: {binding}{more}", file=sys.stderr)
    return EXIT_OF_STATUS[outcome.status]


def _losses(request: PlanRequest, outcome: PlanOutcome) -> Iterator[str]:
    """What the loss of the GPU that can be spared least would cost, on one line."""
    from torchsplit_core.planning.outcome.losses import losses, worst_loss
    from torchsplit_core.planning.request.objective import must_survive

    found = losses(request, outcome.gpus) if outcome.status in ("optimal", "feasible") else ()
    if found and must_survive(request):
        yield "survives: every minimum holds with any one GPU lost"
    worst = worst_loss(found)
    if worst is None:
        return
    parts = []
    for model in worst.models:
        owed = "minimum" if model.below_least_rps > 0 else "demand"
        least = model.least_rps if model.below_least_rps > 0 else model.demand_rps
        parts.append(f"{model.name} {_figure(model.left_rps)} of its {owed} of {_figure(least)} requests/s")
    costly = sum(bool(loss.models) for loss in found)
    yield f"if lost, the worst of {costly} of {len(found)} used GPUs: {worst.gpu} leaves {'; '.join(parts)}"


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
