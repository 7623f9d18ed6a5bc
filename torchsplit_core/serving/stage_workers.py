"""The places of workers, and the stages of models that they serve; a cut model's first batches."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from torchsplit_core.serving.batching import BatchQueue
from torchsplit_core.serving.plan import ServedModel, WorkerSpec
from torchsplit_core.serving.settings import WARM_UP_RUNS
from torchsplit_core.serving.worker_process import BatchResult, WorkerConfig, WorkerDied, WorkerProcess
from torchsplit_core.values import InputFault


class WorkerSlot:
    """The place of one worker: its process, which may be another after a death.

    `ports` is what the first told of its inputs, outputs and example: one that starts again has none for a while.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.spec: WorkerSpec = config.spec
        self.process = WorkerProcess(config)
        self.ports: Mapping[str, Any] = {}
        self.state: Literal["starting", "free", "busy", "down", "lost"] = "starting"

    def assign_folder(self, directory: str) -> None:
        """The folder with its model's parts, before it starts."""
        self.config = replace(self.config, directory=directory)
        self.process = WorkerProcess(self.config)

    @property
    def tenant(self) -> str:
        """Its name among those that share its slice."""
        return f"{self.spec.model}.{self.spec.stage}"


class ServedStage:
    """A stage of a model: its queue and its workers in the order in which they are asked."""

    def __init__(self, model: ServedModel, position: int, slots: Sequence[WorkerSlot]) -> None:
        self.model, self.position = model, position
        self.slots = tuple(sorted(slots, key=lambda slot: slot.spec.order))
        # Only where batches are made is there something to wait for.
        self.queue = BatchQueue(model.max_wait_ms / 1e3 if position == 0 else 0.0)
        self.timer: asyncio.TimerHandle | None = None

    @property
    def warm(self) -> bool:
        """Whether a worker of it can take a batch."""
        return any(slot.state in ("free", "busy") for slot in self.slots)

    @property
    def lost(self) -> bool:
        """Whether all its workers were given up."""
        return all(slot.state == "lost" for slot in self.slots)


async def warm_up(stages: Sequence[ServedStage]) -> None:
    """The example of a cut model through all its workers, in the largest batch: no part has inputs of its own.

    Raises InputFault where a part fails on it.
    """
    slot = stages[0].slots[0]
    rows = max(slot.spec.max_batch for slot in stages[0].slots)
    blocks: list[bytes | memoryview] = [base64.b64decode(row) * rows for row in slot.ports["example"]]
    sizes: list[int] | None = [len(block) for block in blocks]
    for stage in stages:
        for slot in stage.slots:
            for _ in range(WARM_UP_RUNS):
                try:
                    result = await slot.process.run(rows, blocks, sizes)
                except WorkerDied as error:
                    result = BatchResult(0.0, (), b"", f"its process ended.{error}")
                if result.fault:
                    problem = f"fails on the example of its model: {result.fault}"
                    raise InputFault(slot.tenant, problem, "Cut the model elsewhere.")
        blocks, sizes = [result.payload], None
