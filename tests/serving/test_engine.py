"""The engine without processes: batching, faults, deaths, limits, turns on a slice, drain and stop."""

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tests.support.serving.fake_workers import FakeWorker, FakeWorkers, serving_plan, settle, worker_spec
from torchsplit_core.serving import engine as engine_module
from torchsplit_core.serving import stage_workers, worker_pool
from torchsplit_core.serving.engine import Engine
from torchsplit_core.serving.metrics import ServerMetrics
from torchsplit_core.serving.plan import ServingPlan
from torchsplit_core.serving.protocol.tensors import RequestFault
from torchsplit_core.serving.settings import ServeSettings
from torchsplit_core.values import InputFault, ignore_progress

ONE = serving_plan(worker_spec())


@pytest.fixture
def workers(monkeypatch) -> FakeWorkers:
    fakes = FakeWorkers()
    monkeypatch.setattr(stage_workers, "WorkerProcess", fakes)
    monkeypatch.setattr(worker_pool, "LONGEST_BACKOFF_S", 0.001)
    return fakes


@asynccontextmanager
async def started(plan: ServingPlan = ONE, **settings: float) -> AsyncIterator[Engine]:
    """An engine whose workers are ready."""
    engine = Engine(plan, replace(ServeSettings(), **settings), ServerMetrics(plan))  # type: ignore[arg-type]
    await engine.start({}, ignore_progress)
    try:
        yield engine
    finally:
        await engine.stop()


@pytest.mark.parametrize("failing", [4, 1])
async def test_a_cut_that_fails_on_its_example_is_not_served(workers, monkeypatch, failing):
    async def run(worker, rows, blocks, sizes):
        return worker.result(b"".join(blocks), "this is too many" if rows == failing else "")

    monkeypatch.setattr(FakeWorker, "run", run)
    plan = serving_plan(worker_spec(0), worker_spec(1, position=1), stages=("stage0", "stage1"))
    with pytest.raises(InputFault, match=f"in a batch of {failing}: this is too many"):
        async with started(plan):
            pass


def rows(*values: float) -> bytes:
    return struct.pack(f"{len(values)}f", *values)


def submit(
    engine: Engine, *values: float, model: str = "m", timeout_s: float | None = None
) -> asyncio.Future[list[float]]:
    """A request of so many rows; in the future its response as numbers, or its RequestFault."""
    reply = engine.submit(model, len(values), (memoryview(rows(*values)),), timeout_s)

    async def numbers():
        (output,) = await reply
        return [number for (number,) in struct.iter_unpack("f", output)]

    return asyncio.ensure_future(numbers())


async def test_requests_that_wait_share_a_batch_and_get_their_own_rows(workers):
    async with started() as engine:
        (worker,) = workers.running
        replies = [submit(engine, value) for value in (1, 2, 3)]
        replies.append(submit(engine, 4, 5))
        await settle()
        assert worker.batches == [rows(1)], "a free worker takes the first at once"
        await worker.reply()
        assert worker.batches[1:] == [rows(2, 3, 4, 5)], "what waited meanwhile is one batch"
        await worker.reply()
        assert await asyncio.gather(*replies) == [[1], [2], [3], [4, 5]]
        stats = engine.metrics.batch_stats["w0"]
        assert (stats.batches, stats.rows, sorted(stats.whole_ms)) == (2, 5, [1, 4])


async def test_a_batch_waits_for_more_rows_but_not_longer_than_allowed(workers):
    async with started(serving_plan(worker_spec(max_batch=2), max_wait_ms=30.0)) as engine:
        (worker,) = workers.running
        first, second = submit(engine, 1), submit(engine, 2)
        await settle()
        assert worker.batches == [rows(1, 2)], "a full batch starts at once"
        await worker.reply()
        asked = time.perf_counter()
        third = submit(engine, 3)
        while len(worker.batches) == 1:
            await settle()
        assert time.perf_counter() - asked >= 0.03, "a batch that is not full waits"
        await worker.reply()
        assert await asyncio.gather(first, second, third) == [[1], [2], [3]]


async def test_a_request_larger_than_a_batch_is_run_in_pieces(workers):
    async with started() as engine:
        (worker,) = workers.running
        reply = submit(engine, *range(6))
        for batch in (rows(0, 1, 2, 3), rows(4, 5)):
            await settle()
            assert worker.batches[-1] == batch
            await worker.reply()
        assert await reply == [0, 1, 2, 3, 4, 5]


async def test_the_first_free_worker_of_the_plan_takes_a_batch(workers):
    async with started(serving_plan(worker_spec(1), worker_spec(0))) as engine:
        by_id = {worker.config.spec.id: worker for worker in workers.running}
        first, second = submit(engine, 1), submit(engine, 2)
        await settle()
        assert by_id["w0"].batches == [rows(1)] and by_id["w1"].batches == [rows(2)]
        await by_id["w1"].reply()
        await by_id["w0"].reply()
        assert (await first, await second) == ([1], [2])


async def test_of_a_batch_that_fails_only_the_request_at_fault_does(workers):
    async with started() as engine:
        (worker,) = workers.running
        replies = [submit(engine, value) for value in (0, 1, 2, 3)]
        await settle()
        await worker.reply()
        await worker.reply(fault="IndexError: 2")
        for value in (1, 2, 3):
            assert worker.batches[-1] == rows(value), "each request is run alone, in order"
            await worker.reply(fault="IndexError: 2" if value == 2 else "")
        outcomes = await asyncio.gather(*replies, return_exceptions=True)
        fault = outcomes.pop(2)
        assert outcomes == [[0], [1], [3]]
        assert isinstance(fault, RequestFault) and fault.status == 500 and "IndexError: 2" in str(fault)


async def test_a_result_of_another_shape_is_a_fault_of_the_model(workers):
    async with started() as engine:
        (worker,) = workers.running
        reply = submit(engine, 1)
        await settle()
        worker.batches[-1] += rows(2)
        await worker.reply()
        with pytest.raises(RequestFault, match="another result than its metadata says") as caught:
            await reply
        assert caught.value.status == 500


async def test_a_dead_workers_batch_is_retried_on_the_next(workers):
    async with started() as engine:
        (worker,) = workers.running
        reply = submit(engine, 1)
        await settle()
        await worker.die()
        while not workers.made[-1].batches:
            await settle()
        assert workers.made[-1] is not worker
        await workers.made[-1].reply()
        assert await reply == [1] and engine.metrics.batch_stats["w0"].deaths == 1


async def test_a_request_that_kills_two_workers_is_not_tried_again(workers):
    async with started() as engine:
        replies = [submit(engine, 1), submit(engine, 2)]
        for _ in range(2):
            while not workers.made[-1].busy:
                await settle()
            await workers.made[-1].die()
        with pytest.raises(RequestFault, match="lost two workers") as caught:
            await replies[0]
        assert caught.value.status == 503
        while not workers.made[-1].busy:
            await settle()
        await workers.made[-1].reply()
        assert await replies[1] == [2]


async def test_a_batch_that_stands_still_costs_its_worker(workers, monkeypatch):
    monkeypatch.setattr(engine_module, "STUCK_DEADLINES", 0.001)
    async with started(deadline_s=50) as engine:
        (worker,) = workers.running
        reply = submit(engine, 1)
        while not worker.ended:
            await settle()
        while not workers.made[-1].busy:
            await settle()
        await workers.made[-1].reply()
        assert await reply == [1]


async def test_without_a_worker_left_requests_are_refused(workers, monkeypatch):
    monkeypatch.setattr(worker_pool, "MOST_STARTS", 1)
    async with started() as engine:
        running, waiting = submit(engine, 1), submit(engine, 2)
        await settle()
        workers.failing_starts = 1
        await workers.running[0].die()
        for reply in (running, waiting):
            with pytest.raises(RequestFault, match="no worker left") as caught:
                await reply
            assert caught.value.status == 503
        assert not engine.ready("m")
        with pytest.raises(RequestFault, match="no worker left"):
            submit(engine, 3)


async def test_a_batch_goes_through_all_stages_together(workers):
    plan = serving_plan(worker_spec(0), worker_spec(1, position=1), stages=("stage0", "stage1"))
    async with started(plan) as engine:
        first, second = workers.running
        replies = [submit(engine, 0), submit(engine, 1), submit(engine, 2)]
        await settle()
        await first.reply()
        await first.reply()
        assert second.batches == [rows(0)], "the second batch waits before the second stage"
        assert engine.state()["models"]["m"]["waiting"] == [0, 2]
        await second.reply()
        assert second.batches[1:] == [rows(1, 2)], "a batch is not split or joined between stages"
        await second.reply()
        assert await asyncio.gather(*replies) == [[0], [1], [2]]


async def test_tenants_of_a_slice_run_in_turns(workers):
    plan = serving_plan(
        worker_spec(0, model="a", slice_="shared"),
        worker_spec(1, model="b", slice_="shared"),
        worker_spec(2, model="a", slice_="shared"),
    )
    async with started(plan) as engine:
        a, b, second_a = workers.running
        replies = [submit(engine, 1, model="a"), submit(engine, 2, model="a")]
        await settle()
        assert a.busy and second_a.busy, "nobody else wants the slice"
        replies += [submit(engine, 3, model="b"), submit(engine, 4, model="a")]
        await a.reply()
        assert not a.busy and not b.busy, "the other tenant is next, once the slice is free"
        await asyncio.sleep(0.01)
        await second_a.reply()
        assert b.busy and not a.busy
        await b.reply()
        await a.reply()
        assert await asyncio.gather(*replies) == [[1], [2], [3], [4]]


async def test_limits_of_time_and_of_the_queue(workers):
    async with started(queue_limit=2) as engine:
        (worker,) = workers.running
        running, late, waiting = submit(engine, 1), submit(engine, 2, timeout_s=0.01), submit(engine, 3)
        with pytest.raises(RequestFault, match="at most 2 may wait") as caught:
            submit(engine, 4)
        assert caught.value.status == 429
        with pytest.raises(RequestFault, match=r"within 0\.01 s") as caught:
            await late
        assert caught.value.status == 504
        await worker.reply()
        assert worker.batches[-1] == rows(3), "what is too late is not computed"
        await worker.reply()
        assert await asyncio.gather(running, waiting) == [[1], [3]]


async def test_what_is_cancelled_is_not_computed(workers):
    async with started() as engine:
        (worker,) = workers.running
        running, gone, waiting = (submit(engine, value) for value in (1, 2, 3))
        await settle()
        gone.cancel()
        await settle()
        await worker.reply()
        assert worker.batches[-1] == rows(3)
        await worker.reply()
        assert await asyncio.gather(running, waiting) == [[1], [3]]


async def test_draining_finishes_what_was_taken_and_takes_nothing_new(workers):
    async with started() as engine:
        (worker,) = workers.running
        taken = submit(engine, 1)
        await settle()
        draining = asyncio.create_task(engine.drain())
        await settle()
        assert not engine.ready("m") and not draining.done()
        with pytest.raises(RequestFault, match="is draining") as caught:
            submit(engine, 2)
        assert caught.value.status == 503
        await worker.reply()
        await draining
        assert await taken == [1]


async def test_what_is_left_after_draining_is_refused_and_stop_ends_every_worker(workers):
    plan = serving_plan(worker_spec(0, max_batch=2), worker_spec(1, max_batch=2), max_wait_ms=1e5)
    async with started(plan, drain_s=0.01) as engine:
        waiting = submit(engine, 1)
        await engine.drain()
        with pytest.raises(RequestFault, match="stopped before this request was served") as caught:
            await waiting
        assert caught.value.status == 503
    assert not workers.running and all(worker.ended for worker in workers.made[-2:])
    assert not any(worker.batches for worker in workers.made)
