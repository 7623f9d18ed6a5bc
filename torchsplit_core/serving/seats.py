"""The places of workers, and the stages of models that they serve; a cut model's first batches."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from torchsplit_core.serving.process import Answer, Assignment, WorkerDied, WorkerProcess
from torchsplit_core.serving.roster import ServedModel, WorkerSpec
from torchsplit_core.serving.settings import WARM_UPS
from torchsplit_core.serving.waiting import Queue
from torchsplit_core.values import InputFault


class Seat:
    """The place of one worker: its process, which may be another after a death.

    `ports` is what the first told of its inputs, outputs and example: one that starts again has none for a while.
    """

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.spec: WorkerSpec = assignment.spec
        self.process = WorkerProcess(assignment)
        self.ports: Mapping[str, Any] = {}
        self.state: Literal["starting", "free", "busy", "down", "lost"] = "starting"

    def hand_over(self, directory: str) -> None:
        """The folder with its model's parts, before it starts."""
        self.assignment = replace(self.assignment, directory=directory)
        self.process = WorkerProcess(self.assignment)

    @property
    def tenant(self) -> str:
        """Its name among those that share its slice."""
        return f"{self.spec.model}.{self.spec.stage}"


class Station:
    """A stage of a model: its queue and its workers in the order in which they are asked."""

    def __init__(self, model: ServedModel, position: int, seats: Sequence[Seat]) -> None:
        self.model, self.position = model, position
        self.seats = tuple(sorted(seats, key=lambda seat: seat.spec.order))
        # Only where batches are made is there something to wait for.
        self.queue = Queue(model.max_wait_ms / 1e3 if position == 0 else 0.0)
        self.timer: asyncio.TimerHandle | None = None

    @property
    def warm(self) -> bool:
        """Whether a worker of it can take a batch."""
        return any(seat.state in ("free", "busy") for seat in self.seats)

    @property
    def lost(self) -> bool:
        """Whether all its workers were given up."""
        return all(seat.state == "lost" for seat in self.seats)


async def warm_up(stations: Sequence[Station]) -> None:
    """The example of a cut model through all its workers, in the largest batch: no part has inputs of its own.

    Raises InputFault where a part fails on it.
    """
    seat = stations[0].seats[0]
    rows = max(seat.spec.max_batch for seat in stations[0].seats)
    blocks: list[bytes | memoryview] = [base64.b64decode(row) * rows for row in seat.ports["example"]]
    sizes: list[int] | None = [len(block) for block in blocks]
    for station in stations:
        for seat in station.seats:
            for _ in range(WARM_UPS):
                try:
                    answer = await seat.process.run(rows, blocks, sizes)
                except WorkerDied as error:
                    answer = Answer(0.0, (), b"", f"its process ended.{error}")
                if answer.fault:
                    problem = f"fails on the example of its model: {answer.fault}"
                    raise InputFault(seat.tenant, problem, "Cut the model elsewhere.")
        blocks, sizes = [answer.payload], None
