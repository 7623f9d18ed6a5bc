"""One process of a crowd: builds the model, gets ready for a batch size, runs when it is let go.

Questions come as JSON lines on standard input, each is answered by one line. What the model prints goes to
standard error.
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
from torchsplit_core.profiling.measuring.compiled import COMPILING_RUNS, compiled, compiling, require_compiler
from torchsplit_core.profiling.measuring.peak import measure_peak
from torchsplit_core.profiling.measuring.timing import LEAST_RUNS, all_finite, most_runs, time_runs, timed_run
from torchsplit_core.values import InputFault

WARM_UP_SHARE = 0.25
"""Share of the time of a point that a process may take to get warm, while the others do."""


def main() -> None:
    """Answer questions until there are no more, or until something in the model cannot go on."""
    answers = os.fdopen(os.dup(1), "w")
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
            _tell(answers, {"ready": True})
            place = torch.device(opened.torch_device)

            def inputs(batch: int) -> Any:
                torch.manual_seed(arguments["seed"])
                return to_device(example_arguments(client, batch), place, dtype)

            _serve(answers, model, inputs, arguments, opened.torch_device)
    except InputFault as fault:
        _tell(answers, {"fault": fault.parts})


def _serve(
    answers: IO[str], model: Any, inputs: Callable[[int], Any], arguments: Mapping[str, Any], device: str
) -> None:
    """Two questions a batch size: be ready, go. A failure answers either."""
    ready: tuple[Any, Any, Any] | None = None
    batch, finite = 0, True
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if "batch" in question:
                batch = int(question["batch"])
                args, kwargs = inputs(batch)
                with foreign_code(f"forward at batch {batch}"), compiling(batch):
                    finite, called = _warm(model, args, kwargs, arguments, device)
                ready = called, args, kwargs
                _tell(answers, {"ready": batch})
            elif ready is not None:
                with foreign_code(f"forward at batch {batch}"):
                    runs = _runs(*ready, arguments, device)
                    peak = asdict(measure_peak(*ready))
                _tell(answers, {"runs": runs, "peak": peak, "finite": finite})
        except InputFault as fault:
            _tell(answers, {"failure": ["failed", str(fault)]})
        except (MemoryError, RuntimeError, OSError) as error:
            if not is_out_of_memory(error):
                raise
            _tell(answers, {"failure": ["out_of_memory", "Out of memory."]})


def _warm(model: Any, args: Any, kwargs: Any, arguments: Mapping[str, Any], device: str) -> tuple[bool, Any]:
    """Whether the outputs are finite, and what is to be called."""
    mode = arguments["compile_mode"]
    called = compiled(model, mode) if mode else model
    seen: list[bool] = []
    time_runs(
        called, args, kwargs, WARM_UP_SHARE * arguments["point_budget_s"], device, seed=arguments["seed"],
        unsteady=COMPILING_RUNS if mode else 0, look=lambda outcome: seen.append(all_finite(outcome)),
    )  # fmt: skip
    return all(seen), called


def _runs(
    model: Any, args: Any, kwargs: Any, arguments: Mapping[str, Any], device: str
) -> list[tuple[float, float, float]]:
    """Runs for the time of a point, at least three: begin, end and ms of each."""

    def run() -> Any:
        return model(*args, **kwargs)

    found: list[tuple[float, float, float]] = []
    budget_s = float(arguments["point_budget_s"])
    deadline, most = time.monotonic() + budget_s, most_runs(budget_s)
    with torch.inference_mode():
        while len(found) < LEAST_RUNS or (len(found) < most and time.monotonic() < deadline):
            begin = time.monotonic()
            spent = timed_run(run, device, int(arguments["seed"]))[1]
            found.append((begin, time.monotonic(), spent))
    return found


def _tell(answers: IO[str], answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
