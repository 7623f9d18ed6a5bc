"""Running the parts of cut models: equal to the bit, in two processes against one, and what crossing costs.

    python -m benchmarks.stage_execution

1. Every small sample cut into 2, 3 and 4 parts, written, loaded from the files and run at batch sizes other than the
   traced one, against the model itself: the results must be equal to the bit.
2. Samples at real dimensions, profiled and cut into two here: two processes of one thread with many batches at
   work, against the model in one process with one thread and with two, whichever is faster. Turns are taken
   alternately; the ratio is that of the medians (above 1: two processes are faster). Results are compared to the
   bit with the model at one thread.
3. One message between two processes and its answer: over the pipeline's socket, through shared memory with
   a socket to wake the other side, and with gloo.

Ends with 1 where a result differs.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.utils import _pytree as pytree

from torchsplit_core import workflow
from torchsplit_core.graph.serialization import graph_from_dict
from torchsplit_core.model_source import example_arguments, load_client, open_model
from torchsplit_core.partitioning import solve_partitioning_problem
from torchsplit_core.stages import StagedModel, StagePipeline, export_stages
from torchsplit_core.stages.bit_equal import same_bits
from torchsplit_core.stages.export_child import write_stages
from torchsplit_core.stages.tensor_transport import receive_values, send_values
from torchsplit_core.tracing.export import describe_program, export_program
from torchsplit_core.values import NodeProfile, Profile, ProfileRow

SAMPLES = ("clip", "bert", "fastpitch", "ocr", "resnet50", "llama", "diamond", "cond")
LARGE = ("resnet50", "ocr")
BATCHES = (1, 3, 4, 5, 8, 13)
CUTS = 3
"""Best cuts of each k that are tried."""


def equal(found: Any, expected: Any) -> bool:
    """Whether two results are equal to the bit."""
    return all(map(same_bits, pytree.tree_leaves(found), pytree.tree_leaves(expected)))


def compare(name: str, folder: Path) -> tuple[int, int]:
    """How many runs of a small sample's parts were compared with the model, and how many differed."""
    client = load_client(f"sample:{name}")
    model = open_model(client)
    examples = {batch: example_arguments(client, batch) for batch in (2, 3)}
    program = export_program(model, *examples[2], examples[3])
    graph = graph_from_dict(describe_program(program, 2))
    nodes = tuple(NodeProfile(op.id, 1 / len(graph.ops), op.output_bytes, 0) for op in graph.ops)
    row = ProfileRow("whole", "cpu", None, 2, 1, 100.0, 10.0, None, None, None, "measured")
    profile = Profile(name, graph.architecture_hash, {}, (row,), nodes)
    runs = wrong = 0
    for k in (2, 3, 4):
        outcome = solve_partitioning_problem(graph, profile, stages=k, top_k=CUTS, time_limit_s=2.0)
        for number, cut in enumerate(outcome.candidates):
            parts = folder / f"{name}-{k}-{number}"
            parts.mkdir()
            manifest = write_stages(program, cut.stages, examples, parts, graph.architecture_hash)
            staged = StagedModel(parts, manifest)
            for batch in BATCHES:
                args, kwargs = example_arguments(client, batch)
                with torch.no_grad():
                    runs, wrong = (
                        runs + 1,
                        wrong + (not equal(staged(*args, **kwargs), model(*args, **kwargs))),
                    )
    return runs, wrong


def pipelined(source: str, batch: int, count: int, turns: int, folder: Path) -> tuple[str, bool]:
    """One row of the second table, and whether all results were equal."""
    graph = workflow.trace(source)
    _, profile = workflow.profile(
        source, graph=graph, device="cpu", batch_sizes=(batch,), gpu_types=("A30-24GB",)
    )
    cut = workflow.partition(source, profile, graph=graph, stages=2, time_limit_s=20.0)
    manifest = export_stages(source, cut.candidates[0], folder, architecture_hash=graph.architecture_hash)
    client = load_client(source)
    model = open_model(client)
    args, _ = example_arguments(client, batch)
    one: list[float] = []
    two: list[float] = []
    many: list[float] = []
    torch.set_num_threads(1)
    with torch.no_grad(), StagePipeline(folder) as pipeline:
        expected = model(*args)
        good = all(equal(found, expected) for found in pipeline.run([args] * 3))
        for _ in range(turns):
            for threads, times in ((1, one), (2, two)):
                torch.set_num_threads(threads)
                model(*args)
                started = time.perf_counter()
                for _ in range(count):
                    model(*args)
                times.append(time.perf_counter() - started)
            started = time.perf_counter()
            found = list(pipeline.run([args] * count))
            many.append(time.perf_counter() - started)
            good &= all(equal(result, expected) for result in found)
    alone, whole, parts = (statistics.median(times) / count * 1e3 for times in (one, two, many))
    loads = cut.candidates[0].loads_ms
    row = (
        f"| {source.removeprefix('sample:')} | {batch} | {alone:.1f} | {whole:.1f} | {parts:.1f} "
        f"| {min(alone, whole) / parts:.2f} | "
        f"{sum(loads) / max(loads):.2f} | {manifest.cut_bytes[0] / 2 * batch / 2**20:.2f} | "
        f"{'yes' if good else 'NO'} |"
    )
    return row, good


def over_socket(rank: int, stream: socket.socket, sizes: list[int], rounds: int, told: Any) -> None:
    """Either side of the pipeline's own way."""
    for size in sizes:
        values = {"x": torch.zeros(size // 4)}
        for i in range(rounds + 1):
            started = time.perf_counter()
            if rank == 0:
                send_values(stream, i, values)
                stream.recv(1)
                told.put((size, time.perf_counter() - started))
            else:
                receive_values(stream)
                stream.send(b".")


def over_memory(
    rank: int, stream: socket.socket, sizes: list[int], rounds: int, told: Any, name: str
) -> None:
    """Either side of a block both map: the sender copies in, the receiver copies out."""
    block = SharedMemory(name)
    shared = torch.frombuffer(block.buf, dtype=torch.float32)
    for size in sizes:
        x, room = torch.zeros(size // 4), shared[: size // 4]
        for _ in range(rounds + 1):
            started = time.perf_counter()
            if rank == 0:
                room.copy_(x)
                stream.send(b".")
                stream.recv(1)
                told.put((size, time.perf_counter() - started))
            else:
                stream.recv(1)
                torch.empty(size // 4).copy_(room)
                stream.send(b".")
    del shared, room
    block.close()


def over_gloo(rank: int, sizes: list[int], rounds: int, told: Any, meeting: str) -> None:
    """Either side of torch.distributed's point-to-point messages."""
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    answer = torch.zeros(1)
    for size in sizes:
        x = torch.zeros(size // 4)
        for _ in range(rounds + 1):
            started = time.perf_counter()
            if rank == 0:
                dist.send(x, 1)
                dist.recv(answer, 1)
                told.put((size, time.perf_counter() - started))
            else:
                dist.recv(torch.empty(size // 4), 0)
                dist.send(answer, 0)
    dist.destroy_process_group()


def milliseconds(
    target: Callable[..., None], arguments: list[tuple[Any, ...]], told: Any
) -> dict[int, float]:
    """The median of a size's rounds but the first, by size, with both sides started and ended."""
    context = processes.get_context("spawn")
    sides = [context.Process(target=target, args=(rank, *arguments[rank])) for rank in (0, 1)]
    for side in sides:
        side.start()
    for side in sides:
        side.join(120)
        if side.exitcode != 0:
            raise SystemExit(f"{target.__name__}: ended with {side.exitcode}")
    found: dict[int, list[float]] = {}
    while not told.empty():
        size, seconds = told.get()
        found.setdefault(size, []).append(seconds * 1e3)
    return {size: statistics.median(times[1:]) for size, times in found.items()}


def transports(sizes: list[int], rounds: int) -> Iterator[str]:
    """The rows of the third table."""
    context = processes.get_context("spawn")
    told = context.SimpleQueue()
    results: list[dict[int, float]] = []
    ends = socket.socketpair()
    results.append(milliseconds(over_socket, [(end, sizes, rounds, told) for end in ends], told))
    block = SharedMemory(create=True, size=max(sizes))
    try:
        ends = socket.socketpair()
        both = [(end, sizes, rounds, told, block.name) for end in ends]
        results.append(milliseconds(over_memory, both, told))
    finally:
        block.close()
        block.unlink()
    with tempfile.TemporaryDirectory() as room:
        meeting = os.fspath(Path(room) / "meeting")
        results.append(milliseconds(over_gloo, [(sizes, rounds, told, meeting)] * 2, told))
    for size in sizes:
        yield f"| {size / 1024:,.0f} | " + " | ".join(f"{found[size]:.3f}" for found in results) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", nargs="*", default=list(SAMPLES), help="those of the first table")
    parser.add_argument("--models", nargs="*", default=list(LARGE), help="those of the second")
    parser.add_argument(
        "--size", default="large", choices=("small", "large"), help="of the second table's models"
    )
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--count", type=int, default=12, help="batches a turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=50, help="messages of a size")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as room:
        print(f"| sample | runs (k = 2, 3, 4; {CUTS} cuts; batch {', '.join(map(str, BATCHES))}) | differ |")
        print("|---|---|---|")
        for name in options.samples:
            runs, differ = compare(name, Path(room))
            wrong += differ
            print(f"| {name} | {runs} | {differ} |", flush=True)
        print(
            "\n| model | batch | one thread ms | one process, two threads ms | two processes ms | ratio | "
            "of the cut, at most | MiB crossing | equal to the bit |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        for name in options.models:
            source = f"sample:{name}" + ("@large" if options.size == "large" else "")
            row, good = pipelined(source, options.batch, options.count, options.turns, Path(room) / name)
            wrong += not good
            print(row, flush=True)
    print("\n| KiB there and an answer back | socket ms | shared memory ms | gloo ms |")
    print("|---|---|---|---|")
    for row in transports([1024, 65536, 2**20, 2**23], options.rounds):
        print(row, flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
