"""Streams that share a slice: closed forms, cases by hand, and the line through two points."""

import heapq
import math

import numpy as np
import pytest

from benchmarks.mlperf_streams import Batcher, SliceService, serve_by_streams, service_from_two_points
from torchsplit_core.values import InputFault

MINUTE = SliceService(0.0, 1.0)


def poisson(rate: float, seed: int, count: int = 60_000) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).standard_exponential(count)) / rate


def mean_within(expected: float, rate: float, service: SliceService, batcher: Batcher) -> None:
    """Five runs of 60,000: the exact mean lies within four standard errors and 4 %."""
    means = [
        float(serve_by_streams(poisson(rate, seed), service, batcher)[3000:].mean()) for seed in range(5)
    ]
    error = float(np.std(means, ddof=1)) / math.sqrt(len(means))
    assert abs(np.mean(means) - expected) < max(4 * error, 0.002 * expected)
    assert np.mean(means) == pytest.approx(expected, rel=0.04)


def test_one_by_one_is_m_d_1():
    mean_within(3.0, 0.8, MINUTE, Batcher(1))


@pytest.mark.parametrize(("service", "most", "rate", "expected"), [
    (SliceService(1.0, 0.0), 4, 3.0, 1.7584),
    (SliceService(4.0, 1.0), 8, 0.4, 11.3171),
    (SliceService(10.0, 1.0), 16, 0.5, 31.9714),
])  # fmt: skip
def test_greedy_batches_have_the_exact_mean(service, most, rate, expected):
    mean_within(expected, rate, service, Batcher(most))


@pytest.mark.repeated
@pytest.mark.slow
def test_many_streams_are_processor_sharing():
    """Mean x / (1 - load), whatever the lengths."""
    mean_within(2.0, 0.5, MINUTE, Batcher(1, streams=60))


def test_a_floor_that_does_not_keep_the_slice_busy_is_not_shared():
    """All of a batch is floor, none of it is shared: every request takes it and no more."""
    response = serve_by_streams(
        poisson(5.0, 1, 5000), SliceService(1.0, 0.0), Batcher(1, streams=50, floor_share=0.0)
    )
    assert response == pytest.approx(np.ones(5000))


@pytest.mark.parametrize(("times", "service", "batcher", "work", "expected"), [
    # From 0 the first alone; from 1 both at half speed: the first has 3 of 4 ms left, which takes 6.
    ([0.0, 1.0], SliceService(0.0, 4.0), Batcher(1, streams=2), None, [7.0, 7.0]),
    ([0.0, 0.0, 0.0], MINUTE, Batcher(1, streams=2), None, [2.0, 2.0, 3.0]),
    # The window from 0 on ends at 3, its batch at 13; the window from 13 on ends at 16 with both others.
    ([0.0, 4.0, 5.0], SliceService(10.0, 0.0), Batcher(4, 3.0), None, [13.0, 22.0, 21.0]),
    # The first is waited with until 3; at 13 the second has waited long enough.
    ([0.0, 4.0, 5.0], SliceService(10.0, 0.0), Batcher(4, 3.0, window="oldest"), None, [13.0, 19.0, 18.0]),
    ([0.0, 1.0], SliceService(1.0, 0.0), Batcher(2, 50.0), None, [2.0, 1.0]),
    # Windows of 2 from 0 on: the request of 5 leaves with the window that ends at 6.
    ([5.0], SliceService(1.0, 0.0), Batcher(2, 2.0), None, [2.0]),
    ([0.0, 1.0, 2.0], SliceService(10.0, 0.0), Batcher(4), None, [10.0, 19.0, 18.0]),
    # The request of 1 is taken ahead at 1, alone; that of 2 goes in the batch behind it.
    ([0.0, 1.0, 2.0], SliceService(10.0, 0.0), Batcher(4, ahead=1), None, [10.0, 19.0, 28.0]),
    # The third waits for the slice that is free first, at 2; the fourth for the other, at 3.
    ([0.0, 1.0, 1.0, 1.0], SliceService(2.0, 0.0), Batcher(1, slices=2), None, [2.0, 2.0, 3.0, 4.0]),
    ([0.0, 0.0], SliceService(1.0, 2.0), Batcher(2), [0.5, 1.5], [5.0, 5.0]),
], ids=[
    "two streams share what both want", "a third waits for one of two", "a window of the free stream",
    "a window of the oldest request", "a full batch does not wait", "an empty window is waited again",
    "what waits is one batch", "a batch formed ahead is closed", "slices take from one queue in order",
    "work of requests adds up",
])  # fmt: skip
def test_what_requests_wait_for_by_hand(times, service, batcher, work, expected):
    served = serve_by_streams(times, service, batcher, work=work)
    assert served.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("streams", [1, 2])
def test_a_stream_is_free_a_hop_after_its_batch(streams):
    """Alone on the slice one batch after the other: each waits for a stream that is free 1 ms later."""
    served = serve_by_streams([0.0] * 3, SliceService(2.0, 0.0), Batcher(1, streams=streams, hop_ms=1.0))
    # Two streams: both end at 4, one is free at 5.
    assert served.tolist() == ([2.0, 5.0, 8.0] if streams == 1 else [4.0, 4.0, 7.0])


@pytest.mark.parametrize("slices", [2, 5])
def test_slices_of_one_queue_are_servers_of_one_queue(slices):
    times = poisson(0.8 * slices, 4, 5000)
    free, response = [0.0] * slices, []
    for at in times.tolist():
        end = max(at, heapq.heappop(free)) + 1.0
        heapq.heappush(free, end)
        response.append(end - at)
    assert serve_by_streams(times, MINUTE, Batcher(1, slices=slices)) == pytest.approx(np.asarray(response))


@pytest.mark.parametrize("streams", [1, 2])
def test_a_batch_above_the_most_work_puts_its_oldest_requests_off(streams):
    """3 + 1 + 2 + 2 is above 5: without the first it is not; the newest is served however much it is."""
    service, batcher = SliceService(1.0, 1.0), Batcher(4, streams=streams, most_work=5.0)
    served = serve_by_streams([0.0] * 4, service, batcher, work=[3.0, 1.0, 2.0, 2.0])
    assert served.tolist() == [math.inf, 6.0, 6.0, 6.0]
    served = serve_by_streams([0.0, 0.0], service, batcher, work=[1.0, 9.0])
    assert served.tolist() == [math.inf, 10.0]


def test_several_streams_with_full_floors_do_no_more_than_one():
    """What keeps the slice busy is done at the slice's speed, however many streams there are: the last batch of a
    busy period without gaps ends when all work is done."""
    times = np.zeros(12)
    service = SliceService(1.0, 1.0)
    served = serve_by_streams(times, service, Batcher(4))
    several = serve_by_streams(times, service, Batcher(4, streams=3))
    assert several.max() == pytest.approx(served.max()) == pytest.approx(15.0)


def test_the_line_goes_through_both_points():
    service = service_from_two_points(2.5, 1000.0)
    assert service == SliceService(1.5, 1.0)
    assert service.batch_ms(1) == 2.5
    assert service.beside_neighbours(0.5) == SliceService(3.0, 2.0)
    assert service_from_two_points(1.0, 500.0) == SliceService(0.0, 2.0)


@pytest.mark.parametrize(("single", "rate"), [(0.0, 1.0), (1.0, 0.0), (math.nan, 1.0), (1.0, math.inf)])
def test_points_are_positive(single, rate):
    with pytest.raises(InputFault, match="not a finite number above 0"):
        service_from_two_points(single, rate)


@pytest.mark.parametrize("share", [0.0, 1.1, math.nan])
def test_a_share_is_above_zero_and_at_most_one(share):
    with pytest.raises(InputFault, match="share"):
        MINUTE.beside_neighbours(share)
