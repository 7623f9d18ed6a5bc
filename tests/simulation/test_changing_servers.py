"""Queues and engines whose servers come and go: as the simulator without changes, and nothing outside opening hours."""

import random

import numpy as np
import pytest

from tests.support.seeds import in_blocks
from torchsplit_core.simulation.changing.routed_engines import ChangingEngines, OpenEngine
from torchsplit_core.simulation.changing.stage_line import StageLine
from torchsplit_core.simulation.changing.stage_queue import DrawnFactors, OpenStation, StageQueue
from torchsplit_core.simulation.continuous.engines import run_engines
from torchsplit_core.simulation.continuous.request_tokens import request_tokens
from torchsplit_core.simulation.replication import simulate_one
from torchsplit_core.simulation.shared_queue import serve_shared_queue
from torchsplit_core.simulation.station import make_station
from torchsplit_core.simulation.time_base import TimeBase
from torchsplit_core.values import (
    EngineServer,
    LognormalTokens,
    PoissonArrivals,
    Server,
    Service,
    SimulatedModel,
    StepLine,
)


def random_servers(rng: random.Random) -> list[Server]:
    return [
        Server(
            f"s{number}", "m", "whole", rng.choice([1, 4, 8]), {1: rng.uniform(5, 20), 8: rng.uniform(21, 60)},
            rng.choice([1, 2]), max_wait_ms=rng.choice([0.0, 0.0, 3.0]),
        )
        for number in range(rng.choice([1, 2, 4]))
    ]  # fmt: skip


def stations(servers: list[Server]) -> list:
    return [make_station(place, server, TimeBase(), None) for place, server in enumerate(servers)]


@in_blocks("seed", range(60))
def test_servers_that_stay_serve_as_in_the_simulator(seed):
    rng = random.Random(seed)
    servers, count = random_servers(rng), rng.choice([5, 200])
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(rng.choice([1, 5, 20]), count))
    plain = serve_shared_queue(arrivals, stations(servers))
    queue = StageQueue([OpenStation(station) for station in stations(servers)])
    queue.join(arrivals.tolist(), list(range(count)))
    served, ends = [], []
    for until in (*np.linspace(0, 1.5 * arrivals[-1], 7), np.inf):
        part = queue.advance(until)
        served += part.requests
        ends += part.ends_ms.tolist()
    assert served == list(range(count)) and queue.waiting == 0
    assert ends == pytest.approx(np.repeat(plain.ends, plain.sizes).tolist(), abs=1e-6)


def literal_queue(arrivals: list[float], servers: list[tuple[float, float, float]]) -> dict[int, float]:
    """Ends of requests served singly by servers (ms, open, close): the first free one in the list takes the oldest."""
    free, ends, before = [opened for _, opened, _ in servers], {}, 0.0
    for request, arrival in enumerate(arrivals):
        starts = [
            (max(arrival, before, free[number]), number)
            for number, (_, _, close) in enumerate(servers)
            if max(arrival, before, free[number]) < close
        ]
        if not starts:
            continue
        start, number = min(starts)
        before, free[number] = start, start + servers[number][0]
        ends[request] = free[number]
    return ends


@in_blocks("seed", range(80))
def test_servers_that_come_and_go_serve_as_a_literal_queue_says(seed):
    rng = random.Random(seed)
    servers = []
    for _ in range(rng.choice([1, 2, 3])):
        opened = rng.choice([0.0, rng.uniform(0, 300)])
        servers.append((rng.uniform(3, 30), opened, opened + rng.choice([np.inf, rng.uniform(20, 400)])))
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(rng.choice([4, 10]), 60)).tolist()
    opening = [
        OpenStation(
            make_station(place, Server(f"s{place}", "m", "whole", 1, {1: ms}), TimeBase(), None), *hours
        )
        for place, (ms, *hours) in enumerate(servers)
    ]
    queue = StageQueue(opening)
    queue.join(arrivals, list(range(60)))
    ends = {}
    for until in (50.0, 51.0, 200.0, np.inf):
        part = queue.advance(until)
        ends |= dict(zip(part.requests, part.ends_ms.tolist(), strict=True))
    expected = literal_queue(arrivals, servers)
    assert ends.keys() == expected.keys() and queue.waiting == 60 - len(expected)
    assert [ends[request] for request in expected] == pytest.approx(list(expected.values()))
    assert queue.take_waiting() == sorted(set(range(60)) - set(expected)) and queue.waiting == 0


def test_two_stages_in_parts_are_the_tandem_of_the_simulator():
    model = SimulatedModel("m", ("a", "b"), PoissonArrivals(1.0), transfer_ms=(2.5,))
    servers = [Server("a0", "m", "a", 4, {1: 9.0, 4: 20.0}, 2), Server("b0", "m", "b", 2, {1: 4.0, 2: 7.0})]
    times = np.cumsum(np.random.default_rng(3).exponential(5.0, 400))
    response = simulate_one(model, servers, (times / 1e3).tolist())
    queues = [StageQueue([OpenStation(station)]) for station in stations(servers)]
    line = StageLine(queues, model.transfer_ms)
    line.join_stage(0, (times - times[0]).tolist(), list(range(400)))
    ends = np.empty(400)
    for until in (300.0, 300.5, 1200.0, np.inf):
        part = line.advance(until)
        ends[part.requests] = part.ends_ms
    assert (ends - (times - times[0])).tolist() == pytest.approx(response.tolist(), abs=1e-6)


def test_drawn_batch_times_have_their_mean_and_spread():
    factors = DrawnFactors(Service("lognormal", 0.5), np.random.default_rng(1))
    drawn = [factors[batch] for batch in range(20_000)]
    assert np.mean(drawn) == pytest.approx(1.0, abs=0.02) and np.std(drawn) == pytest.approx(0.5, abs=0.03)


ENGINE = EngineServer("e", "m", "whole", 8, 512, 400, (StepLine(10.0, 0.05, 0.2, 0.001),), count=2)
CHAT = SimulatedModel(
    "m", ("whole",), PoissonArrivals(1.0), prompt_tokens=LognormalTokens(100, 1.0),
    output_tokens=LognormalTokens(30, 1.0),
)  # fmt: skip


def pool(*engines: OpenEngine) -> ChangingEngines:
    return ChangingEngines(engines, lambda block: request_tokens(CHAT, [ENGINE], 600, (1, block)))


@pytest.mark.parametrize("rate", [1.0, 20.0, 100.0])
def test_engines_that_stay_give_the_tokens_of_the_simulator(rate):
    arrivals = np.round(np.cumsum(np.random.default_rng(0).exponential(1 / rate, 600)), 6)
    tokens = request_tokens(CHAT, [ENGINE], 600, (1, 0))
    plain = run_engines(ENGINE, arrivals, tokens.prompts, tokens.outputs, tokens.cached)
    changing = pool(OpenEngine(ENGINE))
    changing.join_stage(0, (1e3 * arrivals).tolist(), list(range(600)))
    first, last, per_token = np.empty((3, 600))
    for until in (*np.linspace(0, 1e3 * arrivals[-1], 20), np.inf):
        part = changing.advance(until)
        if part.requests:
            first[part.requests], last[part.requests] = part.first_ms, part.ends_ms
            per_token[part.requests] = part.tpot_ms
    assert last.tolist() == pytest.approx((1e3 * plain.last_token_s).tolist(), abs=1e-6)
    assert first.tolist() == pytest.approx((1e3 * plain.first_token_s).tolist(), abs=1e-6)
    several = tokens.outputs > 1
    expected = ((last - first) / np.maximum(tokens.outputs - 1, 1))[several]
    assert per_token[several].tolist() == pytest.approx(expected.tolist())
    assert changing.waiting_in(0) == 0


def test_an_engine_that_closes_gives_back_what_waits_and_cuts_off_what_runs_on():
    """The first engine closes at 1 s and is cut at 1.2 s; the second opens at 3 s and has the rest."""
    changing = pool(OpenEngine(ENGINE, close_ms=1000.0, drain_ms=200.0), OpenEngine(ENGINE, open_ms=3000.0))
    changing.join_stage(0, np.linspace(0, 990, 60).tolist(), list(range(60)))
    before = changing.advance(1000.0)
    assert before.ends_ms.max() < 1000
    drained = changing.advance(3000.0)
    assert len(drained.requests) and drained.ends_ms.min() >= 1000 and drained.ends_ms.max() <= 1200
    cut = changing.take_cut()
    waiting = changing.waiting_in(0)
    assert cut and waiting and changing.take_cut() == []
    assert len(before.requests) + len(drained.requests) + len(cut) + waiting == 60
    after = changing.advance(np.inf)
    assert len(after.requests) == waiting and after.first_ms.min() > 3000
    assert sorted(before.requests + drained.requests + cut + after.requests) == list(range(60))


def test_a_request_at_the_instant_at_which_an_engine_opens_goes_to_it():
    changing = pool(OpenEngine(ENGINE, open_ms=1.0))
    changing.join_stage(0, [1.0 - 5e-10], [7])
    assert changing.advance(np.inf).requests == [7]


def test_without_an_open_engine_requests_wait_and_can_be_taken():
    changing = pool(OpenEngine(ENGINE, open_ms=500.0, close_ms=800.0))
    changing.join_stage(0, [900.0, 901.0], [7, 9])
    assert changing.advance(np.inf).requests == []
    assert changing.waiting_in(0) == 2 and changing.take_waiting() == [7, 9] and changing.waiting_in(0) == 0
