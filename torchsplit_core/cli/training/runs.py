"""The command train: trains a model by a strategy in processes on this machine, into a run's folder."""

from __future__ import annotations

import argparse
import dataclasses
import json
import socket
import sys
from typing import TYPE_CHECKING

from torchsplit_core import files, training
from torchsplit_core.cli.arguments.outputs import OutputFolder
from torchsplit_core.cli.common import Command, with_progress
from torchsplit_core.cli.training.cluster import (
    add_fleet_options,
    check_fleet_options,
    train_on_cluster,
    write_fleet,
)
from torchsplit_core.cli.training.update_options import (
    add_update_options,
    update_options,
    validation_options,
)
from torchsplit_core.values import InputFault
from torchsplit_core.values.errors import quoted
from torchsplit_core.values.strategy.request import StrategyRequest
from torchsplit_core.values.strategy.run import (
    ElasticNodes,
    Exports,
    RunOptions,
    parse_shares,
    parse_trace_steps,
)
from torchsplit_core.values.training import RUN_PRECISIONS

if TYPE_CHECKING:
    from torchsplit_core.values.strategy.run import RunSummary


def add_train_command(command: Command) -> None:
    """Add train to the command line through its `command(name, run)`."""
    defaults, served = RunOptions(), Exports()
    parser = command("train", _train)
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="sample:NAME, FILE.py:NAME (needs --trust), or RUN[@step-N|@best] (its weights go on)",
    )
    parser.add_argument(
        "--strategy",
        metavar="S",
        required=True,
        help="a strategy, or a strategy request: choices that it leaves free are searched first",
    )
    parser.add_argument(
        "-o", "--output", action=OutputFolder, metavar="RUN", required=True, help="the run's folder"
    )
    parser.add_argument(
        "--candidate",
        type=int,
        default=1,
        metavar="K",
        help="which of the candidates (default: 1, the best)",
    )
    parser.add_argument(
        "--precision", choices=RUN_PRECISIONS, help="default: the request's; of a strategy fp32"
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="the last step (default: one pass over the data)"
    )
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="of this machine (default: the strategy's devices); with others the global batch stays as it is",
    )
    parser.add_argument(
        "--nnodes",
        metavar="MIN:MAX",
        help="of a run on several machines: how many at least and at most; each runs this command",
    )
    parser.add_argument(
        "--rendezvous", metavar="HOST:PORT", help="where the machines meet: an address of one of them"
    )
    parser.add_argument("--node", metavar="NAME", help="of this machine (default: its host name)")
    parser.add_argument("--resume", action="store_true", help="go on from the last complete checkpoint")
    parser.add_argument(
        "--checkpoint-every",
        type=int,
        default=defaults.checkpoint_every,
        metavar="STEPS",
        help=f"from one checkpoint to the next (default {defaults.checkpoint_every})",
    )
    parser.add_argument(
        "--keep",
        type=int,
        metavar="N",
        default=defaults.keep,
        help=f"complete checkpoints that stay (default: {defaults.keep})",
    )
    parser.add_argument(
        "--shares",
        metavar="A,B",
        help="parts of a step's samples by data-parallel rank, for unequal devices (default: equal)",
    )
    parser.add_argument(
        "--balance",
        action="store_true",
        help="have the work follow the measured speed of the ranks: their shares, "
        "or in a pipeline the layers of its stages",
    )
    add_update_options(parser)
    parser.add_argument(
        "--communication",
        metavar="SETTINGS",
        help="how gradients are exchanged, for example lossy=bf16 or hook=powersgd,powersgd_rank=2,bucket_mib=8 "
        "(default: the request's, else chosen by measurement without loss)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=defaults.seed,
        metavar="N",
        help="of the samples' order and random numbers",
    )
    parser.add_argument(
        "--stall-limit",
        type=float,
        metavar="S",
        help="seconds after which a rank that does not move is ended and replaced "
        "(default: ten times the longest so far, at least 60)",
    )
    parser.add_argument(
        "--in-order",
        action="store_true",
        help="take the samples in their order (default: shuffled each pass)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=defaults.workers,
        metavar="N",
        help="processes of each rank that fetch samples ahead (default: the rank itself fetches them)",
    )
    parser.add_argument(
        "--offload-activations",
        action="store_true",
        help="keep what the forward pass saves on the host until the backward pass",
    )
    parser.add_argument(
        "--trace-steps",
        metavar="FIRST:LAST",
        help="record these steps by torch's profiler, in the run's folder traces/",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="execute the file: I trust it. It runs with your rights, not confined",
    )
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="N",
        help="serve the run's figures for Prometheus while it goes on",
    )
    parser.add_argument(
        "--metrics-host",
        default=served.metrics_host,
        metavar="ADDRESS",
        help="where to (default: this machine alone)",
    )
    parser.add_argument(
        "--tensorboard", action="store_true", help="write event files for TensorBoard into the run's folder"
    )
    parser.add_argument("--json", action="store_true", help="print where the run stands to standard output")
    add_fleet_options(parser)


def _train(options: argparse.Namespace) -> int:
    from torchsplit_core.cli.training.free_choices import leaves_choices_free, search_choices

    check_fleet_options(options)
    if options.metrics_port is not None and options.metrics_port < 1:
        raise InputFault(
            "--metrics-port", f"is {options.metrics_port}, below the least port 1", "Give for example 9100."
        )
    strategy_value = files.read_file(options.strategy)[1]
    run_options = RunOptions(
        steps=options.steps,
        checkpoint_every=options.checkpoint_every,
        keep=options.keep,
        shares=parse_shares(options.shares),
        seed=options.seed,
        shuffle=not options.in_order,
        stall_limit_s=options.stall_limit,
        balance=options.balance,
        communication=training.communication_of(strategy_value, options.communication),
        update=update_options(options),
        validation=validation_options(options),
        workers=options.workers,
        offload_activations=options.offload_activations,
        trace_steps=parse_trace_steps(options.trace_steps),
    )
    exports = Exports(options.metrics_port, options.metrics_host, options.tensorboard)
    if isinstance(strategy_value, StrategyRequest) and leaves_choices_free(strategy_value):
        strategy, strategy_value = search_choices(options, strategy_value)
    else:
        strategy = training.run_strategy_of(strategy_value, options.candidate, options.precision)
    numbers = _node_numbers(options.nnodes)
    if options.write_fleet or options.engine == "ray":
        from torchsplit_core.training.cluster import ResourceRequest, fleet_of

        resources = ResourceRequest(numbers, options.processes, options.cores, not options.no_gpus)
        fleet = fleet_of(strategy_value, strategy, run_options, resources)
        if options.write_fleet:
            return write_fleet(options, strategy_value, fleet, run_options, exports)
        return _print_run(options, train_on_cluster(options, strategy, fleet, run_options, exports))
    try:
        summary: RunSummary = with_progress(
            lambda progress: training.train(
                options.source,
                strategy,
                options.output,
                options=run_options,
                processes=options.processes,
                nodes=_nodes(options, numbers),
                resume=options.resume,
                trust=options.trust,
                exports=exports,
                progress=progress,
            )
        )
    except KeyboardInterrupt:
        last = training.RunFolder(options.output).last_step()
        at = f"at step {last['step']}" if last else "before the first step"
        print(
            f"{options.output}: stopped {at}; --resume goes on from the last complete checkpoint",
            file=sys.stderr,
        )
        raise
    return _print_run(options, summary)


def _print_run(options: argparse.Namespace, summary: RunSummary) -> int:
    """Print the state of the run, and return the exit code."""
    if options.json:
        sys.stdout.write(json.dumps(dataclasses.asdict(summary)) + "\n")
    for words in summary.warnings:
        print(f"warning: {words}", file=sys.stderr)
    loss = "n/a" if summary.loss is None else f"{summary.loss:.6g}"
    restarts = f"; {summary.restarts} restarts" if summary.restarts else ""
    metrics = "".join(
        f", {'held-out ' if name == 'loss' else ''}{name} {value:.4g}"
        for name, value in summary.metrics.items()
    )
    print(f"{options.output}: step {summary.step}, loss {loss}{metrics}{restarts}", file=sys.stderr)
    return 0


def _nodes(options: argparse.Namespace, numbers: tuple[int, int] | None) -> ElasticNodes | None:
    """The nodes of a run on several nodes; None on one. Raises InputFault for one option without the other."""
    if numbers is None and options.rendezvous is None and options.node is None:
        return None
    if numbers is None or options.rendezvous is None:
        missing = "--nnodes" if numbers is None else "--rendezvous"
        raise InputFault(
            missing,
            "is missing, and a run on several machines needs how many there are and where they meet",
            "Give --nnodes MIN:MAX and --rendezvous HOST:PORT.",
        )
    return ElasticNodes(*numbers, options.rendezvous, options.node or socket.gethostname())


def _node_numbers(text: str | None) -> tuple[int, int] | None:
    """Parse `1:2` into the least and most nodes; None stays None. Raises InputFault."""
    if text is None:
        return None
    least, _, most = text.partition(":")
    try:
        return int(least), int(most or least)
    except ValueError:
        raise InputFault("--nnodes", f"is {quoted(text)}, not MIN:MAX", "Give for example 1:2.") from None
