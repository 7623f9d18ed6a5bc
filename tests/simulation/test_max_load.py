"""The highest load lies where the percentile meets the limit, to 1 %."""

from dataclasses import replace

import pytest

from torchsplit_core.simulation import simulate
from torchsplit_core.values import (
    HighestLoad,
    MaxLoadSearch,
    PoissonArrivals,
    Server,
    SimulatedModel,
    SimulationRequest,
    TraceArrivals,
)


def request_of(rate: float, slo: float | None, requests: int = 60_000) -> SimulationRequest:
    return SimulationRequest(
        (SimulatedModel("m", ("whole",), PoissonArrivals(rate), slo_ms=slo),),
        (Server("s", "m", "whole", 1, {1: 1.0}),), requests_per_model=requests, replications=8,
        find=MaxLoadSearch(95.0),
    )  # fmt: skip


def highest(request: SimulationRequest) -> HighestLoad:
    found = simulate(request).highest_load
    assert found is not None
    return found


def test_it_is_that_of_theory():
    """M/D/1: p95 of the response is 7.6203 ms at 800/s and 3.0506 ms at 500/s."""
    for exact, slo in ((800.0, 7.6203), (500.0, 3.0506)):
        best = highest(request_of(100.0, slo))
        assert best.factor == best.low and best.low is not None and best.high is not None
        assert best.high <= 1.0101 * best.low
        assert best.factor == pytest.approx(exact / 100.0, rel=0.015)


def test_it_holds_at_one_end_and_not_at_the_other():
    request = request_of(100.0, 5.0, 20_000)
    best = highest(request)
    p95 = []
    for factor in (best.low, best.high):
        assert factor is not None
        (model,) = request.models
        scaled = replace(model, arrivals=PoissonArrivals(100.0 * factor))
        p95.append(simulate(replace(request, models=(scaled,), find=None)).models[0].response_ms.p95)
    assert p95[0] is not None and p95[1] is not None and p95[0] <= 5.0 < p95[1]


def test_every_model_keeps_its_limit_and_one_without_a_limit_does_not_count():
    request = request_of(100.0, 7.6203, 20_000)
    slow = SimulatedModel("slow", ("whole",), PoissonArrivals(100.0), slo_ms=3.0506 * 4)
    free = SimulatedModel("free", ("whole",), PoissonArrivals(999.0))
    both = replace(request, models=(*request.models, slow, free), servers=(
        *request.servers,
        Server("t", "slow", "whole", 1, {1: 4.0}),
        Server("u", "free", "whole", 1, {1: 1.0}),
    ))  # fmt: skip
    outcome = simulate(both)
    assert outcome.highest_load is not None
    assert outcome.highest_load.factor == pytest.approx(1.25, rel=0.03)
    assert any("do not limit" in warning for warning in outcome.warnings)


def test_a_wait_for_batches_that_breaks_the_limit_at_low_loads_is_no_obstacle():
    """Alone, a request waits 20 ms for others and is late; at hundreds a second batches fill before."""
    request = SimulationRequest(
        (SimulatedModel("m", ("whole",), PoissonArrivals(10.0), slo_ms=15.0),),
        (Server("s", "m", "whole", 4, {1: 4.0, 4: 4.0}, max_wait_ms=20.0),),
        requests_per_model=20_000,
        find=MaxLoadSearch(95.0),
    )
    best = highest(request)
    assert best.factor is not None and best.factor > 50


def test_a_trace_is_sped_up():
    """Ten requests 100 ms apart, 10 ms each: no wait up to ten times as fast, then the last waits."""
    trace = TraceArrivals(tuple(number / 10 for number in range(10)))
    model = SimulatedModel("m", ("whole",), trace, slo_ms=10.0 + 1e-6)
    request = SimulationRequest(
        (model,), (Server("s", "m", "whole", 1, {1: 10.0}),), warmup_share=0.0, find=MaxLoadSearch()
    )
    best = highest(request)
    assert best.low is not None and best.high is not None and best.low <= 10.0 + 1e-6
    assert best.high >= 10.0
    easy = highest(replace(request, models=(replace(model, slo_ms=100.0),)))
    assert (easy.factor, easy.high) == (None, None) and "every load" in easy.message


def test_a_limit_that_no_load_keeps_is_said():
    request = SimulationRequest(
        (SimulatedModel("m", ("whole",), PoissonArrivals(10.0), slo_ms=5.0),),
        (Server("s", "m", "whole", 2, {1: 4.0, 2: 100.0}, max_wait_ms=20.0),),
        requests_per_model=500,
        find=MaxLoadSearch(95.0),
    )
    best = highest(request)
    assert (best.factor, best.low) == (None, None) and "no load" in best.message
