"""Measures this host's speeds for `host_rates`: `python -m torchsplit_core.profiling.host_probe THREADS` prints them.

Every figure is the least of repetitions within a slice of two seconds: other work on the host adds to the others.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import quantiles

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.nn import functional

SLICE_S = 0.12
"""For each figure; at least five repetitions whatever they take."""
PRODUCTS = (8, 32, 96, 256, 768)
"""Rows, columns and depth of the products."""
MOVED_BYTES = (12 * 2**10, 768 * 2**10, 96 * 2**20)
"""Read and written by an addition: within a core's cache, within the host's, beyond both."""
CHAIN = 64
"""Operations, or weight tensors, that are timed together."""
LARGE_BYTES = 8 * 2**20
EXCHANGES = 24


def least_s(run: Callable[[], object]) -> float:
    """Seconds of a run: the least, after one that warms up."""
    run()
    times: list[float] = []
    end = time.perf_counter() + SLICE_S
    while len(times) < 5 or time.perf_counter() < end:
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def products() -> list[tuple[float, float]]:
    """FLOP/s of square products by their operations."""
    points = []
    for size in PRODUCTS:
        first, second, out = torch.rand(size, size), torch.rand(size, size), torch.empty(size, size)
        flops = 2.0 * size**3
        points.append((flops, flops / least_s(partial(torch.mm, first, second, out=out))))
    return points


def moved() -> list[tuple[float, float]]:
    """Bytes/s of additions by the bytes that they read and write."""
    points = []
    for size in MOVED_BYTES:
        first, second, out = (torch.rand(size // 12) for _ in range(3))
        points.append((float(size), size / least_s(partial(torch.add, first, second, out=out))))
    return points


def convolution() -> float:
    """FLOP/s of a 3 × 3 convolution of 64 channels."""
    images, weights = torch.rand(4, 64, 28, 28), torch.rand(64, 64, 3, 3)
    flops = 2.0 * 4 * 64 * 28 * 28 * 64 * 9
    return flops / least_s(partial(functional.conv2d, images, weights, padding=1))


def operations() -> tuple[float, float]:
    """Seconds to start one operation that autograd follows, and the backward pass of one."""
    start = torch.ones(16, requires_grad=True)

    def chain() -> torch.Tensor:
        value = start
        for _ in range(CHAIN):
            value = value * 1.0001
        return value.sum()

    def both() -> None:
        start.grad = None
        chain().backward()

    forward = least_s(chain)
    return forward / CHAIN, max(0.0, least_s(both) - forward) / CHAIN


def optimizer() -> float:
    """Seconds of AdamW for one small weight tensor."""
    weights = [torch.ones(16, requires_grad=True) for _ in range(CHAIN)]
    for weight in weights:
        weight.grad = torch.ones(16)
    return least_s(torch.optim.AdamW(weights, lr=1e-5).step) / CHAIN


def exchange(rank: int, folder: str) -> None:
    """One of two processes: seconds of a small and of a large all-reduce, written by the first."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    figures = []
    for count in (1, LARGE_BYTES // 4):
        values = torch.ones(count)
        times = []
        for _ in range(EXCHANGES):
            began = time.perf_counter()
            dist.all_reduce(values)
            times.append(time.perf_counter() - began)
        figures.append(quantiles(times[2:], n=4)[0])
    if rank == 0:
        Path(folder, "figures.json").write_text(json.dumps(figures))
    dist.destroy_process_group()


def main() -> None:
    """Measure, and print a line of JSON."""
    torch.set_num_threads(int(sys.argv[1]))
    by_size = products()
    operation_s, backward_operation_s = operations()
    figures = {
        "products": by_size,
        "moved": moved(),
        "convolution": convolution() / max(rate for _, rate in by_size),
        "operation_s": operation_s,
        "backward_operation_s": backward_operation_s,
        "optimizer_s": optimizer(),
    }
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(exchange, (folder,), nprocs=2)
        small_s, large_s = json.loads(Path(folder, "figures.json").read_text())
    figures |= {
        "exchange_s": small_s,
        "exchange_bytes_per_s": LARGE_BYTES / max(large_s - small_s, 1e-9),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
