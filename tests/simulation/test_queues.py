"""Against exact values of queueing theory: within the simulation's own 95 % interval, seeds fixed.

Values: Erlang C, Pollaczek-Khinchine and Erlang 1909, Crommelin, GI/M/1 by its transform, embedded chains for
batches; tandem: Friedman, Operations Research 13 (1965). Times in ms at a mean service of 1 ms unless said.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.support.seeds import repeated
from torchsplit_core.simulation import simulate, simulate_one
from torchsplit_core.values import (
    GammaArrivals,
    MmppArrivals,
    ModelLoad,
    PoissonArrivals,
    RateState,
    Server,
    Service,
    SimulatedModel,
    SimulationRequest,
)

REQUESTS = 60_000


@dataclass(frozen=True)
class Case:
    """Arrivals/ms, servers, largest batch, ms of a batch (fixed, by request), service, and what is exact of it."""

    rate: float
    servers: int = 1
    batch: int = 1
    fixed: float = 1.0
    each: float = 0.0
    service: str = "deterministic"
    cv: float | None = None
    wait: float = 0.0
    max_wait: float = 0.0
    response: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    mean_batch: float | None = None


MM = {"service": "exponential"}
CASES: dict[str, Case] = {
    "M/M/1": Case(0.8, **MM, wait=4.0),  # type: ignore[arg-type]
    "M/M/2": Case(1.6, 2, **MM, wait=1.777778),  # type: ignore[arg-type]
    "M/M/4": Case(3.2, 4, **MM, wait=0.745541),  # type: ignore[arg-type]
    "M/M/8": Case(7.2, 8, **MM, wait=0.876916),  # type: ignore[arg-type]
    "M/D/1 0.5": Case(0.5, wait=0.5, p95=3.0506, p99=4.3363),
    "M/D/1 0.8": Case(0.8, wait=2.0, p50=2.2759, p95=7.6203, p99=11.3559),
    "M/D/1 0.9": Case(0.9, wait=4.5, p95=15.1287, p99=22.8982),
    "M/D/2": Case(1.6, 2, wait=0.903284),
    "M/D/4": Case(3.2, 4, wait=0.386095),
    "M/D/8": Case(7.2, 8, wait=0.449973),
    "G/M/1 cv 2": Case(0.8, **MM, cv=2.0, wait=10.955228),  # type: ignore[arg-type]
    "G/M/1 cv 0.5": Case(0.8, **MM, cv=0.5, wait=2.267384),  # type: ignore[arg-type]
    "G/M/1 cv 3": Case(0.5, **MM, cv=3.0, wait=7.332235),  # type: ignore[arg-type]
    "batches of 4": Case(3.2, batch=4, wait=0.879536, mean_batch=3.223862),
    "batches of 8": Case(6.4, batch=8, wait=0.651838),
    "batches of 16": Case(12.8, batch=16, wait=0.552548),
    "batches of 8, light": Case(2.0, batch=8, wait=0.468456, mean_batch=2.135303),
    "10 + 2k, 0.2": Case(0.2, batch=8, fixed=10.0, each=2.0, response=27.809636, mean_batch=3.406292),
    "10 + 2k, 0.25": Case(0.25, batch=8, fixed=10.0, each=2.0, response=34.683537),
    "10 + 2k, 0.25, 16": Case(0.25, batch=16, fixed=10.0, each=2.0, response=33.301311),
    "1 + 0k": Case(3.0, batch=4, wait=0.7584, mean_batch=3.0338, p50=1.7012, p95=2.7263, p99=3.4587),
    "4 + 1k": Case(
        0.4, batch=8, fixed=4.0, each=1.0, wait=3.5385, mean_batch=2.7981, response=11.3171,
        p50=11.0112, p95=17.2739, p99=20.4984,
    ),
    "10 + 1k": Case(
        0.5, batch=16, fixed=10.0, each=1.0, wait=10.7907, mean_batch=10.0003, response=31.9714,
        p50=31.2649, p95=46.2213, p99=53.9665,
    ),
    "time-out 5": Case(0.2, batch=8, fixed=10.0, each=2.0, max_wait=5.0, response=27.964),
    "time-out 20": Case(0.2, batch=8, fixed=10.0, each=2.0, max_wait=20.0, response=33.781),
}  # fmt: skip
KNOWN_TO = {"time-out 5": 0.040, "time-out 20": 0.029}
"""Half-widths of values that were themselves simulated."""


def request_of(case: Case, seed: int = 2, **changes: Any) -> SimulationRequest:
    per_s = case.rate * 1e3
    arrivals = PoissonArrivals(per_s) if case.cv is None else GammaArrivals(per_s, case.cv)
    table = {1: case.fixed + case.each, case.batch: case.fixed + case.each * case.batch}
    server = Server(
        "s", "m", "whole", case.batch, table, case.servers, case.max_wait, Service(case.service)  # type: ignore[arg-type]
    )  # fmt: skip
    return SimulationRequest(
        (SimulatedModel("m", ("whole",), arrivals),), (server,), requests_per_model=REQUESTS, replications=8,
        seed=seed, **changes,
    )  # fmt: skip


def load_of(request: SimulationRequest) -> ModelLoad:
    return simulate(request).models[0]


@pytest.mark.slow
@repeated("name", CASES, kept=8)
def test_figures_are_those_of_theory(name):
    case = CASES[name]
    load = load_of(request_of(case))
    width = load.response_ci95_ms
    assert width.mean is not None and load.response_ms.mean is not None
    sure = width.mean + KNOWN_TO.get(name, 0.0)
    if case.wait:
        assert load.wait_ms.mean == pytest.approx(case.wait, abs=sure)
    if case.response:
        assert load.response_ms.mean == pytest.approx(case.response, abs=sure)
    for figure in ("p50", "p95", "p99"):
        known, found, half = (getattr(one, figure) for one in (case, load.response_ms, width))
        if known:
            assert found == pytest.approx(known, abs=half)
    if case.mean_batch:
        assert load.mean_batch == pytest.approx(case.mean_batch, rel=0.01)
    # The interval says something: it is not so wide that anything lies in it.
    assert sure < 0.2 * load.response_ms.mean


def test_stages_in_a_row_wait_as_long_as_the_longest_alone():
    """Constant times 0.5, 1 and 0.7 in any order: all waits together are those of M/D/1 at 1."""
    for order in ((0.5, 1.0, 0.7), (1.0, 0.7, 0.5)):
        stages = tuple(f"s{number}" for number in range(3))
        request = SimulationRequest(
            (SimulatedModel("m", stages, PoissonArrivals(800.0), transfer_ms=(3.0, 0.0)),),
            tuple(Server(s, "m", s, 1, {1: time}) for s, time in zip(stages, order, strict=True)),
            requests_per_model=REQUESTS,
            replications=8,
        )
        load = load_of(request)
        half = load.response_ci95_ms.mean or 0.0
        assert load.wait_ms.mean == pytest.approx(2.0, abs=half)
        assert load.response_ms.mean == pytest.approx((load.wait_ms.mean or 0.0) + 2.2 + 3.0, abs=1e-6)


def test_a_changing_rate_of_one_value_is_poisson_and_bursts_wait_longer():
    case = CASES["M/D/1 0.8"]

    def waits(*states):
        request = request_of(case)
        model = SimulatedModel("m", ("whole",), MmppArrivals(states))
        load = load_of(SimulationRequest((model,), request.servers, requests_per_model=REQUESTS))
        assert load.offered_rps == pytest.approx(800.0)
        return load.wait_ms.mean or 0.0, load.response_ci95_ms.mean or 0.0

    even, half = waits(RateState(800.0, 0.3), RateState(800.0, 0.1))
    assert even == pytest.approx(2.0, abs=half)
    bursts, half = waits(RateState(700.0, 0.3), RateState(1100.0, 0.1))
    assert bursts - half > 4.0
    off, _ = waits(RateState(0.0, 0.001), RateState(1600.0, 0.001))
    assert off > 2.0


def test_lognormal_times_have_their_mean_and_spread():
    """M/G/1: wait ρ(1 + cv²) / (2(1 − ρ))."""
    for cv in (0.5, 1.5):
        request = request_of(CASES["M/D/1 0.5"])
        server = Server("s", "m", "whole", 1, {1: 1.0}, service=Service("lognormal", cv))
        load = load_of(
            SimulationRequest(request.models, (server,), requests_per_model=REQUESTS, replications=8)
        )
        expected = 0.5 * (1 + cv * cv)
        assert load.wait_ms.mean == pytest.approx(expected, abs=load.response_ci95_ms.mean)


@pytest.mark.slow
@pytest.mark.repeated
def test_a_queue_for_each_of_two_servers_waits_longer_than_one_for_both():
    case = CASES["M/M/2"]
    shared = load_of(request_of(case)).wait_ms.mean or 0.0
    own = load_of(request_of(case, queue="per_server"))
    half = own.response_ci95_ms.mean or 0.0
    # Join the shortest of two queues at 0.8: between M/M/2 and two queues of M/M/1.
    assert shared + half < (own.wait_ms.mean or 0.0) < 4.0 - half


def test_utilisation_and_rates():
    outcome = simulate(request_of(CASES["M/D/4"]))
    (load,), (server,) = outcome.models, outcome.servers
    assert (load.offered_rps, load.capacity_rps, load.stable) == (3200.0, 4000.0, True)
    assert server.utilisation == pytest.approx(0.8, rel=0.01)
    assert load.throughput_rps == pytest.approx(3200.0, rel=0.01)
    assert load.completed == 8 * REQUESTS


def test_a_count_is_as_many_servers_one_behind_the_other():
    """Also by the two ways in which they are reckoned: a recursion for equal servers, a loop for those in a list."""
    times = tuple(
        float(time) for time in np.cumsum(np.random.default_rng(4).standard_exponential(3000)) / 2800
    )
    model = SimulatedModel("m", ("whole",), PoissonArrivals(1.0))
    for batch in (1, 3):
        one = Server("s", "m", "whole", batch, {1: 1.0, 3: 2.0}, 3)
        several = tuple(replace(one, id=f"s{number}", count=1) for number in range(3))
        for queue in ("shared", "per_server"):
            first = simulate_one(model, (one,), times, queue=queue)  # type: ignore[arg-type]
            again = simulate_one(model, several, times, queue=queue)  # type: ignore[arg-type]
            assert first == pytest.approx(again, abs=1e-9)
            assert first.max() > 1.5
