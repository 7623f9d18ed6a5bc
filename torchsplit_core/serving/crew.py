"""The workers' lives: started, watched, started again where they die, ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from torchsplit_core.serving.meters import Meters
from torchsplit_core.serving.process import WorkerProcess
from torchsplit_core.serving.seats import Seat
from torchsplit_core.values import InputFault, Progress

MOST_STARTS = 5
"""Starts in a row that fail, after which a worker is given up."""
LONGEST_PAUSE_S = 5.0
LOOK_S = 0.5
"""Between two looks at the workers."""


class Crew:
    """All workers of a server. `freed` hears of one that was started again, `given_up` of one that cannot be."""

    def __init__(
        self,
        seats: Sequence[Seat],
        meters: Meters,
        freed: Callable[[Seat], None],
        given_up: Callable[[Seat], None],
    ) -> None:
        self.seats, self.meters = seats, meters
        self._freed, self._given_up = freed, given_up
        # One thread for as long as the server lives: a worker ends with the thread that started it.
        self._launcher = ThreadPoolExecutor(1, "launcher")
        self._enders = ThreadPoolExecutor(4, "ender")
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, folders: Mapping[str, str], progress: Progress) -> None:
        """Start every worker and wait until all are warm; `folders` have the parts of cut models.

        Raises the InputFault of the first that cannot be.
        """
        done = 0
        for seat in self.seats:
            seat.hand_over(folders.get(seat.spec.model, ""))

        async def one(seat: Seat) -> None:
            nonlocal done
            await seat.process.start(self._launcher)
            seat.ports, seat.state = seat.process.ports, "free"
            done += 1
            progress(done / len(self.seats), f"{done} of {len(self.seats)} workers are ready")

        progress(0.0, f"starting {len(self.seats)} workers")
        starting = [asyncio.create_task(one(seat)) for seat in self.seats]
        try:
            await asyncio.gather(*starting)
        finally:
            # Where one could not be started, nor are the others.
            for task in starting:
                task.cancel()
        self.hold(asyncio.create_task(self._look()))

    async def stop(self) -> None:
        """End every process, those that are being started too."""
        for task in self._tasks:
            task.cancel()
        loop = asyncio.get_running_loop()
        # What is being started is ended too, and nothing more is.
        await loop.run_in_executor(self._enders, partial(self._launcher.shutdown, cancel_futures=True))
        for seat in self.seats:
            seat.state = "lost"
            seat.process.hang_up()
        ends = [loop.run_in_executor(self._enders, seat.process.end) for seat in self.seats]
        await asyncio.gather(*ends, return_exceptions=True)
        self._enders.shutdown(wait=False)

    def hold(self, task: asyncio.Task[None]) -> None:
        """The loop itself keeps no task alive."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def bury(self, seat: Seat) -> None:
        """A worker has died: another is started in its place."""
        seat.state = "down"
        self.meters.death(seat.spec)
        self.hold(asyncio.create_task(self._restart(seat)))

    async def _look(self) -> None:
        """Find workers that died with nothing to do, before a request does; keep what they print short."""
        while True:
            await asyncio.sleep(LOOK_S)
            for seat in self.seats:
                seat.process.trim()
                if seat.state == "free" and seat.process.gone:
                    self.bury(seat)

    async def _restart(self, seat: Seat) -> None:
        """Another process in its place, with pauses that grow; given up after too many starts that fail."""
        loop = asyncio.get_running_loop()
        for failed in range(MOST_STARTS):
            seat.process.hang_up()
            await loop.run_in_executor(self._enders, seat.process.end)
            if failed:
                await asyncio.sleep(min(0.5 * 2**failed, LONGEST_PAUSE_S))
            seat.process = WorkerProcess(seat.assignment)
            with contextlib.suppress(InputFault, OSError):
                await seat.process.start(self._launcher)
                seat.state = "free"
                self._freed(seat)
                return
        seat.state = "lost"
        self._given_up(seat)
