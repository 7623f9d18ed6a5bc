"""Starts, monitors, restarts and ends the workers of a server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from torchsplit_core.serving.metrics import ServerMetrics
from torchsplit_core.serving.stage_workers import WorkerSlot
from torchsplit_core.values import InputFault, Progress

MOST_STARTS = 5
"""Failed starts in a row after which a worker is given up."""
LONGEST_BACKOFF_S = 5.0
MONITOR_INTERVAL_S = 0.5


class WorkerPool:
    """All workers of a server.

    `on_ready` is called after a worker was restarted, `on_lost` when it cannot be restarted.
    """

    def __init__(
        self,
        slots: Sequence[WorkerSlot],
        metrics: ServerMetrics,
        on_ready: Callable[[WorkerSlot], None],
        on_lost: Callable[[WorkerSlot], None],
    ) -> None:
        self.slots, self.metrics = slots, metrics
        self._on_ready, self._on_lost = on_ready, on_lost
        # One thread that lives as long as the server: a worker ends with the thread that started it.
        self._launcher = ThreadPoolExecutor(1, "launcher")
        self._end_threads = ThreadPoolExecutor(4, "ender")
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, folders: Mapping[str, str], progress: Progress) -> None:
        """Start every worker and wait until all are warm; `folders` hold the parts of cut models, by model.

        Raises the first InputFault of a worker.
        """
        done = 0
        for slot in self.slots:
            slot.assign_folder(folders.get(slot.spec.model, ""))

        async def start_worker(slot: WorkerSlot) -> None:
            nonlocal done
            await slot.process.start(self._launcher)
            slot.ports, slot.state = slot.process.ports, "free"
            done += 1
            progress(done / len(self.slots), f"{done} of {len(self.slots)} workers are ready")

        progress(0.0, f"starting {len(self.slots)} workers")
        starting = [asyncio.create_task(start_worker(slot)) for slot in self.slots]
        try:
            await asyncio.gather(*starting)
        finally:
            # If one worker fails to start, cancel the others.
            for task in starting:
                task.cancel()
        self.keep_task(asyncio.create_task(self._monitor()))

    async def stop(self) -> None:
        """End every process, including those that are starting."""
        for task in self._tasks:
            task.cancel()
        loop = asyncio.get_running_loop()
        # Wait for the start under way and cancel those that are queued.
        await loop.run_in_executor(self._end_threads, partial(self._launcher.shutdown, cancel_futures=True))
        for slot in self.slots:
            slot.state = "lost"
            slot.process.disconnect()
        ends = [loop.run_in_executor(self._end_threads, slot.process.terminate) for slot in self.slots]
        await asyncio.gather(*ends, return_exceptions=True)
        self._end_threads.shutdown(wait=False)

    def keep_task(self, task: asyncio.Task[None]) -> None:
        """Hold a reference to the task until it is done; the event loop holds none."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def restart(self, slot: WorkerSlot) -> None:
        """Replace a worker that has died."""
        slot.state = "down"
        self.metrics.count_death(slot.spec)
        self.keep_task(asyncio.create_task(self._restart_with_backoff(slot)))

    async def _monitor(self) -> None:
        """Restart workers that die while idle, and trim what workers print."""
        while True:
            await asyncio.sleep(MONITOR_INTERVAL_S)
            for slot in self.slots:
                slot.process.trim_output()
                if slot.state == "free" and slot.process.is_disconnected:
                    self.restart(slot)

    async def _restart_with_backoff(self, slot: WorkerSlot) -> None:
        """Start another process, with growing pauses between attempts; give the worker up after MOST_STARTS."""
        loop = asyncio.get_running_loop()
        for attempt in range(MOST_STARTS):
            slot.process.disconnect()
            await loop.run_in_executor(self._end_threads, slot.process.terminate)
            if attempt:
                await asyncio.sleep(min(0.5 * 2**attempt, LONGEST_BACKOFF_S))
            slot.renew_process()
            with contextlib.suppress(InputFault, OSError):
                await slot.process.start(self._launcher)
                slot.state = "free"
                self._on_ready(slot)
                return
        slot.state = "lost"
        self._on_lost(slot)
