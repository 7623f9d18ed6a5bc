"""Several processes of one model on one device at once: runs inside a limited child, which starts them.

Every process builds the model for itself and waits where it is warm; all are let go together, and what is counted
are the runs for which all were at work. The parts told are those of `child`, points alone.
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

from torchsplit_core.profiling.measuring.statistics import RunStatistics, summarise
from torchsplit_core.values import InputFault, Progress

Part = dict[str, Any]
Run = tuple[float, float, float]
"""Begin and end on the machine's clock in seconds, and the time taken in ms."""

WORKER = "torchsplit_core.profiling.measuring.crowd_worker"


class WorkerDied(Exception):
    """A process of the crowd ended without an answer."""


def measure_in_child(arguments: dict[str, Any], progress: Progress) -> Iterator[Part]:
    """A part for every batch size not known yet, smallest first; arguments as `child.measure_in_child` takes them,
    with `processes`. Raises InputFault where a process cannot build the model or use the device."""
    known = arguments["known"].get(arguments["architecture_hash"], {})
    too_large = min(known.get("out_of_memory", ()), default=None)
    count = int(arguments["processes"])
    ended: tuple[str, str] | None = None
    with Crowd(count, arguments) as crowd:
        yield {"environment": {}}
        for index, batch in enumerate(arguments["batch_sizes"]):
            progress(index / len(arguments["batch_sizes"]), f"{count} processes, batch size {batch}")
            if str(batch) in known.get("batch", {}):
                continue
            if too_large is not None and batch >= too_large:
                ended = ended or ("out_of_memory", f"batch {too_large} was out of memory")
            if ended is not None:
                yield _failure(batch, ended[0], f"Not tried: {ended[1]}.")
                continue
            yield {"begin": ["batch", batch]}
            try:
                part = crowd.point(batch)
            except WorkerDied:
                ended = ("crashed", f"a process died at batch {batch}")
                part = _failure(batch, "crashed", f"One of {count} processes ended without an answer.")
            if "failure" in part and part["failure"]["reason"] == "out_of_memory":
                too_large = batch
            yield part
    progress(1.0, "done")


class Crowd:
    """So many processes, each with the model on the device; they end with the `with` block."""

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
            for answer in self._ask(self._arguments):
                if "fault" in answer:
                    raise InputFault(*answer["fault"])
        except WorkerDied as error:
            self._end()
            problem = f"one of {len(self._workers)} ended while it built the model"
            raise InputFault("processes", problem, "Measure fewer at once.") from error
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def point(self, batch: int) -> Part:
        """One batch size: all are made ready, then let go together. Raises WorkerDied."""
        for answer in self._ask({"batch": batch}):
            if "failure" in answer:
                return _failure(batch, *answer["failure"])
        found = list(self._ask({"go": True}))
        for answer in found:
            if "failure" in answer:
                return _failure(batch, *answer["failure"])
        runs = [[(begin, end, spent) for begin, end, spent in answer["runs"]] for answer in found]
        return {"batch": _content(batch, shared_runs(runs), found)}

    def _ask(self, question: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The question to all, then the answer of each."""
        try:
            for worker in self._workers:
                assert worker.stdin is not None
                worker.stdin.write(json.dumps(question) + "\n")
                worker.stdin.flush()
        except BrokenPipeError as error:
            raise WorkerDied from error
        answers = []
        for worker in self._workers:
            assert worker.stdout is not None
            line = worker.stdout.readline()
            if not line:
                raise WorkerDied
            answers.append(json.loads(line))
        return answers

    def _end(self) -> None:
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.wait()


def shared_runs(runs: Sequence[Sequence[Run]]) -> tuple[tuple[float, ...], ...]:
    """Of each process the times in ms of the runs that lie where all were at work; all of them where it has none.

    At the ends some have not begun or are done already, and the others run alone.
    """
    begin = max(own[0][0] for own in runs)
    end = min(own[-1][1] for own in runs)
    inner = [[spent for start, stop, spent in own if start >= begin and stop <= end] for own in runs]
    return tuple(tuple(found or [run[2] for run in own]) for found, own in zip(inner, runs, strict=True))


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests/s of all processes together, with the sum of the ends of their 90 % intervals."""

    rps: float
    low_rps: float
    high_rps: float


def rates_of(batch: int, statistics: Sequence[RunStatistics]) -> Rates:
    """Sums over the processes of batch / mean time."""
    return Rates(
        sum(1000 * batch / one.mean_ms for one in statistics),
        sum(1000 * batch / one.mean_high_ms for one in statistics),
        sum(1000 * batch / one.mean_low_ms for one in statistics),
    )


def _content(
    batch: int, runs: Sequence[Sequence[float]], answers: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A point as `child` tells it, with the processes and their rates. The peak is that of the largest one."""
    together = summarise(runs)
    peaks = [answer["peak"] for answer in answers if answer["peak"] is not None]
    return {
        "batch_size": batch,
        "processes": len(runs),
        "rates": asdict(rates_of(batch, [summarise([own]) for own in runs])),
        "latency": asdict(together.latency),
        "mean_ms": together.mean_ms,
        "mean_low_ms": together.mean_low_ms,
        "mean_high_ms": together.mean_high_ms,
        "repeats": len(runs),
        "peak": max(peaks, key=lambda peak: peak["peak_bytes"], default=None),
        "finite": all(answer["finite"] for answer in answers),
        "grew_bytes": 0,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _failure(batch: int, reason: str, message: str) -> Part:
    return {"failure": {"kind": "batch", "batch_size": batch, "reason": reason, "message": message}}
