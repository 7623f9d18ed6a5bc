"""Concurrent processes of one model on one device, started by a limited child.

Every process builds the model and waits when it is warm; all start together, and only runs during which all were
running count. Messages are those of `child`, points alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from torchsplit_core.profiling.measuring.run_statistics import RunStatistics, summarise
from torchsplit_core.values import InputFault, Progress

Message = dict[str, Any]
TimedRun = tuple[float, float, float]
"""Begin and end on the machine's clock in seconds, and the duration in ms."""

WORKER = "torchsplit_core.profiling.measuring.concurrent_worker"


class WorkerDied(Exception):
    """A process ended without a reply."""


def measure_in_child(arguments: dict[str, Any], progress: Progress) -> Iterator[Message]:
    """The results of every unknown batch size, smallest first.

    Arguments as for `child.measure_in_child`, plus `processes`. Raises InputFault if a process cannot build the model
    or use the device.
    """
    known = arguments["known"].get(arguments["architecture_hash"], {})
    too_large = min(known.get("out_of_memory", ()), default=None)
    count = int(arguments["processes"])
    skip_reason: tuple[str, str] | None = None
    with ConcurrentMeasurement(count, arguments) as measurement:
        yield {"environment": {}}
        for index, batch in enumerate(arguments["batch_sizes"]):
            progress(index / len(arguments["batch_sizes"]), f"{count} processes, batch size {batch}")
            if str(batch) in known.get("batch", {}):
                continue
            if too_large is not None and batch >= too_large:
                skip_reason = skip_reason or ("out_of_memory", f"batch {too_large} was out of memory")
            if skip_reason is not None:
                yield _failure_message(batch, skip_reason[0], f"Not tried: {skip_reason[1]}.")
                continue
            yield {"begin": ["batch", batch]}
            try:
                message = measurement.measure_point(batch)
            except WorkerDied:
                skip_reason = ("crashed", f"a process died at batch {batch}")
                message = _failure_message(
                    batch, "crashed", f"One of {count} processes ended without an answer."
                )
            if "failure" in message and message["failure"]["reason"] == "out_of_memory":
                too_large = batch
            yield message
    progress(1.0, "done")


class ConcurrentMeasurement:
    """Processes that each have the model on the device; they end with the `with` block."""

    def __init__(self, count: int, arguments: Mapping[str, Any]) -> None:
        self._arguments = arguments
        self._workers = [
            subprocess.Popen(
                [sys.executable, "-P", "-m", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(count)
        ]

    def __enter__(self) -> Self:
        try:
            for response in self._request_all(self._arguments):
                if "fault" in response:
                    raise InputFault(*response["fault"])
        except WorkerDied as error:
            self._kill_workers()
            problem = f"one of {len(self._workers)} ended while it built the model"
            raise InputFault("processes", problem, "Measure fewer at once.") from error
        except BaseException:
            self._kill_workers()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill_workers()

    def measure_point(self, batch: int) -> Message:
        """One batch size: all get ready, then start together. Raises WorkerDied."""
        for response in self._request_all({"batch": batch}):
            if "failure" in response:
                return _failure_message(batch, *response["failure"])
        responses = list(self._request_all({"go": True}))
        for response in responses:
            if "failure" in response:
                return _failure_message(batch, *response["failure"])
        runs = [[(begin, end, spent) for begin, end, spent in response["runs"]] for response in responses]
        return {"batch": _point_content(batch, overlapping_runs(runs), responses)}

    def _request_all(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Send a request to all, then read each reply."""
        try:
            for worker in self._workers:
                assert worker.stdin is not None
                worker.stdin.write(json.dumps(request) + "\n")
                worker.stdin.flush()
        except BrokenPipeError as error:
            raise WorkerDied from error
        responses = []
        for worker in self._workers:
            assert worker.stdout is not None
            line = worker.stdout.readline()
            if not line:
                raise WorkerDied
            responses.append(json.loads(line))
        return responses

    def _kill_workers(self) -> None:
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.wait()


def overlapping_runs(runs: Sequence[Sequence[TimedRun]]) -> tuple[tuple[float, ...], ...]:
    """Times in ms of each process's runs that lie where all were running; all its runs if there are none.

    At the ends some processes have not begun or are already done, so the others run alone.
    """
    begin = max(process_runs[0][0] for process_runs in runs)
    end = min(process_runs[-1][1] for process_runs in runs)
    inner = [
        [spent for start, stop, spent in process_runs if start >= begin and stop <= end]
        for process_runs in runs
    ]
    return tuple(
        tuple(overlapping or [run[2] for run in process_runs])
        for overlapping, process_runs in zip(inner, runs, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests/s of all processes together, with the sum of the ends of their 90 % intervals."""

    rps: float
    low_rps: float
    high_rps: float


def total_rates(batch: int, statistics: Sequence[RunStatistics]) -> Rates:
    """Sums of batch / mean time over the processes."""
    return Rates(
        sum(1000 * batch / summary.mean_ms for summary in statistics),
        sum(1000 * batch / summary.mean_high_ms for summary in statistics),
        sum(1000 * batch / summary.mean_low_ms for summary in statistics),
    )


def _point_content(
    batch: int, runs: Sequence[Sequence[float]], responses: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A point in the form of `child`, with the processes and their rates. The peak is that of the largest process."""
    combined = summarise(runs)
    peaks = [response["peak"] for response in responses if response["peak"] is not None]
    return {
        "batch_size": batch,
        "processes": len(runs),
        "rates": asdict(total_rates(batch, [summarise([process_runs]) for process_runs in runs])),
        "latency": asdict(combined.latency),
        "mean_ms": combined.mean_ms,
        "mean_low_ms": combined.mean_low_ms,
        "mean_high_ms": combined.mean_high_ms,
        "repeats": len(runs),
        "peak": max(peaks, key=lambda peak: peak["peak_bytes"], default=None),
        "finite": all(response["finite"] for response in responses),
        "grew_bytes": 0,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _failure_message(batch: int, reason: str, message: str) -> Message:
    return {"failure": {"kind": "batch", "batch_size": batch, "reason": reason, "message": message}}
