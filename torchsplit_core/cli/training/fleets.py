"""Of the command train: the files by which a cluster starts the run."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from torchsplit_core.deployment import write_deployment
from torchsplit_core.running.fleet import FORMATS, Pods, fleet_files, fleet_job
from torchsplit_core.running.watch.exports import Exports
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.run import RunOptions

_OF_FILES = ("image", "claim", "cores")
_OF_RUNS = ("rendezvous", "node", "json")


def add_fleet_options(made: argparse.ArgumentParser) -> None:
    """`--write-fleet` and what it needs to know."""
    pods = Pods()
    made.add_argument(
        "--write-fleet",
        choices=FORMATS,
        help="train nothing here: write what starts the run on a cluster's nodes into the folder of -o",
    )
    made.add_argument(
        "--cores", type=int, metavar="N", help="of a process, with --write-fleet (default: 4 beside a GPU)"
    )
    made.add_argument(
        "--image", metavar="NAME", help=f"that the pods of jobset and job run (default: {pods.image})"
    )
    made.add_argument("--claim", metavar="NAME", help=f"the volume that they share (default: {pods.claim})")


def check_fleet_options(options: argparse.Namespace) -> None:
    """Raises InputFault for an option of the files without them, and of a run beside them."""
    wrong, rule = (
        (_OF_RUNS, "what the cluster's nodes are told stands in the files that --write-fleet writes")
        if options.write_fleet
        else (_OF_FILES, "it is said of what --write-fleet writes")
    )
    for name in wrong:
        if (value := getattr(options, name)) not in (None, False):
            raise InputFault(f"--{name}", value, rule, "Leave it out.")


def write_fleet(
    options: argparse.Namespace,
    given: Any,
    what: RunOptions,
    exports: Exports,
    nodes: tuple[int, int] | None,
) -> int:
    """Write the files and say where they are."""
    job = fleet_job(
        options.source,
        given,
        options.output,
        options=what,
        candidate=options.candidate,
        precision=options.precision,
        nodes=nodes,
        processes=options.processes,
        cores=options.cores,
        trust=options.trust,
        exports=exports,
    )
    pods = Pods(options.image or Pods().image, options.claim or Pods().claim)
    for path in write_deployment(fleet_files(job, options.write_fleet, pods), options.output):
        print(path)
    print(f"{job.words}. Untested on hardware.", file=sys.stderr)
    return 0
