"""The command weights: writes a step of a training run as one safetensors file."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from torchsplit_core import extras
from torchsplit_core.cli.arguments.outputs import output_option
from torchsplit_core.cli.common import Command
from torchsplit_core.values import InputFault, quoted

SUFFIX = ".safetensors"


def add_weights_command(command: Command) -> None:
    """Add weights to the command line through its `command(name, run)`."""
    parser = command("weights", _weights)
    parser.add_argument(
        "source", metavar="RUN[@step-N]", help="a run's folder (its newest checkpoint), or one of its steps"
    )
    output_option(parser, f"FILE{SUFFIX}", required=True)
    parser.add_argument("--json", action="store_true", help="print the manifest to standard output")


def _weights(options: argparse.Namespace) -> int:
    extras.require_extra("train")
    from torchsplit_core.checkpoints.trained_run import parse_run_source
    from torchsplit_core.checkpoints.weights import save_weights

    target = Path(options.output)
    if target.suffix != SUFFIX:
        raise InputFault(
            "-o", f"is {quoted(options.output)}, not a {SUFFIX} file", f"Name it like model{SUFFIX}."
        )
    step = parse_run_source(options.source)
    manifest = save_weights(step, target)
    if options.json:
        sys.stdout.write(json.dumps(asdict(manifest), allow_nan=False) + "\n")
    loss = "n/a" if manifest.loss is None else f"{manifest.loss:.6g}"
    metrics = "".join(f", {name} {value:.4g}" for name, value in manifest.metrics.items())
    print(
        f"{options.output}: {manifest.parameters:,} weights of {step.display_name}, loss {loss}{metrics}",
        file=sys.stderr,
    )
    return 0
