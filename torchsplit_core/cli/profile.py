"""The profile command: selects devices, measures a model on them, and prints a summary."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar, get_args

from torchsplit_core import workflow
from torchsplit_core.cli.arguments.outputs import OutputFolder
from torchsplit_core.cli.common import (
    Command,
    Options,
    engine_option,
    print_notes,
    with_progress,
    write_outcome,
)
from torchsplit_core.profiling.points import REPEATS, CompileMode, DType, MeasurementSettings
from torchsplit_core.values import InputFault, SlicesToMake
from torchsplit_core.values.errors import quoted
from torchsplit_core.values.limits import check_name
from torchsplit_core.values.profile import BASES

T = TypeVar("T")


def add_profile_command(command: Command, trust: Options, output: Options) -> None:
    """Add profile to the command line through its `command(name, run)` and its shared options."""
    parser = command("profile", _profile)
    parser.add_argument(
        "source", metavar="SOURCE", help="sample:NAME, FILE.pt2, FILE.py:NAME or RUN[@step-N]"
    )
    parser.add_argument(
        "--device",
        metavar="DEVICE,…",
        help="auto, cpu, cpu:2c (held to 2 cores), cuda, cuda:1, mig (one instance of every profile), mig:UUID, sm:N "
        "(a number of SMs without MIG rights); several comma-separated (default auto, or none with --make-slices)",
    )
    parser.add_argument("--batch-sizes", metavar="1,2,4", help="default: batch_sizes of the model's client")
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="what plans call the model (default: of FILE.py:NAME and FILE.pt2 the file's name)",
    )
    parser.add_argument(
        "--sequence-lengths",
        metavar="128,512",
        help="measure the batch sizes at every one of these lengths, which the model's client has to offer; what is "
        "estimated is of the first (default: the client's own inputs)",
    )
    parser.add_argument(
        "--gpu-types", metavar="TYPE,…", help="estimate these only (default: the whole catalogue)"
    )
    parser.add_argument(
        "--point-budget", type=float, default=2.0, metavar="S", help="seconds a batch size (default 2)"
    )
    parser.add_argument(
        "--point-limit", type=float, metavar="S", help="a batch size that takes longer has hung"
    )
    parser.add_argument(
        "--cuda-graphs", action="store_true", help="capture the model and replay it (GPUs only)"
    )
    parser.add_argument(
        "--dtype",
        choices=[name for name in get_args(DType) if name],
        help="cast weights and floating inputs (default: the model's own)",
    )
    parser.add_argument(
        "--compile",
        choices=[name for name in get_args(CompileMode) if name],
        help="measure under torch.compile; every batch size is compiled anew, which counts for nothing",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=REPEATS,
        metavar="N",
        help=f"blocks of runs that share a point's time (default {REPEATS})",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of inputs and runs (default 0)")
    parser.add_argument(
        "--processes",
        default="1",
        metavar="1,2",
        help="also so many processes of the model at once on the device; one alone is always measured",
    )
    parser.add_argument(
        "--host-copies",
        action="store_true",
        help="a run includes the copies of its inputs and outputs from and to the host (GPUs only)",
    )
    parser.add_argument(
        "--at-once", action="store_true", help="measure the slices of one GPU at the same time"
    )
    parser.add_argument(
        "--again", action="store_true", help="measure anew, in place of what was measured before"
    )
    parser.add_argument(
        "--make-slices",
        metavar="1g.10gb,7g.80gb@0",
        help="make these MIG slices on that GPU one after the other, measure, restore; needs --i-own-this-gpu "
        "(untested on hardware)",
    )
    parser.add_argument(
        "--i-own-this-gpu", action="store_true", help="consent to changing its MIG slices meanwhile"
    )
    parser.add_argument(
        "--torch-trace",
        action=OutputFolder,
        metavar="DIR",
        help="write a torch.profiler trace of every batch size",
    )
    engine_option(parser)
    trust(parser)
    output(parser)


def _profile(options: argparse.Namespace) -> int:
    from torchsplit_core.workspace.measured_points import OLD_POINTS_TEXT
    from torchsplit_core.workspace.store import Store

    if options.torch_trace:
        Path(options.torch_trace).mkdir(parents=True, exist_ok=True)
    settings = MeasurementSettings(
        point_budget_s=options.point_budget,
        point_limit_s=options.point_limit,
        cuda_graphs=options.cuda_graphs,
        dtype=options.dtype or "",
        compile_mode=options.compile or "",
        repeats=options.repeats,
        seed=options.seed,
        host_copies=options.host_copies,
        processes=_whole_numbers("--processes", options.processes),
        torch_trace=str(Path(options.torch_trace).absolute()) if options.torch_trace else None,
    )
    profile_function = workflow.profile
    if options.sequence_lengths is not None:
        lengths = _whole_numbers("--sequence-lengths", options.sequence_lengths)
        profile_function = partial(workflow.profile_lengths, lengths=lengths)
    sizes = None
    if options.batch_sizes is not None:
        sizes = _whole_numbers("--batch-sizes", options.batch_sizes)
    if options.name is not None:
        check_name("--name", options.name)
    started = time.time()
    measure_source = partial(
        profile_function,
        options.source,
        device=options.device or ("" if options.make_slices else "auto"),
        batch_sizes=sizes,
        gpu_types=[item.strip() for item in options.gpu_types.split(",")] if options.gpu_types else None,
        trust=options.trust,
        settings=settings,
        since=started if options.again or settings.torch_trace else 0.0,
        at_once=options.at_once,
        make_slices=_slices_to_make(options),
    )
    if options.engine == "ray":
        from torchsplit_core.training.cluster.ray_tasks import run_on_cluster

        cores, gpus = _reserved_resources(options)
        graph, result = run_on_cluster(_run_with_local_store, measure_source, cores=cores, gpus=gpus)
    else:
        graph, result = with_progress(lambda progress: measure_source(store=Store(), progress=progress))
    write_outcome(replace(result, name=options.name or ""), options)
    counts = Counter(row.basis for row in result.rows)
    row_counts = ", ".join(f"{counts[basis]} {basis}" for basis in BASES)
    print(f"{options.source}: rows {row_counts}", file=sys.stderr)
    if result.environment.get("taken_over"):
        print(
            f"note: {result.environment['taken_over']} points were measured before on this device and with this "
            "software and are taken over; --again measures anew.",
            file=sys.stderr,
        )
    if result.environment.get("old_points"):
        print(
            f"note: {result.environment['old_points']} points kept for this device and software are "
            f"{OLD_POINTS_TEXT}: they "
            "stay stored and are never taken over.",
            file=sys.stderr,
        )
    if result.environment.get("notes"):
        print(f"note: {result.environment['notes']}", file=sys.stderr)
    print_notes(graph)
    return 0


def _run_with_local_store(work: Callable[..., T]) -> T:
    """Run `work` on a node of the cluster; measured points go to that node's store."""
    from torchsplit_core.workspace.store import Store

    return work(store=Store())


def _reserved_resources(options: argparse.Namespace) -> tuple[int, int | None]:
    """Cores and GPUs to reserve on a node of Ray's cluster; GPUs None: one if the node has any.

    Raises InputFault for --make-slices, since others may use the GPU that Ray picks.
    """
    if options.make_slices:
        raise InputFault(
            "--make-slices",
            "is given with --engine ray, which picks a GPU that others may use",
            "Run it on the machine of that GPU, without --engine.",
        )
    names = [name.strip() for name in (options.device or "auto").split(",")]
    cores = [int(match.group(1)) for name in names if (match := re.fullmatch(r"cpu:(\d{1,4})c", name))]
    if all(name.startswith("cpu") for name in names):
        return max(cores, default=1), 0
    return max(cores, default=1), None if names == ["auto"] else 1


def _slices_to_make(options: argparse.Namespace) -> SlicesToMake | None:
    """The slices and the GPU that --make-slices names; None without it."""
    if not options.make_slices:
        return None
    gpu, _, names = options.make_slices.rpartition("@")
    gpu, names = (names, gpu) if gpu else ("0", names)
    if not gpu.isascii() or not gpu.isdigit():
        raise InputFault(
            "--make-slices",
            f"{quoted(options.make_slices)} names GPU {quoted(gpu)}, which is not a number",
            "Write PROFILE,PROFILE@GPU, for example 1g.10gb,7g.80gb@0.",
        )
    profiles = tuple(name.strip() for name in names.split(",") if name.strip())
    return SlicesToMake(int(gpu), profiles, options.i_own_this_gpu)


def _whole_numbers(where: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(item) for item in text.split(","))
    except ValueError as error:
        raise InputFault(
            where,
            f"is {quoted(text)}, not whole numbers with commas between",
            "Give for example 1,2,4.",
        ) from error
