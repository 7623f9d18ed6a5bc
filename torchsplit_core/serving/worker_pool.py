"""The workers' lives: started, watched, started again where they die, ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from torchsplit_core.serving.metrics import ServerMetrics
from torchsplit_core.serving.stage_workers import WorkerSlot
from torchsplit_core.serving.worker_process import WorkerProcess
from torchsplit_core.values import InputFault, Progress

MOST_STARTS = 5
"""Starts in a row that fail, after which a worker is given up."""
LONGEST_BACKOFF_S = 5.0
MONITOR_INTERVAL_S = 0.5
"""Between two looks at the workers."""


class WorkerPool:
    """All workers of a server. `freed` hears of one that was started again, `given_up` of one that cannot be."""

    def __init__(
        self,
        slots: Sequence[WorkerSlot],
        metrics: ServerMetrics,
        on_ready: Callable[[WorkerSlot], None],
        on_lost: Callable[[WorkerSlot], None],
    ) -> None:
        self.slots, self.metrics = slots, metrics
        self._on_ready, self._on_lost = on_ready, on_lost
        # One thread for as long as the server lives: a worker ends with the thread that started it.
        self._launcher = ThreadPoolExecutor(1, "launcher")
        self._end_threads = ThreadPoolExecutor(4, "ender")
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, folders: Mapping[str, str], progress: Progress) -> None:
        """Start every worker and wait until all are warm; `folders` have the parts of cut models.

        Raises the InputFault of the first that cannot be.
        """
        done = 0
        for seat in self.slots:
            seat.assign_folder(folders.get(seat.spec.model, ""))

        async def start_worker(slot: WorkerSlot) -> None:
            nonlocal done
            await slot.process.start(self._launcher)
            slot.ports, slot.state = slot.process.ports, "free"
            done += 1
            progress(done / len(self.slots), f"{done} of {len(self.slots)} workers are ready")

        progress(0.0, f"starting {len(self.slots)} workers")
        starting = [asyncio.create_task(start_worker(seat)) for seat in self.slots]
        try:
            await asyncio.gather(*starting)
        finally:
            # Where one could not be started, nor are the others.
            for task in starting:
                task.cancel()
        self.keep_task(asyncio.create_task(self._monitor()))

    async def stop(self) -> None:
        """End every process, those that are being started too."""
        for task in self._tasks:
            task.cancel()
        loop = asyncio.get_running_loop()
        # What is being started is ended too, and nothing more is.
        await loop.run_in_executor(self._end_threads, partial(self._launcher.shutdown, cancel_futures=True))
        for slot in self.slots:
            slot.state = "lost"
            slot.process.disconnect()
        ends = [loop.run_in_executor(self._end_threads, slot.process.terminate) for slot in self.slots]
        await asyncio.gather(*ends, return_exceptions=True)
        self._end_threads.shutdown(wait=False)

    def keep_task(self, task: asyncio.Task[None]) -> None:
        """The loop itself keeps no task alive."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def restart(self, slot: WorkerSlot) -> None:
        """A worker has died: another is started in its place."""
        slot.state = "down"
        self.metrics.count_death(slot.spec)
        self.keep_task(asyncio.create_task(self._restart_with_backoff(slot)))

    async def _monitor(self) -> None:
        """Find workers that died with nothing to do, before a request does; keep what they print short."""
        while True:
            await asyncio.sleep(MONITOR_INTERVAL_S)
            for slot in self.slots:
                slot.process.trim_output()
                if slot.state == "free" and slot.process.is_disconnected:
                    self.restart(slot)

    async def _restart_with_backoff(self, slot: WorkerSlot) -> None:
        """Another process in its place, with pauses that grow; given up after too many starts that fail."""
        loop = asyncio.get_running_loop()
        for attempt in range(MOST_STARTS):
            slot.process.disconnect()
            await loop.run_in_executor(self._end_threads, slot.process.terminate)
            if attempt:
                await asyncio.sleep(min(0.5 * 2**attempt, LONGEST_BACKOFF_S))
            slot.process = WorkerProcess(slot.config)
            with contextlib.suppress(InputFault, OSError):
                await slot.process.start(self._launcher)
                slot.state = "free"
                self._on_ready(slot)
                return
        slot.state = "lost"
        self._on_lost(slot)
