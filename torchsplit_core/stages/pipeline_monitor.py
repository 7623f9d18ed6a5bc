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
from torchsplit_core.isolation.faults import exceeded_limit_fault, printable, printable_line
from torchsplit_core.isolation.launch import ConfinedChild
from torchsplit_core.stages.feeder import Feeder
from torchsplit_core.values import InputFault

SETTLE_S = 2.0
"""When one stage dies its neighbours follow: how long the first cause may take to be told."""
GONE = 3  # worker.GONE, without loading the worker
TAIL_BYTES = 4096


class StageProcess:
    """One stage's process and what it told: ready, the batches done, its fault."""

    def __init__(self, name: str, child: ConfinedChild, limits: Limits, control: int, output: int) -> None:
        self.name, self.child, self.process, self.limits = name, child, child.process, limits
        self.ready = False
        self.done = 0
        self.fault: InputFault | None = None
        self.ended = os.pidfd_open(child.process.pid)
        self.control = control
        self._output = output
        self._unread = b""
        os.set_blocking(control, False)

    def read_messages(self) -> bool:
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
                self._handle(kind, content)
            except (ValueError, TypeError, AttributeError, RecursionError):
                self._handle("unread", line[:80].decode(errors="replace"))
        return bool(block)

    def _handle(self, kind: str, content: Any) -> None:
        if kind == "ready":
            self.ready = True
        elif kind == "done":
            self.done += 1
        elif self.fault is None and kind == "fault":
            where, problem, remedy = (printable(str(text)) for text in content)
            self.fault = InputFault(where, problem, remedy).within(self.name)
        elif self.fault is None:
            received = printable(f"{kind}: {content}"[:2000])
            self.fault = InputFault(self.name, f"said what no stage says, {received}", "Mend its inputs.")

    def limit_fault(self) -> InputFault | None:
        """The fault for a limit that its supervisor found passed."""
        excess = self.child.exceeded_limit()
        return None if excess is None else exceeded_limit_fault(self.name, excess, self.limits)

    def last_output(self) -> str:
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


class PipelineMonitor:
    """Listens to every member and to the last socket."""

    def __init__(self, stages: Sequence[StageProcess], output_socket: socket.socket) -> None:
        self.stages, self.output_socket = stages, output_socket

    def await_ready(self, limit_s: float) -> None:
        """Wait until every stage is loaded. Raises InputFault for one that is not in time or cannot."""
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            self._register(selector)
            while not all(stage.ready for stage in self.stages):
                left = deadline - time.monotonic()
                if left <= 0:
                    name = next(stage.name for stage in self.stages if not stage.ready)
                    raise InputFault(
                        name, f"was not ready within {limit_s:g} s", "Allow it longer (start_timeout_s)."
                    )
                self._poll(selector, selector.select(left))
                if any(stage.process.poll() is not None for stage in self.stages):
                    raise self.fault()

    def results(self, feeder: Feeder, limit_s: float) -> Iterator[int]:
        """The number of each batch as its result begins to arrive, until the feeder ended and all are out.

        Raises what the feeder's iterable raised, once the results before it are out, and InputFault for a stage
        that died, failed or stands still.
        """
        base = [stage.done for stage in self.stages]
        received, moved = 0, time.monotonic()
        with selectors.DefaultSelector() as selector:
            self._register(selector)
            selector.register(self.output_socket, selectors.EVENT_READ, "result")
            selector.register(feeder.wake_fd, selectors.EVENT_READ, "feeder")
            while not (feeder.ended and received == feeder.sent and feeder.error is None):
                idle = received == feeder.sent
                # The wake-up for it may have been taken while results were still out: no other need come.
                if idle and feeder.error is not None:
                    raise feeder.error
                left = limit_s if idle else moved + limit_s - time.monotonic()
                if left <= 0:
                    raise self._stalled(feeder.sent, base, limit_s)
                events = self._poll(selector, selector.select(left))
                if idle:  # until now the wait was the caller's own
                    moved = time.monotonic()
                if "feeder" in events:
                    os.eventfd_read(feeder.wake_fd)
                if "result" in events:
                    yield received
                    received, moved = received + 1, time.monotonic()
                elif any(stage.process.poll() is not None or stage.fault for stage in self.stages):
                    raise self.fault()

    def fault(self) -> InputFault:
        """Who is at fault, once one has ended or told of a fault."""
        deadline = time.monotonic() + SETTLE_S
        with selectors.DefaultSelector() as selector:
            self._register(selector)
            while (left := deadline - time.monotonic()) > 0 and not any(stage.fault for stage in self.stages):
                if not selector.get_map():
                    break
                self._poll(selector, selector.select(left))
        for stage in self.stages:
            if stage.fault is not None:
                return stage.fault
        ended = [(stage, stage.process.poll()) for stage in self.stages]
        for stage, status in ended:
            if status is not None and (limit_fault := stage.limit_fault()) is not None:
                return limit_fault
        for stage, status in ended:
            if status not in (None, 0, GONE):
                assert status is not None
                how = (
                    f"was ended by {signal.Signals(-status).name}"
                    if status < 0
                    else f"ended with status {status}"
                )
                return _stopped_fault(stage, how)
        for stage, status in ended:
            if status is not None:
                return _stopped_fault(stage, f"ended with status {status}")
        return _stopped_fault(self.stages[-1], "closed its output")

    def _stalled(self, sent: int, base: Sequence[int], limit_s: float) -> InputFault:
        """The last stage that has something to do stands still: those before it wait for it."""
        done = [stage.done - start for stage, start in zip(self.stages, base, strict=True)]
        entered = [sent, *done]
        busy = [i for i in range(len(self.stages)) if entered[i] > entered[i + 1]]
        stage = self.stages[busy[-1] if busy else -1]
        batch = stage.done - base[self.stages.index(stage)] + 1
        return InputFault(
            stage.name,
            f"gave no result for batch {batch} within {limit_s:g} s",
            "Allow it longer (batch_timeout_s), or pass smaller batches.",
        )

    def _register(self, selector: selectors.BaseSelector) -> None:
        for stage in self.stages:
            selector.register(stage.control, selectors.EVENT_READ, stage)
            selector.register(stage.ended, selectors.EVENT_READ, "ended")

    def _poll(
        self, selector: selectors.BaseSelector, events: Sequence[tuple[selectors.SelectorKey, int]]
    ) -> set[str]:
        """Take what the members said; which of the other things happened."""
        kinds: set[str] = set()
        for key, _ in events:
            if isinstance(key.data, StageProcess):
                if not key.data.read_messages():
                    selector.unregister(key.fd)
            else:
                kinds.add(key.data)
                if key.data == "ended":
                    selector.unregister(key.fd)
        return kinds


def _stopped_fault(stage: StageProcess, problem: str) -> InputFault:
    return InputFault(
        stage.name,
        problem,
        f"Look whether it was killed or crashed, and open the pipeline again.{stage.last_output()}",
    )
