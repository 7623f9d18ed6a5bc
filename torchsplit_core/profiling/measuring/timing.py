"""End-to-end times of a model: warmed up until steady, then run in blocks, without instrumentation.

Only the model is timed: random numbers are seeded between the runs.

The CUDA paths (events, graphs) are untested on hardware.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchsplit_core.profiling.measuring.host_copies import HostCopies
from torchsplit_core.profiling.points import POINT_BUDGET_S, REPEATS

SEED = 0
"""Seed of a model's forward before every run, unless given."""
LEAST_RUNS = 3
MOST_RUNS = 300
"""Most runs of a point in the usual time: enough for an upper bound of a 99th percentile (299, run_statistics)."""
BLOCK_S = 0.05
"""Least duration of a block of more runs: 60 runs of a fast model end before the clock has settled."""
STEADY = 0.1
"""Warm-up ends if two runs in a row differ by less than this share."""
WARM_UP_SHARE = 0.25
"""Share of a point's time budget that warm-up may take beyond its first run."""
PAUSE_SHARE = 0.05
"""Share of a point's time budget between two blocks, if a run is shorter: adjacent blocks share their disturbance."""
SETTLE_S, MOST_SETTLING = 0.005, 100
"""This much time, or this many runs, after a pause does not count: caches and clock are cold."""
GRAPH_WARM_UPS = 3
"""Runs on a side stream before a capture, as torch.cuda.graphs requires."""


def time_runs(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    budget_s: float,
    device: str = "cpu",
    *,
    cuda_graph: bool = False,
    repeats: int = REPEATS,
    seed: int = SEED,
    least_runs: int = LEAST_RUNS,
    unsteady: int = 0,
    copies: HostCopies | None = None,
    look: Callable[[Any], None] | None = None,
    block_starts_s: list[float] | None = None,
) -> tuple[tuple[float, ...], ...]:
    """End-to-end times of the model in ms: one tuple a block, one entry a run, at least `least_runs` in all.

    Eval mode, inference mode, fixed seed. Warm-up lasts until two runs agree within a tenth or a quarter of the budget
    is spent; then `repeats` blocks of runs follow, with pauses between, within the budget, each of at most `most_runs`
    or for BLOCK_S. A first run that takes half the budget or more counts as one of them: warm-up changes little of it.

    Args:
        unsteady: the first runs that do not count, because they compile the model.
        copies: makes every run move its inputs and outputs.
        look: gets the output of the first run.
        block_starts_s: gets when each block began (Unix seconds).
        cuda_graph: capture the model once and replay it.
    """
    # An exported module refuses eval(): its mode was fixed when it was exported.
    with suppress(NotImplementedError):
        model.eval()

    call: Callable[[], Any] = partial(model, *args, **kwargs)

    def run() -> Any:
        return call() if copies is None else copies.run_with_copies(call)

    def next_run_ms() -> float:
        return time_run(run, device, seed)[1]

    with torch.inference_mode():
        for _ in range(unsteady):
            next_run_ms()
        outcome, first = time_run(run, device, seed)
        if look is not None:
            look(outcome)
        del outcome
        if cuda_graph:
            call = _capture_cuda_graph(call)
        blocks: list[list[float]] = [[] for _ in range(repeats)]
        least, most = -(-least_runs // repeats), most_runs(budget_s) // repeats
        pause_s = PAUSE_SHARE * budget_s
        started = time.perf_counter()
        if first >= 500 * budget_s and not cuda_graph:
            blocks[0].append(first)
        else:
            _warm_up(next_run_ms, first, WARM_UP_SHARE * budget_s)
        for number, runs in enumerate(blocks, 1):
            if number > 1 and blocks[number - 2][-1] < 1000 * pause_s:
                pause_start = time.perf_counter()
                _pause(next_run_ms, pause_s)
                started += time.perf_counter() - pause_start
            if block_starts_s is not None:
                block_starts_s.append(time.time())
            deadline = started + budget_s * number / repeats
            block_end = time.perf_counter() + BLOCK_S
            while len(runs) < least or time.perf_counter() < (
                deadline if len(runs) < most else min(deadline, block_end)
            ):
                runs.append(next_run_ms())
    return tuple(tuple(runs) for runs in blocks)


def _pause(run: Callable[[], float], seconds: float) -> None:
    time.sleep(seconds)
    start = time.perf_counter()
    for _ in range(MOST_SETTLING):
        run()
        if time.perf_counter() - start > SETTLE_S:
            return


def most_runs(budget_s: float) -> int:
    """Most runs of a point; more than the usual time shows more of how the device's speed varies."""
    return round(MOST_RUNS * max(1.0, budget_s / POINT_BUDGET_S))


def all_finite(outcome: Any) -> bool:
    """Whether no tensor of an output has a NaN or an infinity."""
    tensors = [item for item in pytree.tree_leaves(outcome) if isinstance(item, torch.Tensor)]
    return all(bool(item.isfinite().all()) for item in tensors if item.is_floating_point())


def _capture_cuda_graph(run: Callable[[], Any]) -> Callable[[], Any]:
    """The same work as one CUDA graph, from and to its current tensors; a capture allows no seeding."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(GRAPH_WARM_UPS):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outcome = run()

    def replay() -> Any:
        graph.replay()
        return outcome

    return replay


def _warm_up(run: Callable[[], float], last: float, budget_s: float) -> None:
    started = time.perf_counter()
    while time.perf_counter() - started < budget_s:
        spent = run()
        if abs(spent - last) <= STEADY * last:
            return
        last = spent


def time_run(run: Callable[[], Any], device: str, seed: int) -> tuple[Any, float]:
    """The result of one run and its time in ms. Random numbers are seeded before the clock is read."""
    _seed(device, seed)
    if device == "cpu":
        begin = time.perf_counter_ns()
        outcome = run()
        return outcome, (time.perf_counter_ns() - begin) / 1e6
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    outcome = run()
    end.record()
    torch.cuda.synchronize()
    return outcome, float(start.elapsed_time(end))


def _seed(device: str, seed: int) -> None:
    """The generators of a run; `torch.manual_seed` seeds every backend and takes longer than small models."""
    torch.default_generator.manual_seed(seed)
    if device != "cpu":
        torch.cuda.manual_seed(seed)
