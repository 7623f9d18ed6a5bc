"""Forms batches from requests, gives them to workers and returns the results.

All workers of a stage share one queue, as in the plan's simulation: a free worker takes a batch as soon as enough rows
wait or the first has waited `max_wait_ms`. Of several free workers the first in the simulation's order starts.
Everything runs in the thread of the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torchsplit_core.serving.batching import Batch, FairScheduler, PendingRequest
from torchsplit_core.serving.metrics import ServerMetrics
from torchsplit_core.serving.plan import ServingPlan
from torchsplit_core.serving.protocol.tensors import RequestFault, TensorPort, parse_port, split_outputs
from torchsplit_core.serving.settings import ServeSettings
from torchsplit_core.serving.stage_workers import ServedStage, WorkerSlot, warm_up
from torchsplit_core.serving.worker_connection import Message
from torchsplit_core.serving.worker_pool import WorkerPool
from torchsplit_core.serving.worker_process import BatchResult, WorkerConfig, WorkerDied
from torchsplit_core.values import Progress

SERVER = "the server"
STUCK_DEADLINES = 2.0
"""A worker whose batch takes this many times the longest deadline is ended."""


class Engine:
    """Runs the models of a serving plan; `submit` runs one request."""

    def __init__(self, serving_plan: ServingPlan, settings: ServeSettings, metrics: ServerMetrics) -> None:
        self.serving_plan, self.settings, self.metrics = serving_plan, settings, metrics
        models = {model.name: model for model in serving_plan.models}
        slices = {bound_slice.id: bound_slice for bound_slice in serving_plan.slices}
        self.slots = [
            WorkerSlot(WorkerConfig(spec, models[spec.model], slices[spec.slice], settings.trust))
            for spec in serving_plan.workers
        ]
        self.stages = {
            model.name: [ServedStage(model, position, self.slots) for position in range(len(model.stages))]
            for model in serving_plan.models
        }
        self.schedulers = {
            name: FairScheduler(
                {slot.tenant: slot.spec.share for slot in self.slots if slot.spec.slice == name}
            )
            for name in serving_plan.shared_slices
        }
        self.inputs: dict[str, tuple[TensorPort, ...]] = {}
        self.outputs: dict[str, tuple[TensorPort, ...]] = {}
        self.draining = False
        self._in_flight: set[PendingRequest] = set()
        self.pool = WorkerPool(self.slots, metrics, self._on_worker_ready, self._on_worker_lost)
        self._batch_rows: dict[str, int] = {
            name: min(slot.spec.max_batch for slot in stages[0].slots) for name, stages in self.stages.items()
        }

    # --- start and end ---

    async def start(self, folders: Mapping[str, str], progress: Progress) -> None:
        """Start every worker and wait until all are warm; `folders` hold the parts of cut models, by model.

        Raises the first InputFault of a worker.
        """
        await self.pool.start(folders, progress)
        for name, stages in self.stages.items():
            if len(stages) > 1:
                await warm_up(stages)
            self.inputs[name] = tuple(map(parse_port, stages[0].slots[0].ports["inputs"]))
            self.outputs[name] = tuple(map(parse_port, stages[-1].slots[0].ports["outputs"]))

    async def stop(self) -> None:
        """End every process; `drain` comes before."""
        self.draining = True
        for stages in self.stages.values():
            for stage in stages:
                if stage.timer is not None:
                    stage.timer.cancel()
        await self.pool.stop()

    def _on_worker_ready(self, slot: WorkerSlot) -> None:
        self._dispatch_next(slot.spec.slice, self._stage_of(slot))

    def _on_worker_lost(self, slot: WorkerSlot) -> None:
        stage = self._stage_of(slot)
        if stage.lost:
            self._fail(stage.queue.drain(), _no_worker_left(stage))

    async def drain(self) -> None:
        """Take no more requests and finish those in flight; after `drain_s` reject the rest."""
        self.draining = True
        until = time.monotonic() + self.settings.drain_s
        while self._in_flight and time.monotonic() < until:
            await asyncio.sleep(0.02)
        stopped = RequestFault(SERVER, "stopped before this request was served", "Ask another server.", 503)
        self._fail(tuple(self._in_flight), stopped)

    # --- requests ---

    def ready(self, model: str) -> bool:
        """Whether every stage of the model has a warm worker."""
        return not self.draining and model in self.inputs and all(stage.warm for stage in self.stages[model])

    def check_available(self, model: str) -> None:
        """Raises RequestFault if the server is draining or the model has not started."""
        if self.draining:
            raise RequestFault(SERVER, "is draining and takes no more requests", "Ask another server.", 503)
        if model not in self.inputs:
            raise RequestFault(model, "is not ready yet", "Ask again later.", 503)

    def check_capacity(self, model: str, rows: int = 1) -> None:
        """Raises RequestFault if the model cannot take so many rows now."""
        self.check_available(model)
        waiting = 0
        for stage in self.stages[model]:
            if stage.lost:
                raise _no_worker_left(stage)
            waiting += stage.queue.rows
        if waiting + rows > self.settings.queue_limit:
            problem = f"has {waiting} rows waiting, and at most {self.settings.queue_limit} may wait"
            raise RequestFault(model, problem, "Ask again later.", 429)

    def submit(
        self, model: str, rows: int, inputs: Sequence[memoryview], timeout_s: float | None = None
    ) -> asyncio.Future[Sequence[bytes | memoryview]]:
        """Queue a request; the future gets the bytes of each output. A cancelled request is not computed.

        Raises RequestFault at once or in the future.
        """
        self.check_capacity(model, rows)
        stages = self.stages[model]
        pieces = self._split(model, rows, inputs)
        limit_s = min(timeout_s or self.settings.deadline_s, self.settings.deadline_s)
        deadline = asyncio.get_running_loop().call_later(limit_s, self._expire, stages, pieces, limit_s)
        self._in_flight.update(pieces)

        def on_done(_: Any) -> None:
            self._in_flight.difference_update(pieces)
            deadline.cancel()
            self._cancel(pieces)

        if len(pieces) == 1:
            result: asyncio.Future[Any] = pieces[0].result
        else:
            result = asyncio.ensure_future(_gather_pieces(pieces))
        result.add_done_callback(on_done)
        for piece in pieces:
            stages[0].queue.enqueue(piece)
        self._dispatch(stages[0])
        return result

    def _split(self, model: str, rows: int, inputs: Sequence[memoryview]) -> list[PendingRequest]:
        """Split the request into pieces that fit into a batch of any worker."""
        loop, now = asyncio.get_running_loop(), time.perf_counter()
        max_rows = self._batch_rows[model]
        if rows <= max_rows:
            return [PendingRequest(rows, tuple(inputs), loop.create_future(), now)]
        sizes = [port.row_bytes for port in self.inputs[model]]
        pieces = []
        for start in range(0, rows, max_rows):
            count = min(max_rows, rows - start)
            blocks = tuple(
                block[start * size : (start + count) * size]
                for block, size in zip(inputs, sizes, strict=True)
            )
            pieces.append(PendingRequest(count, blocks, loop.create_future(), now))
        return pieces

    def _expire(
        self, stages: Sequence[ServedStage], requests: Sequence[PendingRequest], limit_s: float
    ) -> None:
        problem = f"gave no answer within {limit_s:g} s"
        late = RequestFault(stages[0].model.name, problem, "Ask again later, or allow more time.", 504)
        self._fail(requests, late)
        for stage in stages:
            stage.queue.peek()

    @staticmethod
    def _fail(requests: Sequence[PendingRequest], error: RequestFault) -> None:
        for request in requests:
            if not request.is_done:
                request.result.set_exception(error)
                # One piece of a request reports the fault; mark the others' as retrieved.
                request.result.exception()

    @staticmethod
    def _cancel(requests: Sequence[PendingRequest]) -> None:
        for request in requests:
            request.result.cancel()

    # --- batches ---

    def _dispatch(self, stage: ServedStage) -> None:
        """Start every batch of a stage that may start now, and set a timer for the next."""
        if stage.timer is not None:
            stage.timer.cancel()
            stage.timer = None
        now = time.perf_counter()
        while stage.queue.peek() is not None:
            slot = next((slot for slot in stage.slots if self._may_start(stage, slot, now)), None)
            if slot is None:
                break
            self._start_batch(stage, slot)
        due_at = stage.queue.next_due_at()
        if due_at is not None and due_at > now:
            loop = asyncio.get_running_loop()
            stage.timer = loop.call_later(due_at - now, self._dispatch, stage)

    def _may_start(self, stage: ServedStage, slot: WorkerSlot, now: float) -> bool:
        if slot.state == "free" and slot.process.is_disconnected:
            self.pool.restart(slot)
        if slot.state != "free" or not stage.queue.is_due(now, slot.spec.max_batch):
            return False
        scheduler = self.schedulers.get(slot.spec.slice)
        return scheduler is None or scheduler.may_start(slot.tenant, others_wait=self._others_wait(slot))

    def _others_wait(self, slot: WorkerSlot) -> bool:
        """Whether another tenant of the slice could start a batch."""
        now = time.perf_counter()
        return any(
            other.tenant != slot.tenant
            and other.spec.slice == slot.spec.slice
            and other.state == "free"
            and self._stage_of(other).queue.is_due(now, other.spec.max_batch)
            for other in self.slots
        )

    def _stage_of(self, slot: WorkerSlot) -> ServedStage:
        return self.stages[slot.spec.model][slot.spec.position]

    def _start_batch(self, stage: ServedStage, slot: WorkerSlot) -> None:
        batch = stage.queue.take_batch(slot.spec.max_batch)
        slot.state = "busy"
        if slot.spec.slice in self.schedulers:
            self.schedulers[slot.spec.slice].start(slot.tenant)
        begin = time.perf_counter()
        # Before a later stage all requests of a batch have waited equally long.
        waited = sum(
            (begin - (batch.enqueued_at if stage.position else request.enqueued_at)) * request.rows
            for request in batch.requests
        )
        blocks: list[bytes | memoryview] = [batch.payload]
        sizes: list[int] | None = None
        if not stage.position:
            inputs = list(zip(*(request.inputs for request in batch.requests), strict=True))
            blocks = [block for tensors in inputs for block in tensors]
            sizes = [sum(len(block) for block in tensors) for tensors in inputs]
        process, limit_s = slot.process, STUCK_DEADLINES * self.settings.deadline_s
        reason = f" A batch took more than {limit_s:g} s."
        timer = asyncio.get_running_loop().call_later(limit_s, process.abort_batch, reason)
        reply = process.send_batch(batch.rows, blocks, sizes)
        reply.add_done_callback(partial(self._on_batch_end, stage, slot, batch, begin, waited, timer))

    def _on_batch_end(
        self,
        stage: ServedStage,
        slot: WorkerSlot,
        batch: Batch,
        begin: float,
        waited: float,
        timer: asyncio.TimerHandle,
        reply: asyncio.Future[Message],
    ) -> None:
        """Handle the end of a batch that ran since `begin`; `waited` is the sum of its rows' waiting times (s)."""
        timer.cancel()
        if reply.cancelled():
            return
        result: BatchResult | None = None
        try:
            result = slot.process.read_result(reply)
        except WorkerDied as error:
            self._on_worker_death(slot, batch, str(error))
        if slot.spec.slice in self.schedulers:
            self.schedulers[slot.spec.slice].end(slot.tenant, time.perf_counter() - begin)
        if result is not None:
            slot.state = "free"
            self._deliver(stage, batch, result)
        # Delivering the results counts as the batch's time: the worker starts no other batch meanwhile.
        spent = time.perf_counter() - begin
        self.metrics.observe_batch(
            slot.spec, batch.rows, waited, begin, spent, result.ms if result and not result.fault else None
        )
        self._dispatch_next(slot.spec.slice, stage)

    def _deliver(self, stage: ServedStage, batch: Batch, result: BatchResult) -> None:
        """Deliver a result to its requests or pass it to the next stage; report a model error to its request."""
        if result.fault:
            if len(batch.requests) == 1:
                problem = f"failed on this request: {result.fault}"
                remedy = "Send other values, or mend the model's code."
                self._fail(batch.requests, RequestFault(stage.model.name, problem, remedy, 500))
            else:
                # Rerun each request alone to find the one that fails.
                self._retry_singly(stage.model.name, batch.requests)
            return
        stages = self.stages[stage.model.name]
        if stage.position + 1 < len(stages):
            following = stages[stage.position + 1]
            following.queue.enqueue(Batch(batch.requests, time.perf_counter(), result.payload))
            self._dispatch(following)
            return
        try:
            ports = self.outputs[stage.model.name]
            outputs = split_outputs(result.shapes, result.dtypes, result.payload, batch.rows, ports)
        except ValueError as error:
            problem = f"gave another result than its metadata says: {error}"
            remedy = "Return the same datatypes and shapes for every batch."
            self._fail(batch.requests, RequestFault(stage.model.name, problem, remedy, 500))
            return
        at = 0
        for request in batch.requests:
            if not request.is_done:
                request.result.set_result(
                    tuple(
                        block[at * port.row_bytes : (at + request.rows) * port.row_bytes]
                        for block, port in zip(outputs, ports, strict=True)
                    )
                )
            at += request.rows

    def _retry_singly(self, model: str, requests: Sequence[PendingRequest]) -> None:
        """Put requests back at the head of the first stage's queue, each for a batch of its own."""
        first = self.stages[model][0]
        for request in reversed(requests):
            request.alone = True
            first.queue.enqueue(request, first=True)
        self._dispatch(first)

    def _dispatch_next(self, slice_: str, stage: ServedStage) -> None:
        """After a worker became free: let the slice's tenants start in their turn, or else its own stage."""
        scheduler = self.schedulers.get(slice_)
        if scheduler is None:
            self._dispatch(stage)
            return
        tenants = {slot.tenant: self._stage_of(slot) for slot in self.slots if slot.spec.slice == slice_}
        for tenant in scheduler.order():
            self._dispatch(tenants[tenant])

    # --- deaths ---

    def _on_worker_death(self, slot: WorkerSlot, batch: Batch, reason: str) -> None:
        """Restart the worker and retry its requests one by one; a second death fails a request."""
        self.pool.restart(slot)
        retried = []
        for request in batch.requests:
            request.deaths += 1
            if request.deaths > 1:
                problem, remedy = "lost two workers to this request", f"Send other values.{reason}"
                self._fail([request], RequestFault(slot.spec.model, problem, remedy, 503))
            elif not request.is_done:
                retried.append(request)
        if retried:
            self._retry_singly(slot.spec.model, retried)

    def state(self) -> dict[str, Any]:
        """The queues and workers as they are now."""
        return {
            "draining": self.draining,
            "models": {
                name: {"ready": self.ready(name), "waiting": [stage.queue.rows for stage in stages]}
                for name, stages in self.stages.items()
            },
            "workers": {slot.spec.id: {"state": slot.state, "pid": slot.process.pid} for slot in self.slots},
        }


async def _gather_pieces(pieces: Sequence[PendingRequest]) -> Sequence[bytes]:
    """Join the outputs of a request that was split."""
    results = [await piece.result for piece in pieces]
    return [b"".join(blocks) for blocks in zip(*results, strict=True)]


def _no_worker_left(served_stage: ServedStage) -> RequestFault:
    stage = served_stage.model.stages[served_stage.position]
    problem = f"has no worker left of stage {stage}: each was started again and ended again"
    return RequestFault(served_stage.model.name, problem, "Serve the plan again.", 503)
