"""Call a function in a confined child: read its answers, relay progress and parts, report how it ended."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torchsplit_core.isolation.faults import (
    PARSE_ERRORS,
    ChildFault,
    ChildFaultKind,
    exceeded_limit_fault,
    malformed_answer_fault,
    printable,
    printable_line,
)
from torchsplit_core.isolation.launch import ConfinedChild, launch
from torchsplit_core.isolation.limits import Limits, aborted_for_memory
from torchsplit_core.isolation.sandbox.temp_dirs import private_temp_dir
from torchsplit_core.values import InputFault, InternalFault, Progress, ignore_progress
from torchsplit_core.values.units import GIB

OUTPUT_TAIL_BYTES = 16 * 1024
ANSWER_BYTES = 512 * 2**20
READ_BYTES = 2**16
PIPE_BLOCKS = 64  # a pipe holds at most 1 MiB unless root raised it (pipe(7)): read up to 4 MiB


def _identity(value: Any) -> Any:
    return value


def run_limited(
    target: str,
    arguments: Mapping[str, Any],
    *,
    limits: Limits | None = None,
    progress: Progress = ignore_progress,
    subject: str = "",
    read: Callable[[Any], Any] = _identity,
    receive: Callable[[Any], None] | None = None,
    read_part: Callable[[Any], Any] = _identity,
    environment: Mapping[str, str] | None = None,
    readable: Iterable[str | Path] = (),
    writable: Iterable[str | Path] = (),
) -> Any:
    """Call `function(arguments, progress)` of `target` ("module:function") in a confined child.

    `arguments` and the result are JSON values; `subject` names the work in messages (default: `target`);
    `environment` is added to the few variables that a child gets; `readable` and `writable` are paths it may reach
    besides its own folder, Python, its modules and the paths in TORCHSPLIT_READABLE.
    If the function is a generator, `receive` gets each part as it arrives, and the result is None: so neither side
    ever holds a large answer twice.
    Foreign code can send anything: `read` parses the result and `read_part` each part; an error that they raise for an
    answer of another form (see `schema_reader`) becomes a fault of the child.
    Raises the child's InputFault unchanged; ChildFault (an InputFault) if the child exceeded a limit, crashed, raised
    or answered in another form; InternalFault if the child raised one; InputFault if the requested isolation level is
    not available. However this call ends (also by an exception in `progress` or KeyboardInterrupt), the child and all
    it started end too; they also end with this thread.
    """
    limits = Limits() if limits is None else limits
    subject = subject or target
    with private_temp_dir() as private_folder:
        read_end, write_end = os.pipe()
        try:
            child = launch(
                target, arguments, private_folder, limits=limits, answers=write_end, output=subprocess.PIPE,
                environment=environment, readable=readable, writable=writable,
            )  # fmt: skip
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        run = _ChildRun(subject, limits, progress, receive, read_part)
        return run.parse(read, run.wait(child, read_end))


class _ChildRun:
    """One child from start to end: its answers and how it ended."""

    def __init__(
        self,
        subject: str,
        limits: Limits,
        progress: Progress,
        receive: Callable[[Any], None] | None,
        read_part: Callable[[Any], Any],
    ) -> None:
        self.subject, self.limits, self.progress, self.receive = subject, limits, progress, receive
        self.read_part = read_part
        self.tail = b""
        self.unread = bytearray()
        self.final_message: tuple[str, Any] | None = None
        self.last_message_at: float | None = None

    def wait(self, child: ConfinedChild, answers: int) -> Any:
        """Read answers until the child ends or its time is over; return its result or raise its fault."""
        output = child.process.stdout
        assert output is not None
        ended = os.pidfd_open(child.process.pid)
        timed_out = False
        try:
            for descriptor in (answers, output.fileno()):
                os.set_blocking(descriptor, False)
            timed_out = not self._listen(output.fileno(), answers, ended)
        finally:
            status = child.end()
            excess = child.exceeded_limit()
            child.close()
            output.close()
            os.close(answers)
            os.close(ended)
        if excess is not None and (self.final_message is None or self.final_message[0] != "result"):
            raise exceeded_limit_fault(self.subject, excess, self.limits)
        return self._outcome(status, timed_out)

    def _listen(self, output: int, answers: int, ended: int) -> bool:
        """Relay the child's answers; False if the time was over first."""
        deadline = time.monotonic() + self.limits.wall_s
        with selectors.DefaultSelector() as selector:
            for descriptor in (output, answers, ended):
                selector.register(descriptor, selectors.EVENT_READ)
            while (left := self._listen_until(deadline) - time.monotonic()) > 0:
                ready = [key.fd for key, _ in selector.select(left)]
                for descriptor in ready:
                    if descriptor != ended and not self._read(descriptor, answers):
                        selector.unregister(descriptor)
                if ended in ready or self.final_message is not None:
                    # Read what is left in the pipes; do not wait for end-of-file, because a thread or
                    # a grandchild may keep them open.
                    self._drain(output, answers)
                    return True
        return False

    def _listen_until(self, deadline: float) -> float:
        """When to stop reading: at the child's deadline, or earlier if it has been silent too long."""
        if self.last_message_at is None or self.limits.silent_s is None:
            return deadline
        return min(deadline, self.last_message_at + self.limits.silent_s)

    def _drain(self, output: int, answers: int) -> None:
        """Read what the pipes hold now; bounded, because a grandchild may keep writing."""
        for descriptor in (answers, output):
            for _ in range(PIPE_BLOCKS):
                if not self._read(descriptor, answers):
                    break

    def _read(self, descriptor: int, answers: int) -> bool:
        """Read one block from a pipe; False if nothing is left."""
        try:
            block = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        if descriptor == answers:
            self._parse_messages(block)
        else:
            self.tail = (self.tail + block)[-OUTPUT_TAIL_BYTES:]
        return bool(block)

    def _parse_messages(self, block: bytes) -> None:
        """Split the answers into lines; the first that is neither progress nor a part is final."""
        start = len(self.unread)
        self.unread += block
        if len(self.unread) > ANSWER_BYTES:
            raise self._fault(f"answered with more than {ANSWER_BYTES >> 20} MiB", "Use a smaller model.")
        while self.final_message is None and (end := self.unread.find(b"\n", start)) >= 0:
            line, start = bytes(self.unread[:end]), 0
            del self.unread[: end + 1]
            kind, content = self._decode(line)
            if kind == "part" or self.last_message_at is not None:
                self.last_message_at = time.monotonic()
            if kind == "progress":
                self.progress(*content)
            elif kind == "part" and self.receive is not None:
                self.receive(self.parse(self.read_part, content))
            else:
                self.final_message = (kind, content)

    def parse(self, reader: Callable[[Any], Any], content: Any) -> Any:
        """Parse an answer with `reader`. Raises ChildFault if it fails."""
        try:
            return reader(content)
        except PARSE_ERRORS as error:
            raise malformed_answer_fault(self.subject, error) from error

    def _decode(self, line: bytes) -> tuple[str, Any]:
        """Decode one answer. Foreign code shares the child, so its form cannot be trusted."""
        try:
            ((kind, content),) = json.loads(line).items()
            if kind == "progress":
                share, text = content
                return kind, (min(max(float(share), 0.0), 1.0), printable_line(str(text)[:500]))
            if kind == "fault":
                where, problem, remedy = content
                return kind, tuple(printable(str(field)) for field in (where, problem, remedy))
            if kind == "error":
                names = ("type", "message", "place", "remedy")
                return kind, tuple(printable(str(content[name])) for name in names)
            if kind == "unconfined":
                return kind, printable_line(str(content))
            if kind in ("result", "out_of_memory") or (kind == "part" and self.receive is not None):
                return kind, content
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            pass  # the fault below reports it
        raise self._fault(
            f"broke the form of its answers: {printable_line(line[:80].decode(errors='replace'))}",
            "Have the model's code write only to file descriptors that it opened.",
        )

    def _outcome(self, status: int, timed_out: bool) -> Any:
        """Return the result, or raise the fault that says what happened."""
        kind: str
        content: Any
        kind, content = self.final_message or ("", None)
        if kind == "result":
            return content
        if kind == "fault":
            raise InputFault(*content)
        if kind == "error":
            name, message, place, remedy = content
            if name == InternalFault.__name__:
                raise InternalFault(message)
            raise self._fault(
                f"raised {name}: {message} ({place})",
                remedy or f"Mend the code named. {self._last_output()}",
            )
        if kind == "unconfined":
            raise self._fault(
                f"could not be isolated as this machine allowed before: {content}",
                "Try again; TORCHSPLIT_ISOLATION=landlock or limits asks for less isolation.",
            )
        if timed_out:
            limit = min(self.limits.wall_s, self.limits.silent_s or self.limits.wall_s)
            raise self._fault(
                f"was still running after {limit:g} s, its time limit",
                "Use a smaller model, allow it longer, or mend a loop that never ends.",
                "time_limit",
            )
        if status == -signal.SIGXCPU:
            raise self._fault(
                f"used up its {self.limits.cpu_s} s of processor time",
                "Use a smaller model or a higher processor time limit.",
                "time_limit",
            )
        if kind == "out_of_memory" or status == -signal.SIGKILL or aborted_for_memory(status, self.tail):
            raise self._fault(
                f"ran out of memory: it does not fit in {self._memory()}",
                "Use a smaller model or batch, or raise the memory limit.",
                "out_of_memory",
            )
        ended = (
            f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        )
        raise self._fault(
            f"{ended} without an answer",
            f"Run it on its own to see why. {self._last_output()}",
        )

    def _memory(self) -> str:
        limit = self.limits.memory_bytes
        return "the memory of this machine" if limit is None else f"{limit / GIB:.1f} GiB"

    def _last_output(self) -> str:
        """The last line the child printed, for the remedy."""
        lines = self.tail.decode(errors="replace").strip().splitlines()
        return f"Last output: {printable_line(lines[-1][:300])}" if lines else "It printed nothing."

    def _fault(self, problem: str, remedy: str, kind: ChildFaultKind = "crashed") -> ChildFault:
        return ChildFault(self.subject, problem, remedy, kind=kind)
