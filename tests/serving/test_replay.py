"""The replay of a run: queues reckoned with the times that its batches took."""

from typing import Any

import pytest

from torchsplit_core.serving import metrics
from torchsplit_core.serving.load_test.replay import batch_ms, replay_batches
from torchsplit_core.serving.metrics import BatchTrace
from torchsplit_core.simulation import simulate_model, simulate_paced
from torchsplit_core.values import Server, SimulatedModel, SimulationRequest, TraceArrivals


def asked(
    times_s: tuple[float, ...], *servers: Server, stages: tuple[str, ...] = ("whole",)
) -> SimulationRequest:
    """One model with these arrivals."""
    return SimulationRequest(
        (SimulatedModel("m", stages, TraceArrivals(times_s)),), servers, warmup_share=0.0, replications=1
    )


def server(id_: str = "s", stage: str = "whole", **change: Any) -> Server:
    """Batches of up to two: one row 10 ms, two 16 ms."""
    wanted = {"max_batch": 2, "batch_ms": {1: 10.0, 2: 16.0}}
    return Server(id_, "m", stage, **wanted | change)


def test_a_batch_takes_what_one_of_its_size_took_or_the_pace_of_the_nearest():
    """By hand: the first takes 30 ms, so the next two go together at 30 ms, for 20 ms."""
    request = asked((5.0, 5.01, 5.02), server())
    found = replay_batches(request, {"s": [(105.0, 1, 30.0), (105.03, 2, 20.0)]}, 100.0)
    assert list(found["m"]) == pytest.approx([30.0, 40.0, 30.0])
    # Two rows took half as long again as planned, so one row takes 15 ms; the third is nearest the run's last.
    request = asked((0.0, 0.1, 0.2), server())
    course = [(0.0, 2, 24.0), (0.13, 2, 24.0), (0.17, 1, 5.0)]
    assert list(replay_batches(request, {"s": course}, 0.0)["m"]) == pytest.approx([15.0, 15.0, 5.0])


def test_every_stage_and_server_has_its_own_course():
    request = asked(
        (0.0, 0.001), server("a", "a", max_batch=1), server("b", "b", max_batch=1), server("c", "b", max_batch=1),
        stages=("a", "b"),
    )  # fmt: skip
    courses = {"a": [(0.0, 1, 2.0)], "b": [(0.0, 1, 30.0)], "c": [(0.0, 1, 5.0)]}
    # Out of the first stage at 2 and 4 ms; the second request finds b busy and takes c.
    assert list(replay_batches(request, courses, 0.0)["m"]) == pytest.approx([32.0, 8.0])
    assert replay_batches(request, courses | {"c": []}, 0.0) == {}


@pytest.mark.parametrize("wait_ms", [0.0, 3.0])
def test_with_an_even_pace_it_is_the_simulation(wait_ms):
    times = tuple(0.0071 * number + 0.003 * (number % 3) for number in range(200))
    request = asked(
        times, server(max_wait_ms=wait_ms), server("t", max_wait_ms=wait_ms, batch_ms={1: 14.0, 2: 15.0})
    )
    (told,) = simulate_model(request, 0).response_ms
    assert list(simulate_paced(request, 0, {"s": lambda at: 1.0})) == pytest.approx(list(told))


def test_planned_times_lie_between_the_sizes():
    one = server(batch_ms={2: 10.0, 4: 16.0})
    assert [batch_ms(one, rows) for rows in (1, 2, 3, 4, 9)] == [10.0, 10.0, 13.0, 16.0, 16.0]


def test_a_course_stays_small_and_spread_over_the_run(monkeypatch):
    monkeypatch.setattr(metrics, "MAX_TRACE_BATCHES", 8)
    kept = BatchTrace()
    for number in range(100):
        kept.add(float(number), 1, 1.0)
    begins = [int(begin) for begin, _, _ in kept.batches]
    assert begins == list(range(0, 100, 16))
