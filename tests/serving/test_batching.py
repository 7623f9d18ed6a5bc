"""Queues and turns, without a process."""

import asyncio

import pytest

from torchsplit_core.serving.batching import Batch, BatchQueue, FairScheduler, PendingRequest


def item(
    loop: asyncio.AbstractEventLoop, rows: int = 1, joined: float = 0.0, alone: bool = False
) -> PendingRequest:
    return PendingRequest(rows, (), loop.create_future(), joined, alone)


@pytest.fixture
def loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def test_a_batch_is_the_first_rows_that_fit(loop):
    queue = BatchQueue()
    items = [item(loop, rows) for rows in (2, 1, 3, 1)]
    for one in items:
        queue.enqueue(one)
    assert queue.rows == 7
    assert queue.take_batch(4).requests == items[:2]
    assert queue.take_batch(4).requests == items[2:]
    assert queue.rows == 0 and queue.peek() is None


def test_a_batch_starts_when_full_or_when_the_first_has_waited(loop):
    queue = BatchQueue(max_wait_s=0.5)
    queue.enqueue(item(loop, joined=10.0))
    assert not queue.is_due(10.4, 2) and queue.is_due(10.5, 2) and queue.next_due_at() == 10.5
    queue.enqueue(item(loop, joined=10.1))
    assert queue.is_due(10.1, 2) and not queue.is_due(10.1, 3)


def test_who_went_away_is_passed(loop):
    queue = BatchQueue()
    first, second, third = (item(loop) for _ in range(3))
    for one in (first, second, third):
        queue.enqueue(one)
    first.result.cancel()
    third.result.set_result(())
    assert queue.take_batch(8).requests == [second]
    assert queue.peek() is None and queue.rows == 0 and not queue.is_due(0.0, 1)


def test_a_retried_request_runs_by_itself_and_first(loop):
    queue = BatchQueue(max_wait_s=9.0)
    queue.enqueue(item(loop))
    again = item(loop, alone=True)
    queue.enqueue(again, first=True)
    assert queue.is_due(0.0, 8)
    assert queue.take_batch(8).requests == [again]


def test_batches_between_stages_stay_as_they_are(loop):
    queue = BatchQueue()
    batches = [Batch([item(loop), item(loop)], 0.0), Batch([item(loop)], 0.0)]
    for batch in batches:
        queue.enqueue(batch)
    assert queue.rows == 3 and queue.take_batch(8) is batches[0] and queue.take_batch(8) is batches[1]
    queue.enqueue(batches[0])
    assert queue.drain() == batches[0].requests and queue.rows == 0


def test_turns_give_shares_of_the_time():
    turns = FairScheduler({"a": 0.75, "b": 0.25})
    spent = dict.fromkeys("ab", 0.0)
    for _ in range(400):
        tenant = turns.order()[0]
        assert turns.may_start(tenant, others_wait=True)
        turns.start(tenant)
        seconds = 0.01 if tenant == "a" else 0.03
        turns.end(tenant, seconds)
        spent[tenant] += seconds
    assert spent["a"] / sum(spent.values()) == pytest.approx(0.75, abs=0.02)


def test_idle_time_is_not_saved_up():
    turns = FairScheduler({"a": 0.5, "b": 0.5})
    for _ in range(100):
        turns.start("a")
        turns.end("a", 1.0)
    order = []
    for _ in range(6):
        tenant = turns.order()[0]
        order.append(tenant)
        turns.start(tenant)
        turns.end(tenant, 1.0)
    assert order.count("b") <= 4, "who was idle does not have the slice to itself for as long"


def test_one_tenant_has_the_slice_at_a_time():
    turns = FairScheduler({"a": 0.5, "b": 0.5})
    turns.start("a")
    assert not turns.may_start("b", others_wait=False)
    assert turns.may_start("a", others_wait=False), "its second process may work beside its first"
    assert not turns.may_start("a", others_wait=True), "but not where the other waits for its turn"
    turns.end("a", 0.1)
    assert turns.may_start("b", others_wait=True)
