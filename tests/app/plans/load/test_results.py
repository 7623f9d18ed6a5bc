"""What a page says of a model under load whose host changes its speed."""

from dataclasses import replace

from app.plans.load import results
from torchsplit_core.simulation import simulate
from torchsplit_core.values import Pace, PoissonArrivals, Server, SimulatedModel, SimulationRequest

MODEL = SimulatedModel("bert", ("whole",), PoissonArrivals(50.0))
SERVER = Server("cpu0/1c@0", "bert", "whole", 4, {1: 10.0, 2: 16.0, 4: 28.0})
STEADY = SimulationRequest((MODEL,), (SERVER,), requests_per_model=1000)
LOOSE = replace(STEADY, servers=(replace(SERVER, pace=Pace(0.1, 2.0, 0.1)),))


def test_a_time_has_its_interval_below_it_and_the_verdict_takes_the_high_end():
    (load,) = simulate(LOOSE).models
    low, high = load.response_low_ms, load.response_high_ms
    assert low is not None and high is not None
    assert load.response_ms.p95 is not None and low.p95 is not None and high.p95 is not None
    shown = results.table_of([load], {}, {})
    assert f"{results.short(low.p95)} to {results.short(high.p95)}" in shown
    limit = (load.response_ms.p95 + high.p95) / 2
    close = results.verdict_badge([load], {"bert": limit}, 95)
    assert close.colour == "yellow" and f"up to {results.short(high.p95, 'ms')}" in close.text
    assert results.verdict_badge([load], {"bert": 1.01 * high.p95}, 95).colour == "green"


def test_without_a_pace_nothing_is_said_of_one():
    (load,) = simulate(STEADY).models
    assert " to " not in results.table_of([load], {}, {}).partition("</thead>")[2]
    assert load.response_ms.p95 is not None
    assert results.verdict_badge([load], {"bert": 1.5 * load.response_ms.p95}, 95).colour == "green"
