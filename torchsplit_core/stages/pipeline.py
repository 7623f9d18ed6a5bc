"""The stages of a model in a process each, several batches at work at once.

The processes form a chain of local stream sockets: this process feeds the first stage, each
feeds the next, the last feeds this one. What a later stage or the result needs is passed along.
A stage's process is confined as the code of a model is (see `isolation`): it reads its part, reaches
no network but the sockets it was given, has limits, and ends with all it started when the pipeline is
closed or this process ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchsplit_core.isolation import Limits, private_temp_dir
from torchsplit_core.isolation.launch import launch
from torchsplit_core.stages.export_folder import open_manifest
from torchsplit_core.stages.feeder import Feeder
from torchsplit_core.stages.pipeline_monitor import PipelineMonitor, StageProcess
from torchsplit_core.stages.signature import bind_arguments, unflatten_result
from torchsplit_core.stages.tensor_transport import StreamClosed, receive_values
from torchsplit_core.values import InputFault, StageManifest

SERVE = "torchsplit_core.stages.worker:serve_in_child"
START_TIMEOUT_S = 180.0
BATCH_TIMEOUT_S = 120.0
CLOSE_S = 5.0
"""How long a stage may take to end by itself once its inputs have ended; then it is killed."""


class StagePipeline:
    """A cut model that serves batches, each stage in a process of its own. Use it as a context manager.

    `threads` is what torch computes with in each process: results are equal to the bit to those
    of the whole model at the same number. `batch_timeout_s` is the longest time without a
    result while batches are at work. Raises InputFault as `open_manifest` does, and where a stage
    cannot start, naming it. The processes end with the thread that opened the pipeline.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        trust: bool = False,
        threads: int = 1,
        start_timeout_s: float = START_TIMEOUT_S,
        batch_timeout_s: float = BATCH_TIMEOUT_S,
        limits: Limits | None = None,
    ) -> None:
        if threads < 1:
            raise InputFault("threads", f"is {threads}, below the least value 1", "Pass threads=1.")
        self.directory = Path(directory).absolute()
        self.manifest: StageManifest = open_manifest(self.directory, trust=trust)
        self.batch_timeout_s = batch_timeout_s
        self._live_values: list[list[str]] = live_values(self.manifest)
        self._stages: list[StageProcess] = []
        self._feeder: Feeder | None = None
        self._temp_dirs = contextlib.ExitStack()
        self._first, first = socket.socketpair()
        incoming = first
        try:
            for i in range(len(self.manifest.stages)):
                outgoing, following = socket.socketpair()
                with incoming, outgoing:
                    self._stages.append(self._start(i, threads, limits, incoming, outgoing))
                incoming = following
            self._last = incoming
            self._monitor = PipelineMonitor(self._stages, self._last)
            self._monitor.await_ready(start_timeout_s)
        except BaseException:
            incoming.close()
            self._end(kill=True)
            raise

    def run(self, batches: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """The model's result for each batch, in order, while later batches are already at work.

        A batch is the positional arguments as a tuple, or `(args, kwargs)`. Raises InputFault for
        arguments that do not fit, and for a stage that dies, fails or stands still, naming it; the
        pipeline is then closed. One run at a time; a run that is left before its end closes it too.
        """
        if self._feeder is not None:
            raise InputFault(
                "StagePipeline.run",
                "was called on a pipeline that is closed or runs already",
                "Open another.",
            )
        feeder = self._feeder = Feeder(
            self._first, self._live_values[0], (self._bind(batch) for batch in batches)
        )
        finished = False
        try:
            for number in self._monitor.results(feeder, self.batch_timeout_s):
                try:
                    received, values = receive_values(self._last)
                except (StreamClosed, OSError) as error:
                    raise self._monitor.fault() from error
                assert received == number, "batches come out in the order they went in"
                yield unflatten_result(self.manifest, values)
            finished = True
        finally:
            if finished:
                feeder.stop()
                self._feeder = None
            else:
                self.close()

    def close(self) -> None:
        """End every process: by itself where it is idle, killed where it is not. May be called twice."""
        idle = self._feeder is None
        self._feeder = self._feeder or Feeder.empty()
        self._end(kill=not idle)

    def __enter__(self) -> StagePipeline:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _bind(self, batch: tuple[Any, ...]) -> dict[str, Any]:
        if len(batch) == 2 and isinstance(batch[0], tuple) and isinstance(batch[1], dict):
            return bind_arguments(self.manifest, batch[0], batch[1])
        return bind_arguments(self.manifest, batch, {})

    def _start(
        self, i: int, threads: int, limits: Limits | None, incoming: socket.socket, outgoing: socket.socket
    ) -> StageProcess:
        """The process of one stage, its ends of the sockets handed over."""
        part = self.manifest.stages[i]
        reading, writing = os.pipe()
        request = {
            "name": part.name,
            "directory": str(self.directory),
            "part": asdict(part),
            "pass_on": self._live_values[i + 1],
            "threads": threads,
            "incoming": incoming.fileno(),
            "outgoing": outgoing.fileno(),
            "control": writing,
        }
        limits = limits or Limits(cpu_s=None)
        try:
            with tempfile.TemporaryFile() as output:
                child = launch(
                    SERVE,
                    request,
                    self._temp_dirs.enter_context(private_temp_dir()),
                    limits=limits,
                    answers=writing,
                    output=output,
                    environment={"OMP_NUM_THREADS": str(threads)},
                    readable=(self.directory / part.file,),
                    descriptors=(incoming.fileno(), outgoing.fileno()),
                )
                return StageProcess(part.name, child, limits, reading, os.dup(output.fileno()))
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)

    def _end(self, *, kill: bool) -> None:
        """Close the sockets, wait for or kill the processes, reap them."""
        for stream in (self._first, getattr(self, "_last", None)):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.shutdown(socket.SHUT_RDWR)
                stream.close()
        for stage in self._stages:
            if not kill:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    stage.process.wait(CLOSE_S)
            stage.child.end()
            stage.close()
        self._temp_dirs.close()
        if self._feeder is not None:
            self._feeder.stop()


def live_values(manifest: StageManifest) -> list[list[str]]:
    """For the first socket and the one behind each stage: the values that are needed beyond it."""
    needed: set[str] = {slot.name for slot in manifest.outputs if slot.name is not None}
    by_boundary = [needed]
    for part in reversed(manifest.stages):
        needed = (needed - {value.name for value in part.outputs}) | {value.name for value in part.inputs}
        by_boundary.append(needed)
    return [sorted(names) for names in reversed(by_boundary)]
