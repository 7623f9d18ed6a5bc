"""Slots for worker processes, the stages of models that they serve, and the warm-up of cut models."""

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
    """A slot for one worker process, which is replaced when it dies.

    `ports` describes the model's inputs, outputs and example, as reported by the first process in this slot.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.spec: WorkerSpec = config.spec
        self.renew_process()
        self.ports: Mapping[str, Any] = {}
        self.state: Literal["starting", "free", "busy", "down", "lost"] = "starting"

    def assign_folder(self, directory: str) -> None:
        """Set the folder with the parts of its model, before the process starts."""
        self.config = replace(self.config, directory=directory)
        self.renew_process()

    def renew_process(self) -> None:
        """Put a process that is not started yet into the slot."""
        self.process = WorkerProcess(self.config)

    @property
    def tenant(self) -> str:
        """Name of its tenant among those that share the slice."""
        return f"{self.spec.model}.{self.spec.stage}"


class ServedStage:
    """A stage of a model: its queue, and its workers in the order in which they get batches."""

    def __init__(self, model: ServedModel, position: int, slots: Sequence[WorkerSlot]) -> None:
        """Take the stage's slots out of those of all stages."""
        self.model, self.position = model, position
        stage_slots = (
            slot for slot in slots if (slot.spec.model, slot.spec.position) == (model.name, position)
        )
        self.slots = tuple(sorted(stage_slots, key=lambda slot: slot.spec.order))
        # Batches are formed before the first stage only.
        self.queue = BatchQueue(model.max_wait_ms / 1e3 if position == 0 else 0.0)
        self.timer: asyncio.TimerHandle | None = None

    @property
    def warm(self) -> bool:
        """Whether one of its workers has started."""
        return any(slot.state in ("free", "busy") for slot in self.slots)

    @property
    def lost(self) -> bool:
        """Whether no worker can be started any more."""
        return all(slot.state == "lost" for slot in self.slots)


async def warm_up(stages: Sequence[ServedStage]) -> None:
    """Run the example of a cut model through all workers of its stages, in the largest batch and alone.

    A stage has no example of its own. Raises InputFault where a stage fails.
    """
    largest = max(slot.spec.max_batch for slot in stages[0].slots)
    for rows, runs in ((largest, WARM_UP_RUNS), (1, 1)):
        await _run_example(stages, rows, runs)


async def _run_example(stages: Sequence[ServedStage], rows: int, runs: int) -> None:
    example = stages[0].slots[0].ports["example"]
    blocks: list[bytes | memoryview] = [base64.b64decode(row) * rows for row in example]
    sizes: list[int] | None = [len(block) for block in blocks]
    for stage in stages:
        for slot in stage.slots:
            for _ in range(runs):
                try:
                    result = await slot.process.run(rows, blocks, sizes)
                except WorkerDied as error:
                    result = BatchResult(0.0, (), b"", f"its process ended.{error}")
                if result.fault:
                    problem = f"fails on the example of its model in a batch of {rows}: {result.fault}"
                    raise InputFault(
                        slot.tenant, problem, "Plan without this cut: forbid its variant in the request."
                    )
        blocks, sizes = [result.payload], None
