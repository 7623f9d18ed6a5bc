"""Memory and speed of a process that serves a model, in another limited child process.

The measuring child has exported the model, which leaves a hundred megabytes of a compiler behind; a worker has not. So
this child works as a worker: it loads the model and runs batches. Its anonymous pages at their peak in a run count
(Python, torch, generated kernels, packed matrices, weights, values), and those of its supervisor, which every confined
child has. File pages do not: libtorch's are shared by all processes of a machine, so N workers hold N times this
figure, and libraries once, which the kernel can drop and read again (`benchmarks/worker_memory.py`).

Its blocks of runs are another round of each point, by another process at another time. It reports {"held": {batch_size,
bytes, course}}, smallest batch first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from torchsplit_core.isolation import is_out_of_memory
from torchsplit_core.model_source import example_arguments, foreign_code, load_client, open_model
from torchsplit_core.profiling.measuring.accelerator import open_device
from torchsplit_core.profiling.measuring.annotators import to_device
from torchsplit_core.profiling.measuring.rounds import TimingRound, read_cpu_time, segment_rounds
from torchsplit_core.profiling.measuring.timing import time_runs
from torchsplit_core.values import Progress

ROUND_BLOCKS = 2
"""Blocks of a round here, as of the second round of the measuring child."""
BUDGET_SHARE = 0.4
"""Share of a point's time, for as many blocks of five."""
RESET_PEAK = "5"
"""proc_pid_clear_refs(5): resets the peak resident set to the current one."""


def measure_resident_in_child(arguments: dict[str, Any], progress: Progress) -> Iterator[dict[str, Any]]:
    """A result for each of `batch_sizes`, which fit; arguments as `measurement` sends them.

    Raises InputFault if the model cannot be built or run. Ends early if memory does not suffice even for it alone.
    """
    torch.manual_seed(arguments["seed"])
    client = load_client(arguments["source"], arguments["trust"], arguments["sequence_length"])
    model = open_model(client)
    with open_device(arguments["device"]) as opened:
        dtype = getattr(torch, arguments["dtype"]) if arguments["dtype"] else None
        torch_device = torch.device(opened.torch_device)
        with foreign_code("moving the model to the device"):
            model = model.to(torch_device, dtype)
        for number, batch in enumerate(arguments["batch_sizes"]):
            progress(number / len(arguments["batch_sizes"]), f"what a worker holds at batch {batch}")
            torch.manual_seed(arguments["seed"])
            try:
                args, kwargs = to_device(example_arguments(client, batch), torch_device, dtype)
                with foreign_code(f"forward at batch {batch}"):
                    resident_bytes, timing_round = _measure_resident(model, args, kwargs, arguments)
            except (MemoryError, RuntimeError, OSError) as fault:
                if is_out_of_memory(fault):
                    return
                raise
            yield {
                "held": {
                    "batch_size": batch,
                    "bytes": resident_bytes,
                    "course": segment_rounds([timing_round]),
                }
            }
    progress(1.0, "done")


def _measure_resident(
    model: Any, args: Any, kwargs: Any, arguments: dict[str, Any]
) -> tuple[int, TimingRound]:
    """Bytes at the peak of the runs, without the first two, and the runs."""
    with torch.inference_mode():
        for _ in range(2):
            model(*args, **kwargs)
    reset = _reset_peak()
    block_starts_s: list[float] = []
    before = read_cpu_time()
    runs = time_runs(
        model, args, kwargs, BUDGET_SHARE * float(arguments["point_budget_s"]), repeats=ROUND_BLOCKS,
        least_runs=ROUND_BLOCKS, seed=int(arguments["seed"]), block_starts_s=block_starts_s,
    )  # fmt: skip
    timing_round = TimingRound(runs, read_cpu_time().stolen_share_since(before), tuple(block_starts_s))
    memory = _process_memory("self")
    # At the peak: the resident set without its current file pages.
    peak = memory["VmHWM"] - memory["RssFile"] - memory["RssShmem"] if reset else 0
    supervisor = 0
    with suppress(OSError):  # a host that hides processes from each other
        supervisor = _process_memory(str(os.getppid()))["RssAnon"]
    return max(memory["RssAnon"], peak) + supervisor, timing_round


def _reset_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text(RESET_PEAK)
    except OSError:  # not allowed here: use the end of the run, without what the run freed
        return False
    return True


def _process_memory(process: str) -> dict[str, int]:
    """Bytes of a process by the names of /proc/PID/status."""
    lines = (line.split() for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return {line[0].removesuffix(":"): int(line[1]) * 1024 for line in lines if line[-1] == "kB"}
