"""Searches the choices that a request of `train` leaves free, before the run starts."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

from torchsplit_core import training
from torchsplit_core.cli.common import with_progress
from torchsplit_core.cli.training.estimates import find_strategy
from torchsplit_core.training.launch import PROCESSES_PER_CORE, most_processes
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.request import StrategyFix, StrategyRequest
from torchsplit_core.values.strategy.run import RunStrategy


def leaves_choices_free(request: StrategyRequest) -> bool:
    """Whether the request does not fix every choice."""
    return len(request.fix.given()) < len(fields(StrategyFix))


def search_choices(
    options: argparse.Namespace, request: StrategyRequest
) -> tuple[RunStrategy, StrategyRequest]:
    """The `--candidate` among those that a run can execute, and the request with all its choices fixed.

    Prints to standard error what was chosen, and why. Raises InputFault if the fleet has more devices than this machine
    allows processes and no option gives their number, and if the search finds no candidate.
    """
    devices = sum(entry.nodes * entry.gpus_per_node for entry in request.fleet)
    elsewhere = options.nnodes or options.write_fleet or options.engine == "ray"
    if options.processes is None and not elsewhere and devices > most_processes():
        cores = len(os.sched_getaffinity(0))
        raise InputFault(
            "the strategy's fleet",
            f"has {devices} devices, above the {most_processes()} processes that the {cores} cores of this machine "
            f"take ({PROCESSES_PER_CORE} a core)",
            "Give fewer with --processes: the global batch stays as it is. Or write the files that start the run on "
            "a cluster with --write-fleet.",
        )
    if options.precision:
        request = replace(request, training=replace(request.training, precision=options.precision))
    outcome = with_progress(
        lambda progress: find_strategy(
            request, Path(options.strategy).parent, runners=("train",), trust=options.trust, progress=progress
        )
    )[0]
    strategy = training.run_strategy_of(outcome, options.candidate, request.training.precision)
    chosen = f"candidate {options.candidate} of: " if options.candidate > 1 else ""
    print(f"{options.strategy}: trains by {chosen}{outcome.message}", file=sys.stderr)
    fix = StrategyFix(**asdict(outcome.candidates[options.candidate - 1].choices))
    return replace(strategy, job=request.training), replace(request, fix=fix)
