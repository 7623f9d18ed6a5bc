"""The commands deploy and route: write a plan's deployment files, and route requests to the servers they start."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from torchsplit_core import files, workflow
from torchsplit_core.cli.arguments.clients import access_of, add_client_options, limits_of
from torchsplit_core.cli.arguments.outputs import OutputFolder
from torchsplit_core.cli.arguments.parser import check_choice
from torchsplit_core.cli.arguments.run_folders import add_run_option, with_run_folders
from torchsplit_core.cli.common import Command, with_progress
from torchsplit_core.values import DayOutcome, InputFault, quoted

TIMEOUT_S = 30.0
"""Time limit of a routed request, through all of a model's parts."""


def add_deploy_commands(command: Command) -> None:
    """Add deploy and route to the command line through its `command(name, run)`."""
    parser = command("deploy", _deploy)
    parser.add_argument(
        "plan", metavar="PLAN", help="a file of a plan outcome, or -; or of a day: its schedule"
    )
    parser.add_argument(
        "-o", "--output", action=OutputFolder, required=True, metavar="DIR", help="the folder of the files"
    )
    parser.add_argument(
        "--format",
        action="append",
        metavar="mig-parted|nvidia-smi|kubernetes|ray-serve|triton|compose|systemd|slurm",
        help="default: those that cut GPUs, and with --request those that run models",
    )
    parser.add_argument(
        "--request",
        metavar="PLAN_REQUEST",
        help="what the plan answers: its models' sources are what workloads (all from kubernetes on) run",
    )
    parser.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="MODEL=IMAGE",
        help="the model runs in an image of yours, in place of its source; a model with neither gets a placeholder",
    )
    parser.add_argument(
        "--command",
        dest="commands",
        action="append",
        default=[],
        metavar="MODEL=COMMAND",
        help="what follows the model's image in docker run (default: what the image does by itself)",
    )
    add_run_option(parser)
    parser.add_argument(
        "--trust", action="store_true", help="sources that are FILE.py or FILE.pt2 may be executed"
    )

    parser = command("route", _route)
    parser.add_argument("routes", help="the routes.json that deploy writes")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="where it listens")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="default 8000")
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=TIMEOUT_S,
        metavar="S",
        help=f"for a whole answer, through all of a model's parts, then 504 (default {TIMEOUT_S:g})",
    )
    add_client_options(parser)


def _deploy(options: argparse.Namespace) -> int:
    # Imported here, since the formats load the planner, which route does not need.
    from torchsplit_core.deployment import FORMATS, custom_images, omitted_by

    for name in options.format or ():
        check_choice("--format", name, FORMATS, "format")
    kind, outcome = files.read_file(options.plan)
    if kind == "torchsplit.day":
        return _deploy_day(outcome, options)
    if kind != "torchsplit.plan":
        problem = f"is a {kind} file, not a torchsplit.plan file"
        raise InputFault(options.plan, problem, "Pass a torchsplit.plan file, or a torchsplit.day file.")
    request, sources = None, {}
    if options.request is not None:
        _, request = files.read_file(options.request, expected="torchsplit.plan_request")
        resolved = with_run_folders(request, options.runs)
        sources = {model.name: model.source for model in resolved.models if model.source}
    images = _values_by_model("--image", options.image)
    commands = _values_by_model("--command", options.commands)
    if (images or commands) and request is None:
        raise InputFault(
            "--image", "is given without --request, which names the models", "Add --request PLAN_REQUEST."
        )
    if options.runs and request is None:
        raise InputFault(
            "--run", "is given without --request, which names the runs", "Add --request PLAN_REQUEST."
        )
    paths = with_progress(
        lambda progress: workflow.deploy(
            outcome,
            Path(options.output),
            options.format,
            request=request,
            images=images,
            commands=commands,
            sources=sources,
            trust=options.trust,
            progress=progress,
        )
    )
    for path in paths:
        print(path)
    model_images = None if request is None else custom_images(request, images, commands)
    for name in options.format or FORMATS:
        omissions, _ = omitted_by(outcome, name, model_images)
        if omissions:
            print(f"{name} leaves out: {omissions}", file=sys.stderr)
    served = {model.name for model in outcome.models if model.variant is not None}
    for name, image in (model_images or {}).items():
        if image.placeholder and name in served:
            notice = (
                f"has no source; {image.image} stands in its place. Name its image with --image {name}=IMAGE."
                if image.llm is None
                else f"has no source that vLLM loads; SET-ME/{name} stands in its place. "
                "Write hf:ORG/NAME or the full path of a folder into its models[].source."
            )
            print(f"{name}: {notice}", file=sys.stderr)
    return 0


def _deploy_day(outcome: DayOutcome, options: argparse.Namespace) -> int:
    """Write a day's schedule with the files of each window."""
    from torchsplit_core.day_plans.schedule import schedule_files
    from torchsplit_core.deployment import write_deployment

    if options.request is None:
        raise InputFault(
            "--request", "is missing, and it has the windows of the day", "Add --request PLAN_REQUEST."
        )
    for name in ("image", "commands", "runs"):
        if getattr(options, name):
            raise InputFault(
                f"--{name.removesuffix('s')}", "is of one plan, and this is a day of several", "Leave it out."
            )
    _, request = files.read_file(options.request, expected="torchsplit.plan_request")
    for path in write_deployment(schedule_files(request, outcome, options.format), options.output):
        print(path)
    return 0


def _values_by_model(option: str, given: Sequence[str]) -> dict[str, str]:
    """Parse MODEL=VALUE entries."""
    values = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise InputFault(
                option, f"is {quoted(text)}, not MODEL=VALUE", "Write the model's name, = and the value."
            )
        values[name] = value
    return values


def _route(options: argparse.Namespace) -> int:
    from torchsplit_core.serving.router.server import run_router

    _, routes = files.read_file(options.routes, expected="torchsplit.routes")
    run_router(routes, options.host, options.port, options.timeout_s, access_of(options), limits_of(options))
    return 0
