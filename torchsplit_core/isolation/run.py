"""The parent's side of isolation: start the child, listen, end its group, say how it went."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from torchsplit_core.isolation.memory import default_memory_bytes
from torchsplit_core.values import InputFault, InternalFault, Progress, ignore_progress

OUTPUT_TAIL_BYTES = 16 * 1024
ANSWER_BYTES = 512 * 2**20
READ_BYTES = 2**16
PIPE_BLOCKS = 64  # a pipe holds at most 1 MiB unless root raised it (pipe(7)): read up to 4 MiB
KEPT_ENVIRONMENT = (
    "PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may use; None is no limit.

    `memory_bytes` is address space (CUDA maps far more than it uses: give None there);
    `cpu_s` counts all threads of one process, in whole seconds; `silent_s` is the longest time
    without an answer once a first part has come, for work that tells of each of its steps.
    """

    wall_s: float = 300.0
    silent_s: float | None = None
    cpu_s: int | None = 1800
    memory_bytes: int | None = field(default_factory=default_memory_bytes)
    file_bytes: int | None = 2**30
    open_files: int | None = 256


class ChildFault(InputFault):
    """The child itself came to an end: out of time, out of memory or by a crash; not a fault that it told."""

    def __init__(
        self,
        where: str,
        value: object,
        rule: str,
        remedy: str,
        *,
        kind: Literal["time_limit", "out_of_memory", "crashed"] = "crashed",
    ) -> None:
        super().__init__(where, value, rule, remedy)
        self.kind = kind


class _Shown(str):
    """A value that was already written out: its repr is itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def run_limited(
    target: str,
    arguments: Mapping[str, Any],
    *,
    limits: Limits | None = None,
    progress: Progress = ignore_progress,
    subject: str = "",
    receive: Callable[[Any], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Call `function(arguments, progress)` of `target` ("module:function") in a limited child.

    `arguments` and the result are JSON values; `subject` names the work in messages (default: `target`);
    `environment` is added to the few names a child gets.
    A function that yields hands each part to `receive` as it comes, and its result is None: so neither
    side ever holds a large answer twice.
    Raises the child's InputFault as it was; ChildFault (an InputFault) for a child that passed a limit,
    crashed or raised; InternalFault where the child broke one of our own promises. Whatever ends
    this call (an exception of `progress` or KeyboardInterrupt included) also ends the child's group.
    """
    limits = Limits() if limits is None else limits
    subject = subject or target
    request = json.dumps({"target": target, "arguments": dict(arguments), "limits": asdict(limits)})
    with tempfile.TemporaryDirectory(prefix="torchsplit-") as room:
        run = _Run(subject, limits, progress, receive)
        return run.wait(*_start(request, room, environment or {}))


def _environment(room: str) -> dict[str, str]:
    """The few names a child needs; its home and temporary files are in its own directory."""
    kept = {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ}
    path = os.pathsep.join(str(Path(entry or ".").resolve()) for entry in sys.path)
    own = {"HOME": room, "TMPDIR": room, "USER": "torchsplit", "LOGNAME": "torchsplit", "PYTHONPATH": path}
    # Each further malloc arena reserves 64 MiB of the address space that memory_bytes limits.
    return kept | own | {"MALLOC_ARENA_MAX": "2", "PYTHONUNBUFFERED": "1"}


def _start(request: str, room: str, added: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """The child, its request handed over, and the reading end of its answers."""
    reading, writing = os.pipe()
    try:
        # The request goes through a file: a pipe could block on a child that never reads.
        with tempfile.TemporaryFile() as handed:
            handed.write(request.encode())
            handed.seek(0)
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "torchsplit_core.isolation.child", str(writing)],
                stdin=handed,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                cwd=room,
                env={**_environment(room), **added},
                start_new_session=True,
            )
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return child, reading


class _Run:
    """One child from start to end: what it said and how it ended."""

    def __init__(
        self, subject: str, limits: Limits, progress: Progress, receive: Callable[[Any], None] | None
    ) -> None:
        self.subject, self.limits, self.progress, self.receive = subject, limits, progress, receive
        self.tail = b""
        self.unread = bytearray()
        self.answer: tuple[str, Any] | None = None
        self.heard: float | None = None

    def wait(self, child: subprocess.Popen[bytes], reading: int) -> Any:
        """Listen until the child ends or its time is over; then its result or its fault."""
        assert child.stdout is not None
        ended = os.pidfd_open(child.pid)
        timed_out = False
        try:
            for descriptor in (reading, child.stdout.fileno()):
                os.set_blocking(descriptor, False)
            timed_out = not self._listen(child.stdout.fileno(), reading, ended)
        finally:
            # The child is not reaped yet, so its group id cannot have gone to someone else.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            child.stdout.close()
            os.close(reading)
            os.close(ended)
        return self._outcome(child.returncode, timed_out)

    def _listen(self, output: int, answers: int, ended: int) -> bool:
        """Relay what the child says; False where the time was over first."""
        deadline = time.monotonic() + self.limits.wall_s
        with selectors.DefaultSelector() as selector:
            for descriptor in (output, answers, ended):
                selector.register(descriptor, selectors.EVENT_READ)
            while (left := self._end(deadline) - time.monotonic()) > 0:
                ready = [key.fd for key, _ in selector.select(left)]
                for descriptor in ready:
                    if descriptor != ended and not self._read(descriptor, answers):
                        selector.unregister(descriptor)
                if ended in ready or self.answer is not None:
                    # Take what is left in the pipes; do not wait for their end, which a thread or
                    # a grandchild may hold back.
                    self._drain(output, answers)
                    return True
        return False

    def _end(self, deadline: float) -> float:
        """When listening ends: the child's deadline, or earlier where it has fallen silent."""
        if self.heard is None or self.limits.silent_s is None:
            return deadline
        return min(deadline, self.heard + self.limits.silent_s)

    def _drain(self, output: int, answers: int) -> None:
        """What the pipes hold now; bounded, for a grandchild may go on writing."""
        for descriptor in (answers, output):
            for _ in range(PIPE_BLOCKS):
                if not self._read(descriptor, answers):
                    break

    def _read(self, descriptor: int, answers: int) -> bool:
        """One block from a pipe; False where nothing more is there."""
        try:
            block = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        if descriptor == answers:
            self._take(block)
        else:
            self.tail = (self.tail + block)[-OUTPUT_TAIL_BYTES:]
        return bool(block)

    def _take(self, block: bytes) -> None:
        """Split the answers into lines; the first that is neither progress nor a part is final."""
        start = len(self.unread)
        self.unread += block
        if len(self.unread) > ANSWER_BYTES:
            raise self._fault("an answer too large", "an answer has at most 512 MiB", "Use a smaller model.")
        while self.answer is None and (end := self.unread.find(b"\n", start)) >= 0:
            line, start = bytes(self.unread[:end]), 0
            del self.unread[: end + 1]
            kind, content = self._decode(line)
            if kind == "part" or self.heard is not None:
                self.heard = time.monotonic()
            if kind == "progress":
                self.progress(*content)
            elif kind == "part" and self.receive is not None:
                self.receive(content)
            else:
                self.answer = (kind, content)

    def _decode(self, line: bytes) -> tuple[str, Any]:
        """One answer. Foreign code shares the child, so nothing here may trust its form."""
        try:
            ((kind, content),) = json.loads(line).items()
            if kind == "progress":
                share, text = content
                return kind, (min(max(float(share), 0.0), 1.0), str(text)[:500])
            if kind == "fault":
                where, value, rule, remedy = content
                return kind, (str(where), str(value), str(rule), str(remedy))
            if kind == "error":
                return kind, (str(content["type"]), str(content["message"]), str(content["place"]))
            if kind in ("result", "out_of_memory") or (kind == "part" and self.receive is not None):
                return kind, content
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            pass  # the fault below says it
        raise self._fault(
            line[:80].decode(errors="replace"),
            "the child answers in the agreed form",
            "The model's code must not write to file descriptors it did not open.",
        )

    def _outcome(self, status: int, timed_out: bool) -> Any:
        """The result, or the fault that says what happened."""
        kind: str
        content: Any
        kind, content = self.answer or ("", None)
        if kind == "result":
            return content
        if kind == "fault":
            where, value, rule, remedy = content
            raise InputFault(where, _Shown(value), rule, remedy)
        if kind == "error":
            name, message, place = content
            if name == InternalFault.__name__:
                raise InternalFault(message)
            raise self._fault(
                f"{name}: {message} ({place})",
                "the code runs without an error",
                f"Mend the code named. {self._last_words()}",
            )
        if timed_out:
            limit = min(self.limits.wall_s, self.limits.silent_s or self.limits.wall_s)
            raise self._fault(
                f"still running after {limit:g} s",
                "the work ends within its time limit",
                "Use a smaller model or a longer time limit; a loop that never ends must go.",
                "time_limit",
            )
        if status == -signal.SIGXCPU:
            raise self._fault(
                f"used {self.limits.cpu_s} s of processor time",
                "the work ends within its processor time",
                "Use a smaller model or a higher processor time limit.",
                "time_limit",
            )
        if kind == "out_of_memory" or status == -signal.SIGKILL:
            raise self._fault(
                "out of memory",
                f"the work fits in {self._memory()}",
                "Use a smaller model or batch, or raise the memory limit.",
                "out_of_memory",
            )
        ended = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        raise self._fault(
            f"{ended} without an answer",
            "the code returns instead of ending or crashing its process",
            f"Run it on its own to see why. {self._last_words()}",
        )

    def _memory(self) -> str:
        limit = self.limits.memory_bytes
        return "the memory of this machine" if limit is None else f"{limit / 2**30:.1f} GiB"

    def _last_words(self) -> str:
        """The last line the child printed, for the remedy."""
        lines = self.tail.decode(errors="replace").strip().splitlines()
        return f"Last output: {lines[-1][:300]}" if lines else "It printed nothing."

    def _fault(
        self,
        value: str,
        rule: str,
        remedy: str,
        kind: Literal["time_limit", "out_of_memory", "crashed"] = "crashed",
    ) -> ChildFault:
        return ChildFault(self.subject, _Shown(value), rule, remedy, kind=kind)
