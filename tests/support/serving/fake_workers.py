"""Workers without a process: the test decides when and how each batch ends."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchsplit_core.serving.plan import BoundSlice, ServedModel, ServingPlan, WorkerSpec
from torchsplit_core.serving.worker_process import BatchResult, WorkerConfig, WorkerDied
from torchsplit_core.values import Device, InputFault

ROW_BYTES = 4
PORT = {"name": "x", "datatype": "FP32", "shape": [-1, 1]}
PORTS = {"inputs": [PORT], "outputs": [PORT], "example": [base64.b64encode(bytes(ROW_BYTES)).decode()]}


@dataclass
class FakeWorkers:
    """All fake workers, in the order of their making. `failing_starts` starts fail at once, others take `start_s`."""

    made: list[FakeWorker] = field(default_factory=list)
    failing_starts: int = 0
    start_s: float = 0.0

    def __call__(self, config: WorkerConfig) -> FakeWorker:
        """What `WorkerProcess(config)` is in the tests."""
        self.made.append(FakeWorker(config, self))
        return self.made[-1]

    @property
    def running(self) -> list[FakeWorker]:
        """Those that were started and are not ended."""
        return [worker for worker in self.made if worker.ports and not worker.ended]


class FakeWorker:
    """A model that gives back its input, once the test calls `reply`."""

    pid = 0

    def __init__(self, config: WorkerConfig, workers: FakeWorkers) -> None:
        self.config, self.workers = config, workers
        self.ports: dict[str, Any] = {}
        self.is_disconnected = self.ended = False
        self.batches: list[bytes] = []
        self.output_trimmed = 0
        self._reply: asyncio.Future[Any] | None = None

    async def start(self, launcher: Any) -> None:
        if self.workers.failing_starts:
            self.workers.failing_starts -= 1
            raise InputFault(self.config.spec.model, "does not load", "Mend it.")
        await asyncio.sleep(self.workers.start_s)
        self.ports = PORTS

    def send_batch(
        self, rows: int, blocks: Sequence[Any], sizes: Sequence[int] | None
    ) -> asyncio.Future[Any]:
        assert not self.busy, "a worker has one batch at a time"
        self.batches.append(b"".join(blocks))
        assert len(self.batches[-1]) == rows * ROW_BYTES and sizes in (None, [rows * ROW_BYTES])
        self._reply = asyncio.get_running_loop().create_future()
        return self._reply

    async def run(self, rows: int, blocks: Sequence[Any], sizes: Sequence[int] | None) -> BatchResult:
        """A warm-up batch; it is answered at once and not recorded."""
        return self.result(b"".join(blocks))

    @staticmethod
    def result(payload: bytes, fault: str = "") -> BatchResult:
        return BatchResult(1.0, ((len(payload) // ROW_BYTES, 1),), payload, fault, ("float32",))

    @property
    def busy(self) -> bool:
        return self._reply is not None and not self._reply.done()

    async def reply(self, fault: str = "") -> None:
        """End the batch under way with its input as its output, or with a fault of the model."""
        assert self._reply is not None
        self._reply.set_result(self.result(self.batches[-1], fault))
        await settle()

    async def die(self) -> None:
        """What the engine sees of a process that ends."""
        self.is_disconnected = True
        self.abort_batch("")
        await settle()

    def abort_batch(self, reason: str) -> None:
        if self.busy:
            assert self._reply is not None
            self._reply.set_exception(WorkerDied(reason))

    def read_result(self, reply: asyncio.Future[BatchResult]) -> BatchResult:
        return reply.result()

    def trim_output(self) -> None:
        self.output_trimmed += 1

    def disconnect(self) -> None:
        self.is_disconnected = True

    def terminate(self) -> None:
        self.ended = True


async def settle() -> None:
    """Let the event loop run every callback that is due, and short work in threads end."""
    for _ in range(5):
        await asyncio.sleep(0.001)


def serving_plan(
    *workers: WorkerSpec, max_wait_ms: float = 0.0, stages: Iterable[str] = ("whole",)
) -> ServingPlan:
    """A plan of these workers, every model of them with these stages."""
    device = Device("cpu", "cpu:1c", "a core", "CPU", "1c", "cpu", None, None, None, None)
    return ServingPlan(
        tuple(
            ServedModel(name, "sample:none", tuple(stages), (), max_wait_ms)
            for name in dict.fromkeys(worker.model for worker in workers)
        ),
        tuple(
            BoundSlice(name, "host0", "1c", 0, device)
            for name in dict.fromkeys(worker.slice for worker in workers)
        ),
        workers,
    )


def worker_spec(
    number: int = 0, *, model: str = "m", position: int = 0, slice_: str = "", max_batch: int = 4
) -> WorkerSpec:
    """A worker on a slice of its own, unless `slice_` says which."""
    stage = f"stage{position}"
    slice_ = slice_ or f"slice{number}"
    return WorkerSpec(f"w{number}", f"w{number}", model, stage, position, slice_, max_batch, number, 0.5)
