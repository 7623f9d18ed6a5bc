"""One of the concurrent processes: builds the model, gets ready for a batch size, and runs on request.

Requests are JSON lines on standard input; each gets one line in reply. The model's own output goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import IO, Any

import torch

from torchsplit_core.isolation import is_out_of_memory
from torchsplit_core.model_source import example_arguments, foreign_code, load_client, open_model
from torchsplit_core.profiling.measuring.accelerator import open_device
from torchsplit_core.profiling.measuring.annotators import to_device
from torchsplit_core.profiling.measuring.compilation import (
    COMPILATION_RUNS,
    compile_model,
    raise_compile_faults,
    require_compiler,
)
from torchsplit_core.profiling.measuring.peak_memory import measure_peak
from torchsplit_core.profiling.measuring.timing import LEAST_RUNS, all_finite, most_runs, time_run, time_runs
from torchsplit_core.values import InputFault

WARM_UP_SHARE = 0.25
"""Share of a point's time that a process may take to warm up, while the others do."""


def main() -> None:
    """Reply to requests until there are no more, or until the model cannot continue."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    arguments = json.loads(sys.stdin.readline())
    try:
        torch.manual_seed(arguments["seed"])
        client = load_client(arguments["source"], arguments["trust"], arguments["sequence_length"])
        model = open_model(client)
        with open_device(arguments["device"]) as opened:
            if arguments["compile_mode"]:
                require_compiler(opened.torch_device)
            dtype = getattr(torch, arguments["dtype"]) if arguments["dtype"] else None
            with foreign_code("moving the model to the device"):
                model = model.to(opened.torch_device, dtype)
            _send(output, {"ready": True})
            torch_device = torch.device(opened.torch_device)

            def inputs(batch: int) -> Any:
                torch.manual_seed(arguments["seed"])
                return to_device(example_arguments(client, batch), torch_device, dtype)

            _serve_requests(output, model, inputs, arguments, opened.torch_device)
    except InputFault as fault:
        _send(output, {"fault": fault.parts})


def _serve_requests(
    output: IO[str], model: Any, inputs: Callable[[int], Any], arguments: Mapping[str, Any], device: str
) -> None:
    """Two requests a batch size: get ready, run. Either may get a failure in reply."""
    ready: tuple[Any, Any, Any] | None = None
    batch, finite = 0, True
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "batch" in request:
                batch = int(request["batch"])
                args, kwargs = inputs(batch)
                with foreign_code(f"forward at batch {batch}"), raise_compile_faults(batch):
                    finite, callable_model = _warm_up(model, args, kwargs, arguments, device)
                ready = callable_model, args, kwargs
                _send(output, {"ready": batch})
            elif ready is not None:
                with foreign_code(f"forward at batch {batch}"):
                    runs = _timed_runs(*ready, arguments, device)
                    peak = asdict(measure_peak(*ready))
                _send(output, {"runs": runs, "peak": peak, "finite": finite})
        except InputFault as fault:
            _send(output, {"failure": ["failed", str(fault)]})
        except (MemoryError, RuntimeError, OSError) as error:
            if not is_out_of_memory(error):
                raise
            _send(output, {"failure": ["out_of_memory", "Out of memory."]})


def _warm_up(
    model: Any, args: Any, kwargs: Any, arguments: Mapping[str, Any], device: str
) -> tuple[bool, Any]:
    """Whether the outputs are finite, and the callable to run."""
    mode = arguments["compile_mode"]
    callable_model = compile_model(model, mode) if mode else model
    seen: list[bool] = []
    time_runs(
        callable_model, args, kwargs, WARM_UP_SHARE * arguments["point_budget_s"], device, seed=arguments["seed"],
        unsteady=COMPILATION_RUNS if mode else 0, look=lambda outcome: seen.append(all_finite(outcome)),
    )  # fmt: skip
    return all(seen), callable_model


def _timed_runs(
    model: Any, args: Any, kwargs: Any, arguments: Mapping[str, Any], device: str
) -> list[tuple[float, float, float]]:
    """Runs for the time of a point, at least three: begin, end and ms of each."""

    def run() -> Any:
        return model(*args, **kwargs)

    runs: list[tuple[float, float, float]] = []
    budget_s = float(arguments["point_budget_s"])
    deadline, most = time.monotonic() + budget_s, most_runs(budget_s)
    with torch.inference_mode():
        while len(runs) < LEAST_RUNS or (len(runs) < most and time.monotonic() < deadline):
            begin = time.monotonic()
            spent = time_run(run, device, int(arguments["seed"]))[1]
            runs.append((begin, time.monotonic(), spent))
    return runs


def _send(output: IO[str], response: Mapping[str, Any]) -> None:
    output.write(json.dumps(response) + "\n")
    output.flush()


if __name__ == "__main__":
    main()
