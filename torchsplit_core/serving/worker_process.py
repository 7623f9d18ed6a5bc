"""A worker's process as the front sees it: started confined, spoken to without blocking, ended with all it started."""

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
"""How long a worker may take to load its model and get warm."""
EXIT_GRACE_S = 5.0
"""How long a worker that hung up may take to end by itself."""
TAIL_BYTES = 4096
LONGEST_OUTPUT = 2**20
"""Bytes of what it prints that are kept; of more only the end."""
LONGEST_LINE = 256 * 2**20
"""Of what it tells of itself: an example of its inputs is in it."""


class _Port(AnswerSchema):
    name: str
    datatype: str
    shape: Annotated[list[int], Field(min_length=1)]


class _ReadyMessage(AnswerSchema):
    inputs: list[_Port]
    outputs: list[_Port]
    example: list[Annotated[str, AfterValidator(partial(base64.b64decode, validate=True))]]


class WorkerDied(Exception):
    """The process has ended, or broke the form of an answer."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What a batch gave: ms of computing, the outputs' shapes with their bytes, or a part's message in `payload`.

    `fault`: the model raised, in one sentence.
    """

    ms: float
    shapes: tuple[tuple[int, ...], ...]
    payload: bytes | memoryview
    fault: str = ""
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Everything that a worker is told at its start. `directory` has the parts of a cut model, else it is empty."""

    spec: WorkerSpec
    model: ServedModel
    bound_slice: BoundSlice
    trust: bool
    directory: str = ""


class WorkerProcess:
    """One start of a worker; what died is started again as another."""

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
        """Of its supervisor, which ends it."""
        return self._child.process.pid if self._child else None

    @property
    def is_disconnected(self) -> bool:
        """Whether its end of the connection is closed."""
        return self._connection is not None and self._connection.closed

    async def start(self, launcher: Executor) -> None:
        """Start it and wait until it is warm. Raises InputFault in its own words where the model cannot be run.

        `launcher` has one thread: the process ends with the thread that started it.
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
        """The limit that it passed, else its status. Blocks until all that it started has ended."""
        assert self._child is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            # Who is told to end has the status of that.
            self._child.process.wait(EXIT_GRACE_S)
        status, excess = self._child.end(), self._child.exceeded_limit()
        if excess is not None:
            return str(exceeded_limit_fault("", excess, _limits(self.config.bound_slice.device)).problem)
        return f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"

    def _handle_message(self, line: bytes) -> bool:
        """Take a line that it told; True where it is ready. Nothing may trust its form: the model's code runs there."""
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
        """Start the process; the ends of socket and pipe that are its own are closed here."""
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
        """A batch and its answer. `sizes` None: the blocks are what the part before gave. Raises WorkerDied."""
        reply = self.send_batch(rows, blocks, sizes)
        with contextlib.suppress(Exception):  # `answer` says it
            await reply
        return self.read_result(reply)

    def send_batch(
        self, rows: int, blocks: Sequence[Any], sizes: Sequence[int] | None
    ) -> asyncio.Future[Message]:
        """Begin with a batch; `answer` takes the future once it is done."""
        assert self._connection is not None
        head: dict[str, Any] = {"rows": rows}
        if sizes is not None:
            head["sizes"] = list(sizes)
        return self._connection.send(head, blocks)

    def read_result(self, reply: asyncio.Future[Message]) -> BatchResult:
        """What a batch gave. Raises WorkerDied."""
        try:
            return _parse_result(*reply.result())
        except WorkerDied:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise WorkerDied(self.last_output()) from error

    def abort_batch(self, reason: str) -> None:
        """Whoever waits for the batch at work hears that the worker is taken for dead."""
        assert self._connection is not None
        self._connection.fail(WorkerDied(reason))

    def last_output(self) -> str:
        """The last line it printed, as a sentence with a space before it."""
        with contextlib.suppress(OSError):
            printed = [line for line in self._tail().decode(errors="replace").splitlines() if line.strip()]
            if printed:
                return f" Last output: {printable_line(printed[-1].strip()[:300])}"
        return ""

    def trim_output(self) -> None:
        """Keep the end alone of what it printed, where that has grown long."""
        if self._output >= 0 and os.fstat(self._output).st_size > LONGEST_OUTPUT:
            tail = self._tail()
            os.ftruncate(self._output, 0)
            os.write(self._output, tail)

    def _tail(self) -> bytes:
        size = os.fstat(self._output).st_size
        return os.pread(self._output, TAIL_BYTES, max(0, size - TAIL_BYTES))

    def terminate(self) -> None:
        """End it and all it started; twice does no harm. Blocks for as long as that takes."""
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
        """Close the connection, in the thread of the event loop: an idle worker ends by itself."""
        if self._connection is not None:
            self._connection.transport.close()


def _parse_result(head: dict[str, Any], payload: memoryview) -> BatchResult:
    """Checked, for the code of a model shares the process that sent it. Raises ValueError, KeyError or TypeError."""
    if "fault" in head:
        return BatchResult(0.0, (), b"", printable_line(str(head["fault"])[:2000]))
    shapes = tuple(tuple(int(size) for size in shape) for shape in head.get("shapes", ()))
    return BatchResult(float(head["ms"]), shapes, payload, dtypes=tuple(map(str, head.get("dtypes", ()))))


def _output() -> IO[bytes]:
    """Where a worker prints to: memory, so that a full disk fails no request. Truncated, it goes on at its new end."""
    output = os.fdopen(os.memfd_create("output"), "r+b", buffering=0)
    fcntl.fcntl(output, fcntl.F_SETFL, fcntl.fcntl(output, fcntl.F_GETFL) | os.O_APPEND)
    return output


def _limits(device: Device) -> Limits:
    """No end of its time or of what it computes, which a server has not; CUDA maps more memory than it uses."""
    if device.kind == "cpu":
        return Limits(cpu_s=None)
    return Limits(cpu_s=None, memory_bytes=None)


def _environment(bound_slice: BoundSlice) -> dict[str, str]:
    """The one device that it sees, and a thread for each of its cores."""
    visible = {"CUDA_VISIBLE_DEVICES": bound_slice.device.uuid or ""}
    return visible | ({"OMP_NUM_THREADS": str(len(bound_slice.cores))} if bound_slice.cores else {})
