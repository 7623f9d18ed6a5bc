"""A worker's process as the frontend sees it: sandboxed, called without blocking, ended with its children."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any

from pydantic import AfterValidator, Field

from torchsplit_core.isolation import AnswerSchema, Limits, private_temp_dir, schema_reader
from torchsplit_core.isolation.faults import exceeded_limit_fault, printable, printable_line
from torchsplit_core.isolation.launch import ConfinedChild, launch
from torchsplit_core.model_source import parse_source
from torchsplit_core.serving.plan import BoundSlice, ServedModel, WorkerSpec
from torchsplit_core.serving.worker_connection import Message, WorkerConnection
from torchsplit_core.values import Device, InputFault

SERVE = "torchsplit_core.serving.worker:serve_in_child"
START_TIMEOUT_S = 300.0
"""Time for a worker to load and warm up its model."""
EXIT_GRACE_S = 5.0
"""Time for a worker that closed its control pipe to exit."""
TAIL_BYTES = 4096
LONGEST_OUTPUT = 2**20
"""Bytes of printed output that are kept; of more only the end."""
LONGEST_LINE = 256 * 2**20
"""Bytes of a line on the control pipe; the ready message holds an example of the inputs."""


class _Port(AnswerSchema):
    name: str
    datatype: str
    shape: Annotated[list[int], Field(min_length=1)]


class _ReadyMessage(AnswerSchema):
    inputs: list[_Port]
    outputs: list[_Port]
    example: list[Annotated[str, AfterValidator(partial(base64.b64decode, validate=True))]]


class WorkerDied(Exception):
    """The process has ended, or sent an invalid response."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of a batch: compute time (ms), shapes, dtypes and bytes of the outputs, or of a stage its message.

    `fault` says in one sentence what the model raised.
    """

    ms: float
    shapes: tuple[tuple[int, ...], ...]
    payload: bytes | memoryview
    fault: str = ""
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Everything a worker is started with. `directory` holds the parts of a cut model, else it is empty."""

    spec: WorkerSpec
    model: ServedModel
    bound_slice: BoundSlice
    trust: bool
    directory: str = ""


class WorkerProcess:
    """One process of a worker; a restart makes another."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.ports: dict[str, Any] = {}
        self._temp_dirs = contextlib.ExitStack()
        self._child: ConfinedChild | None = None
        self._output: int = -1
        self._control: int = -1
        self._socket: socket.socket | None = None
        self._connection: WorkerConnection | None = None

    @property
    def pid(self) -> int | None:
        """The process id of its supervisor."""
        return self._child.process.pid if self._child else None

    @property
    def is_disconnected(self) -> bool:
        """Whether the worker has closed the connection."""
        return self._connection is not None and self._connection.closed

    async def start(self, launcher: Executor) -> None:
        """Start the process and wait until it is warm. Raises InputFault if the model cannot be run.

        `launcher` has one thread, because the process ends with the thread that started it.
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(launcher, self._launch)
        assert self._socket is not None
        _, self._connection = await loop.create_connection(WorkerConnection, sock=self._socket)
        control = asyncio.StreamReader(limit=LONGEST_LINE)
        pipe = os.fdopen(self._control, "rb", buffering=0)
        self._control = -1
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(control), pipe)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while line := await control.readline():
                    if self._handle_message(line):
                        return
        except TimeoutError:
            raise self._fault(f"is not ready after {START_TIMEOUT_S:g} s") from None
        finally:
            transport.close()
        exit_reason = await asyncio.to_thread(self._exit_reason)
        raise self._fault(f"ended its process while it loaded, {exit_reason}")

    def _exit_reason(self) -> str:
        """The limit that it exceeded, or its status. Blocks until all its processes have ended."""
        assert self._child is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            # Wait first: a process that is ended has the status of that.
            self._child.process.wait(EXIT_GRACE_S)
        status, excess = self._child.end(), self._child.exceeded_limit()
        if excess is not None:
            return str(exceeded_limit_fault("", excess, _limits(self.config.bound_slice.device)).problem)
        return f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"

    def _handle_message(self, line: bytes) -> bool:
        """Handle a line of the control pipe; True if the worker is ready. The line is untrusted: the model's code runs
        in that process."""
        try:
            ((kind, content),) = json.loads(line).items()
            if kind == "ready":
                self.ports = schema_reader(_ReadyMessage)(content)
                return True
            if kind == "fault":
                where, problem, remedy = (printable(str(text)) for text in content)
                raise InputFault(where, problem, remedy).within(self.config.spec.model)
            if kind == "progress":
                return False
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            if isinstance(error, InputFault):
                raise
            kind, content = "text", line[:80].decode(errors="replace")
        received = printable_line(f"{kind}: {content}"[:500])
        raise self._fault(f"sent what its server cannot read ({received})")

    def _fault(self, problem: str) -> InputFault:
        output = self.last_output()
        return InputFault(
            self.config.spec.model,
            problem,
            f"Run it on its own to see why (torchsplit profile {self.config.model.source}).{output}",
        )

    def _launch(self) -> None:
        """Start the process, and close its ends of the socket and the pipe here."""
        local, remote = socket.socketpair()
        reading, writing = os.pipe()
        config = self.config
        spec, bound_slice = config.spec, config.bound_slice
        source = parse_source(config.model.source, trust=config.trust)
        request = {
            "id": spec.id,
            "source": source.text,
            "trust": config.trust,
            "directory": config.directory,
            "position": spec.position,
            "device": asdict(bound_slice.device),
            "cores": list(bound_slice.cores),
            "max_batch": spec.max_batch,
            "socket": remote.fileno(),
            "control": writing,
        }
        readable: tuple[str | Path, ...] = source.files
        if config.directory:
            readable = (*readable, config.directory)
        try:
            with _output() as output:
                self._child = launch(
                    SERVE,
                    request,
                    self._temp_dirs.enter_context(private_temp_dir()),
                    limits=_limits(bound_slice.device),
                    answers=writing,
                    output=output,
                    environment=_environment(bound_slice),
                    readable=readable,
                    descriptors=(remote.fileno(),),
                )
                self._output = os.dup(output.fileno())
        except BaseException:
            local.close()
            os.close(reading)
            raise
        finally:
            remote.close()
            os.close(writing)
        local.setblocking(False)
        self._socket, self._control = local, reading

    async def run(self, rows: int, blocks: Sequence[Any], sizes: Sequence[int] | None) -> BatchResult:
        """Run a batch. `sizes` None: the blocks are the payload of the stage before. Raises WorkerDied."""
        reply = self.send_batch(rows, blocks, sizes)
        with contextlib.suppress(Exception):  # read_result raises it
            await reply
        return self.read_result(reply)

    def send_batch(
        self, rows: int, blocks: Sequence[Any], sizes: Sequence[int] | None
    ) -> asyncio.Future[Message]:
        """Start a batch; pass the future to `read_result` once it is done."""
        assert self._connection is not None
        head: dict[str, Any] = {"rows": rows}
        if sizes is not None:
            head["sizes"] = list(sizes)
        return self._connection.send(head, blocks)

    def read_result(self, reply: asyncio.Future[Message]) -> BatchResult:
        """The result of a batch. Raises WorkerDied."""
        try:
            return _parse_result(*reply.result())
        except WorkerDied:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise WorkerDied(self.last_output()) from error

    def abort_batch(self, reason: str) -> None:
        """Fail the running batch with WorkerDied."""
        assert self._connection is not None
        self._connection.fail(WorkerDied(reason))

    def last_output(self) -> str:
        """The last printed line as a sentence, with a space before it; empty if there is none."""
        with contextlib.suppress(OSError):
            printed = [line for line in self._tail().decode(errors="replace").splitlines() if line.strip()]
            if printed:
                return f" Last output: {printable_line(printed[-1].strip()[:300])}"
        return ""

    def trim_output(self) -> None:
        """Drop all but the end of a long output."""
        if self._output >= 0 and os.fstat(self._output).st_size > LONGEST_OUTPUT:
            tail = self._tail()
            os.ftruncate(self._output, 0)
            os.write(self._output, tail)

    def _tail(self) -> bytes:
        size = os.fstat(self._output).st_size
        return os.pread(self._output, TAIL_BYTES, max(0, size - TAIL_BYTES))

    def terminate(self) -> None:
        """End the process and its children. Blocks until then; may be called twice."""
        if self._socket is not None:
            self._socket.close()
        if self._child is not None:
            self._child.end()
            self._child.close()
        for descriptor in (self._output, self._control):
            if descriptor >= 0:
                os.close(descriptor)
        self._output = self._control = -1
        self._temp_dirs.close()

    def disconnect(self) -> None:
        """Close the connection, so that an idle worker exits. Call it in the thread of the event loop."""
        if self._connection is not None:
            self._connection.transport.close()


def _parse_result(head: dict[str, Any], payload: memoryview) -> BatchResult:
    """The result from an untrusted response. Raises ValueError, KeyError or TypeError."""
    if "fault" in head:
        return BatchResult(0.0, (), b"", printable_line(str(head["fault"])[:2000]))
    shapes = tuple(tuple(int(size) for size in shape) for shape in head.get("shapes", ()))
    return BatchResult(float(head["ms"]), shapes, payload, dtypes=tuple(map(str, head.get("dtypes", ()))))


def _output() -> IO[bytes]:
    """A file in memory for printed output, so that a full disk fails no request. O_APPEND lets it be truncated."""
    output = os.fdopen(os.memfd_create("output"), "r+b", buffering=0)
    fcntl.fcntl(output, fcntl.F_SETFL, fcntl.fcntl(output, fcntl.F_GETFL) | os.O_APPEND)
    return output


def _limits(device: Device) -> Limits:
    """No limit of CPU time, since a server runs until stopped; none of memory under CUDA, which maps more than it
    uses."""
    if device.kind == "cpu":
        return Limits(cpu_s=None)
    return Limits(cpu_s=None, memory_bytes=None)


def _environment(bound_slice: BoundSlice) -> dict[str, str]:
    """Make one device visible, and allow a thread for each core."""
    visible = {"CUDA_VISIBLE_DEVICES": bound_slice.device.uuid or ""}
    return visible | ({"OMP_NUM_THREADS": str(len(bound_slice.cores))} if bound_slice.cores else {})
