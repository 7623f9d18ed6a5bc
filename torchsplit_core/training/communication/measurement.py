"""Times of the exchanges that a run may choose from: a few of each, between its own ranks, in less than a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from torchsplit_core.training.communication.choice import GRADIENT_BYTES, TransferTimes

SIZES = (4 * 2**10, 64 * 2**10, 2**20, 8 * 2**20)
REPEATS, LEAST = 3, 2
BUDGET_S = 0.8
"""Seconds for all exchanges together."""
PRODUCT_SIZE = 256
"""Rows and columns of the matrix whose PowerSGD products are timed."""

Exchange = Callable[[Tensor], object]
"""Exchanges a flat tensor of gradients between all ranks, and returns when it is done."""


def measure_exchange(
    exchange: Exchange, group: dist.ProcessGroup, device: torch.device, budget_s: float
) -> TransferTimes:
    """Times of an exchange by its bytes: medians of the slowest rank's, for as large sizes as the budget allows.

    The first LEAST sizes are timed whatever they take, once if they take long: latency alone says nothing of larger
    ones. Every rank calls this, and all get the same times.
    """
    sizes, seconds, processor = list[int](), list[float](), list[float]()
    left = budget_s
    for size in SIZES:
        if len(sizes) >= LEAST and _expected(sizes, seconds, size) > left:
            break
        buffer = torch.zeros(size // GRADIENT_BYTES, device=device)
        samples = [_time(exchange, buffer, group)]
        left -= samples[0][0]
        while len(samples) <= REPEATS and samples[-1][0] <= left:
            samples.append(_time(exchange, buffer, group))
            left -= samples[-1][0]
        # The first exchange of a size opens connections and allocates.
        counted = samples[1:] or samples
        sizes.append(size)
        seconds.append(median(wall for wall, _ in counted))
        processor.append(median(used for _, used in counted))
    return TransferTimes((*sizes,), (*seconds,), (*processor,))


def _expected(sizes: Sequence[int], seconds: Sequence[float], size: int) -> float:
    """Seconds of an exchange of `size` bytes, by the line through the last two that were timed."""
    slope = max(0.0, seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
    return seconds[-1] + slope * (size - sizes[-1])


def _time(exchange: Exchange, buffer: Tensor, group: dist.ProcessGroup) -> tuple[float, float]:
    """Seconds of an exchange, and of this process's cores in it: the most of any rank."""
    _settle(buffer.device)
    began, used = time.perf_counter(), time.process_time()
    exchange(buffer)
    _settle(buffer.device)
    spent = torch.tensor(
        [time.perf_counter() - began, time.process_time() - used], dtype=torch.float64, device=buffer.device
    )
    dist.all_reduce(spent, op=dist.ReduceOp.MAX, group=group)
    return float(spent[0]), float(spent[1])


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_products(rank: int, group: dist.ProcessGroup, device: torch.device) -> float:
    """Seconds of PowerSGD's products for a byte of gradient: P = MQ, Q = MᵀP, PQᵀ, and the error M − PQᵀ."""
    matrix = torch.randn(PRODUCT_SIZE, PRODUCT_SIZE, device=device)
    thin = torch.randn(PRODUCT_SIZE, min(rank, PRODUCT_SIZE), device=device)

    def products() -> None:
        copy = matrix.clone()
        left = torch.mm(copy, thin)
        right = torch.mm(copy.t(), left)
        _ = copy - torch.mm(left, right.t())

    samples = []
    for _ in range(REPEATS + 1):
        _settle(device)
        began = time.perf_counter()
        products()
        _settle(device)
        samples.append(time.perf_counter() - began)
    slowest = torch.tensor(median(samples[1:]), dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    return float(slowest) / float(GRADIENT_BYTES * matrix.numel())


def supports(dtype: torch.dtype, group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether the group's backend sums this type."""
    try:
        dist.all_reduce(torch.ones(1, dtype=dtype, device=device), group=group)
    except (RuntimeError, ValueError, TypeError):
        return False
    return True
