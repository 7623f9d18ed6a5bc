"""The options of train for a run on a cluster, through Ray or through files that start it there."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from torchsplit_core.cli.common import engine_option, with_progress
from torchsplit_core.training.cluster import FORMATS, PodSpec, fleet_job
from torchsplit_core.values import InputFault

if TYPE_CHECKING:
    from torchsplit_core.training.cluster import Fleet
    from torchsplit_core.values.strategy.run import Exports, RunOptions, RunStrategy, RunSummary


def add_fleet_options(parser: argparse.ArgumentParser) -> None:
    """Add `--engine`, `--write-fleet`, and the options that go with them."""
    pods = PodSpec()
    engine_option(parser)
    parser.add_argument(
        "--write-fleet",
        choices=FORMATS,
        help="train nothing here: write what starts the run on a cluster's nodes into the folder of -o",
    )
    parser.add_argument(
        "--cores",
        type=int,
        metavar="N",
        help="of a process, on a cluster (default: 4, those of a strategy request for CPU-Nc)",
    )
    parser.add_argument(
        "--no-gpus", action="store_true", help="on a cluster: processes compute on cores alone"
    )
    parser.add_argument(
        "--image", metavar="NAME", help=f"that the pods of jobset and job run (default: {pods.image})"
    )
    parser.add_argument("--claim", metavar="NAME", help=f"the volume that they share (default: {pods.claim})")


def check_fleet_options(options: argparse.Namespace) -> None:
    """Raises InputFault for an option without effect on this way to run."""
    if options.write_fleet:
        wrong = ("engine", "rendezvous", "node", "json")
        why = "is given with --write-fleet, whose files tell the nodes or have no use for it"
    elif options.engine == "ray":
        wrong = ("rendezvous", "node", "image", "claim")
        why = "is given with --engine ray, whose cluster tells the nodes or has no use for it"
    else:
        wrong = ("cores", "no_gpus", "image", "claim")
        why = "is given without --write-fleet or --engine ray, and only a cluster has a use for it"
    for name in wrong:
        if getattr(options, name) not in (None, False, "local"):
            raise InputFault(f"--{name.replace('_', '-')}", why, "Leave it out.")


def write_fleet(
    options: argparse.Namespace, strategy_value: Any, fleet: Fleet, run_options: RunOptions, exports: Exports
) -> int:
    """Write the files that start the run, and print where they are."""
    from torchsplit_core.deployment import write_deployment
    from torchsplit_core.training.cluster.job_files import fleet_files

    job = fleet_job(
        options.source,
        strategy_value,
        fleet,
        options.output,
        options=run_options,
        candidate=options.candidate,
        precision=options.precision,
        trust=options.trust,
        exports=exports,
    )
    pods = PodSpec(options.image or PodSpec().image, options.claim or PodSpec().claim)
    for path in write_deployment(fleet_files(job, options.write_fleet, pods), options.output):
        print(path)
    print(f"{fleet.description}. Untested on hardware.", file=sys.stderr)
    return 0


def train_on_cluster(
    options: argparse.Namespace,
    strategy: RunStrategy,
    fleet: Fleet,
    run_options: RunOptions,
    exports: Exports,
) -> RunSummary:
    """Train on a Ray cluster."""
    from torchsplit_core.training.cluster.ray_launcher import train_on_ray

    summary: RunSummary = with_progress(
        lambda progress: train_on_ray(
            options.source,
            strategy,
            fleet,
            options.output,
            options=run_options,
            resume=options.resume,
            trust=options.trust,
            exports=exports,
            progress=progress,
        )
    )
    return summary
