"""How long a model takes end to end: warmed up until it is steady, then repeated, without instrumentation.

The CUDA paths (events, graphs) are untested on hardware.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchsplit_core.profiling.measuring.copies import HostCopies
from torchsplit_core.profiling.points import POINT_BUDGET_S, REPEATS

SEED = 0
"""Random numbers of a model's forward start here before every timed run, unless the caller says."""
LEAST_RUNS = 3
MOST_RUNS = 300
"""Enough for an upper bound of a 99th percentile (299 runs, see statistics); of a point, in the usual time."""
STEADY = 0.1
"""Warm-up ends when two runs in a row differ by less than this share."""
WARM_UP_SHARE = 0.25
"""Share of a point's time budget that warm-up may take beyond its first run."""
GRAPH_WARM_UPS = 3
"""Runs on a side stream before a capture, as torch.cuda.graphs asks for."""


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
    unsteady: int = 0,
    copies: HostCopies | None = None,
    look: Callable[[Any], None] | None = None,
) -> tuple[tuple[float, ...], ...]:
    """End-to-end times of the model in ms: one tuple a repeat, one entry a run, at least three runs in all.

    Eval mode, inference mode, fixed seed. `unsteady` runs at first are of another kind (they compile the model)
    and count for nothing. With `copies` every run moves its inputs and outputs. Warm-up until two runs agree
    within a tenth or a quarter of the budget is spent; then runs while the budget is not spent, `most_runs`
    at most. A first run that takes half the budget or more is long against what warm-up could change, and
    counts as one of the three. `look` gets what that run returned. With `cuda_graph` the model is captured
    once and replayed.
    """
    # An exported module refuses eval(): its mode was fixed when it was exported.
    with suppress(NotImplementedError):
        model.eval()

    def call() -> Any:
        return model(*args, **kwargs)

    def seeded() -> Any:
        torch.manual_seed(seed)
        return call()

    def run() -> Any:
        return seeded() if copies is None else copies.around(seeded)

    with torch.inference_mode():
        for _ in range(unsteady):
            run()
        outcome, first = timed_run(run, device)
        if look is not None:
            look(outcome)
        del outcome
        if cuda_graph:
            seeded = _captured(call)
        taken: list[list[float]] = [[] for _ in range(repeats)]
        least, most = -(-LEAST_RUNS // repeats), most_runs(budget_s) // repeats
        started = time.perf_counter()
        if first >= 500 * budget_s and not cuda_graph:
            taken[0].append(first)
        else:
            _warm_up(lambda: timed_run(run, device)[1], first, WARM_UP_SHARE * budget_s)
        for number, runs in enumerate(taken, 1):
            deadline = started + budget_s * number / repeats
            while len(runs) < least or (len(runs) < most and time.perf_counter() < deadline):
                runs.append(timed_run(run, device)[1])
    return tuple(tuple(runs) for runs in taken)


def most_runs(budget_s: float) -> int:
    """Of a point: who gives it more than the usual time wants to see more of how the device's speed changes."""
    return round(MOST_RUNS * max(1.0, budget_s / POINT_BUDGET_S))


def all_finite(outcome: Any) -> bool:
    """Whether no tensor of an output has a NaN or an infinity."""
    tensors = [item for item in pytree.tree_leaves(outcome) if isinstance(item, torch.Tensor)]
    return all(bool(item.isfinite().all()) for item in tensors if item.is_floating_point())


def _captured(run: Callable[[], Any]) -> Callable[[], Any]:
    """The same work as one CUDA graph, from and to the tensors it has now; a capture allows no seeding."""
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


def timed_run(run: Callable[[], Any], device: str) -> tuple[Any, float]:
    """What one run returned, and its time in ms."""
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
