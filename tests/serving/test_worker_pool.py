"""The pool of workers without processes: start, death, restart, giving up, end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.support.serving.fake_workers import FakeWorkers, serving_plan, settle, worker_spec
from torchsplit_core.serving import stage_workers, worker_pool
from torchsplit_core.serving.metrics import ServerMetrics
from torchsplit_core.serving.stage_workers import WorkerSlot
from torchsplit_core.serving.worker_pool import MOST_STARTS, WorkerPool
from torchsplit_core.serving.worker_process import WorkerConfig
from torchsplit_core.values import InputFault, ignore_progress


@pytest.fixture
def workers(monkeypatch) -> FakeWorkers:
    fakes = FakeWorkers()
    monkeypatch.setattr(stage_workers, "WorkerProcess", fakes)
    monkeypatch.setattr(worker_pool, "MONITOR_INTERVAL_S", 0.001)
    monkeypatch.setattr(worker_pool, "LONGEST_BACKOFF_S", 0.001)
    return fakes


class Calls:
    """Slots for which the pool called back."""

    def __init__(self) -> None:
        self.ready: list[WorkerSlot] = []
        self.lost: list[WorkerSlot] = []


@asynccontextmanager
async def pool_of(count: int, calls: Calls | None = None) -> AsyncIterator[WorkerPool]:
    """A pool that is not started; it is stopped at the end."""
    calls = calls or Calls()
    plan = serving_plan(*map(worker_spec, range(count)))
    slots = [
        WorkerSlot(WorkerConfig(spec, plan.models[0], bound, trust=False))
        for spec, bound in zip(plan.workers, plan.slices, strict=True)
    ]
    pool = WorkerPool(slots, ServerMetrics(plan), calls.ready.append, calls.lost.append)
    try:
        yield pool
    finally:
        await pool.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(50):
        while not condition():
            await settle()


async def test_start_waits_for_all_workers_and_reports_progress(workers):
    shares = []
    async with pool_of(2) as pool:
        await pool.start({"m": "/parts"}, lambda share, text: shares.append(share))
        assert [slot.state for slot in pool.slots] == ["free", "free"]
        assert [worker.config.directory for worker in workers.running] == ["/parts", "/parts"]
        assert all(slot.ports["inputs"] for slot in pool.slots)
    assert not workers.running and [slot.state for slot in pool.slots] == ["lost", "lost"]
    assert shares == [0.0, 0.5, 1.0]


async def test_a_worker_that_does_not_start_fails_the_start(workers):
    workers.failing_starts, workers.start_s = 1, 60.0
    async with pool_of(2) as pool:
        with pytest.raises(InputFault, match="does not load"):
            await pool.start({}, ignore_progress)
        await settle()
        assert asyncio.all_tasks() == {asyncio.current_task()}, "the other start was cancelled"
        assert not any(worker.ports for worker in workers.made)


async def test_a_worker_that_dies_idle_is_replaced(workers):
    calls = Calls()
    async with pool_of(2, calls) as pool:
        await pool.start({}, ignore_progress)
        first, second = workers.running
        await first.die()
        await until(lambda: bool(calls.ready))
        assert calls.ready == [pool.slots[0]] and pool.slots[0].state == "free"
        assert first.ended and pool.slots[0].process is workers.made[-1]
        assert pool.slots[1].process is second and second.output_trimmed
        deaths = [pool.metrics.batch_stats[name].deaths for name in ("w0", "w1")]
        assert deaths == [1, 0] and not calls.lost


@pytest.mark.parametrize(("failing", "state"), [(MOST_STARTS - 1, "free"), (MOST_STARTS, "lost")])
async def test_a_worker_is_started_again_after_failed_starts_up_to_a_limit(workers, failing, state):
    calls = Calls()
    async with pool_of(1, calls) as pool:
        await pool.start({}, ignore_progress)
        made = len(workers.made)
        workers.failing_starts = failing
        pool.restart(pool.slots[0])
        assert pool.slots[0].state == "down"
        await until(lambda: bool(calls.ready or calls.lost))
        await settle()
        assert pool.slots[0].state == state
        assert (bool(calls.ready), bool(calls.lost)) == (state == "free", state == "lost")
        assert len(workers.made) == made + MOST_STARTS and len(workers.running) == (state == "free")


async def test_stop_ends_a_restart_under_way(workers, monkeypatch):
    monkeypatch.setattr(worker_pool, "LONGEST_BACKOFF_S", 0.03)
    async with pool_of(1) as pool:
        await pool.start({}, ignore_progress)
        workers.failing_starts = 1
        pool.restart(pool.slots[0])
        await until(lambda: not workers.failing_starts)
    made = len(workers.made)
    await asyncio.sleep(0.05)
    assert not workers.running and len(workers.made) == made
