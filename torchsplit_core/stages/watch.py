"""Watching the processes of a pipeline: ready, progress, results, and who is at fault when it stops."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

from torchsplit_core.isolation import Limits
from torchsplit_core.isolation.faults import fault_of_excess, printable, printable_line
from torchsplit_core.isolation.launch import Confined
from torchsplit_core.stages.feeding import Feeder
from torchsplit_core.values import InputFault

SETTLE_S = 2.0
"""When one stage dies its neighbours follow: how long the first cause may take to be told."""
GONE = 3  # worker.GONE, without loading the worker
TAIL_BYTES = 4096


class Member:
    """One stage's process and what it told: ready, the batches done, its fault."""

    def __init__(self, name: str, child: Confined, limits: Limits, control: int, output: int) -> None:
        self.name, self.child, self.process, self.limits = name, child, child.process, limits
        self.ready = False
        self.done = 0
        self.told: InputFault | None = None
        self.ended = os.pidfd_open(child.process.pid)
        self.control = control
        self._output = output
        self._unread = b""
        os.set_blocking(control, False)

    def hear(self) -> bool:
        """Take what it said; False at the end of it."""
        try:
            block = os.read(self.control, 65536)
        except BlockingIOError:
            return True
        *lines, self._unread = (self._unread + block).split(b"\n")
        for line in lines:
            # What a part holds was executed there: nothing here may trust the form of a line.
            try:
                ((kind, content),) = json.loads(line).items()
                self._take(kind, content)
            except (ValueError, TypeError, AttributeError, RecursionError):
                self._take("unread", line[:80].decode(errors="replace"))
        return bool(block)

    def _take(self, kind: str, content: Any) -> None:
        if kind == "ready":
            self.ready = True
        elif kind == "done":
            self.done += 1
        elif self.told is None and kind == "fault":
            where, problem, remedy = (printable(str(told)) for told in content)
            self.told = InputFault(where, problem, remedy).within(self.name)
        elif self.told is None:
            told = printable(f"{kind}: {content}"[:2000])
            self.told = InputFault(self.name, f"said what no stage says, {told}", "Mend its inputs.")

    def passed_limit(self) -> InputFault | None:
        """The fault for a limit that its supervisor found passed."""
        excess = self.child.excess()
        return None if excess is None else fault_of_excess(self.name, excess, self.limits)

    def last_words(self) -> str:
        """The last line it printed."""
        size = os.fstat(self._output).st_size
        lines = (
            os.pread(self._output, TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace").split("\n")
        )
        printed = [line for line in lines if line.strip()]
        return f" Last output: {printable_line(printed[-1].strip()[:300])}" if printed else ""

    def close(self) -> None:
        """Give the descriptors back; twice does no harm."""
        for name in ("control", "ended", "_output"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                os.close(descriptor)
                setattr(self, name, -1)
        self.child.close()


class Watch:
    """Listens to every member and to the last socket."""

    def __init__(self, members: Sequence[Member], last: socket.socket) -> None:
        self.members, self.last = members, last

    def await_ready(self, limit_s: float) -> None:
        """Wait until every stage is loaded. Raises InputFault for one that is not in time or cannot."""
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            self._register(selector)
            while not all(member.ready for member in self.members):
                left = deadline - time.monotonic()
                if left <= 0:
                    name = next(member.name for member in self.members if not member.ready)
                    raise InputFault(
                        name, f"was not ready within {limit_s:g} s", "Allow it longer (start_timeout_s)."
                    )
                self._hear(selector, selector.select(left))
                if any(member.process.poll() is not None for member in self.members):
                    raise self.fault()

    def results(self, feeder: Feeder, limit_s: float) -> Iterator[int]:
        """The number of each batch as its result begins to arrive, until the feeder ended and all are out.

        Raises what the feeder's iterable raised, once the results before it are out, and InputFault for a stage
        that died, failed or stands still.
        """
        base = [member.done for member in self.members]
        received, moved = 0, time.monotonic()
        with selectors.DefaultSelector() as selector:
            self._register(selector)
            selector.register(self.last, selectors.EVENT_READ, "result")
            selector.register(feeder.woken, selectors.EVENT_READ, "feeder")
            while not (feeder.ended and received == feeder.sent and feeder.error is None):
                idle = received == feeder.sent
                # The wake-up for it may have been taken while results were still out: no other need come.
                if idle and feeder.error is not None:
                    raise feeder.error
                left = limit_s if idle else moved + limit_s - time.monotonic()
                if left <= 0:
                    raise self._still(feeder.sent, base, limit_s)
                found = self._hear(selector, selector.select(left))
                if idle:  # until now the wait was the caller's own
                    moved = time.monotonic()
                if "feeder" in found:
                    os.eventfd_read(feeder.woken)
                if "result" in found:
                    yield received
                    received, moved = received + 1, time.monotonic()
                elif any(member.process.poll() is not None or member.told for member in self.members):
                    raise self.fault()

    def fault(self) -> InputFault:
        """Who is at fault, once one has ended or told of a fault."""
        deadline = time.monotonic() + SETTLE_S
        with selectors.DefaultSelector() as selector:
            self._register(selector)
            while (left := deadline - time.monotonic()) > 0 and not any(
                member.told for member in self.members
            ):
                if not selector.get_map():
                    break
                self._hear(selector, selector.select(left))
        for member in self.members:
            if member.told is not None:
                return member.told
        ended = [(member, member.process.poll()) for member in self.members]
        for member, status in ended:
            if status is not None and (passed := member.passed_limit()) is not None:
                return passed
        for member, status in ended:
            if status not in (None, 0, GONE):
                assert status is not None
                how = (
                    f"was ended by {signal.Signals(-status).name}"
                    if status < 0
                    else f"ended with status {status}"
                )
                return _stopped(member, how)
        for member, status in ended:
            if status is not None:
                return _stopped(member, f"ended with status {status}")
        return _stopped(self.members[-1], "closed its output")

    def _still(self, sent: int, base: Sequence[int], limit_s: float) -> InputFault:
        """The last stage that has something to do stands still: those before it wait for it."""
        done = [member.done - start for member, start in zip(self.members, base, strict=True)]
        given = [sent, *done]
        busy = [i for i in range(len(self.members)) if given[i] > given[i + 1]]
        member = self.members[busy[-1] if busy else -1]
        batch = member.done - base[self.members.index(member)] + 1
        return InputFault(
            member.name,
            f"gave no result for batch {batch} within {limit_s:g} s",
            "Allow it longer (batch_timeout_s), or pass smaller batches.",
        )

    def _register(self, selector: selectors.BaseSelector) -> None:
        for member in self.members:
            selector.register(member.control, selectors.EVENT_READ, member)
            selector.register(member.ended, selectors.EVENT_READ, "ended")

    def _hear(
        self, selector: selectors.BaseSelector, events: Sequence[tuple[selectors.SelectorKey, int]]
    ) -> set[str]:
        """Take what the members said; which of the other things happened."""
        found: set[str] = set()
        for key, _ in events:
            if isinstance(key.data, Member):
                if not key.data.hear():
                    selector.unregister(key.fd)
            else:
                found.add(key.data)
                if key.data == "ended":
                    selector.unregister(key.fd)
        return found


def _stopped(member: Member, how: str) -> InputFault:
    return InputFault(
        member.name,
        how,
        f"Look whether it was killed or crashed, and open the pipeline again.{member.last_words()}",
    )
