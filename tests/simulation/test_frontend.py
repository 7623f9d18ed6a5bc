"""The front that all models share, against queueing theory and a loop that shares no code."""

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.seeds import in_blocks
from tests.support.simulation.reference import responses
from torchsplit_core.files import read_text, write_text
from torchsplit_core.simulation import frontend, simulate
from torchsplit_core.simulation.replication import prepare_model, run_model
from torchsplit_core.values import (
    DeterministicArrivals,
    InputFault,
    PoissonArrivals,
    Server,
    SimulatedModel,
    SimulationRequest,
    TraceArrivals,
)
from torchsplit_core.values.simulation.request import Arrivals, MaxLoadSearch


def request(*models: tuple[str, Arrivals, float], count: int = 1000, ms: float = 1e-6) -> SimulationRequest:
    """Models by name, arrivals and front_ms, each with servers of its own: as good as none behind the front."""
    return SimulationRequest(
        tuple(SimulatedModel(name, ("s",), arrivals, front_ms=cost) for name, arrivals, cost in models),
        tuple(Server(name, name, "s", 1, {1: ms}, count) for name, _, _ in models),
        requests_per_model=60_000,
    )


@pytest.mark.parametrize(("rate", "wait"), [(0.5, 0.5), (0.8, 2.0), (0.9, 4.5)])
def test_poisson_models_through_one_front_wait_as_in_an_m_d_1(rate, wait):
    """1 ms each: the sum of Poisson processes is one, whatever the shares."""
    asked = request(
        ("a", PoissonArrivals(rate * 700), 1.0),
        ("b", PoissonArrivals(rate * 200), 1.0),
        ("c", PoissonArrivals(rate * 100), 1.0),
    )
    for model in simulate(asked).models:
        assert model.stable and model.capacity_rps == pytest.approx(model.offered_rps / rate)
        assert model.wait_ms.mean == pytest.approx(wait, abs=3 * (model.response_ci95_ms.mean or 0.0))
        assert model.response_ms.mean == pytest.approx(wait + 1.0, abs=3 * (model.response_ci95_ms.mean or 0))


def test_models_of_different_cost_wait_as_pollaczek_and_khinchine_have_it():
    """E(W) = λ E(S²) / 2 (1 − ρ): 0.2/ms of 1 ms and 0.1/ms of 4 ms are ρ = 0.6, λ E(S²) = 1.8."""
    asked = request(("a", PoissonArrivals(200.0), 1.0), ("b", PoissonArrivals(100.0), 4.0))
    for model in simulate(asked).models:
        assert model.wait_ms.mean == pytest.approx(2.25, abs=3 * (model.response_ci95_ms.mean or 0.0))


def through(data: dict[str, Any]) -> dict[str, list[float]]:
    """Seconds at which each model's requests leave the front, one after the other."""
    queue = sorted(
        (time, number, model["name"], model.get("front_ms", 0.0))
        for number, model in enumerate(data["models"])
        for time in model["arrivals"]["times_s"]
    )
    free, found = 0.0, {model["name"]: [] for model in data["models"]}
    for time, _, name, ms in queue:
        if not ms:
            found[name].append(time)
            continue
        free = max(free, time) + ms / 1e3
        found[name].append(free)
    return found


def instance(seed: int) -> dict[str, Any]:
    """Up to three models of one or two stages, with traces that begin and end apart; one may pass no front."""
    draw = random.Random(seed)
    models, servers = [], []
    for name in ("a", "b", "c")[: draw.choice([1, 2, 3])]:
        stages = ["s0", "s1"][: draw.choice([1, 2])]
        begin = draw.uniform(0, 0.3)
        times = sorted(round(begin + draw.uniform(0, 0.4), 9) for _ in range(draw.randint(1, 40)))
        models.append({
            "name": name, "stages": stages, "arrivals": {"kind": "trace", "times_s": times},
            "front_ms": draw.choice([0.0, draw.uniform(0.1, 12.0), draw.uniform(0.1, 12.0)]),
        })  # fmt: skip
        servers += [
            {
                "id": f"{name}/{stage}/{number}", "model": name, "stage": stage, "count": draw.choice([1, 2]),
                "max_batch": draw.randint(1, 4), "max_wait_ms": draw.choice([0.0, 5.0]),
                "batch_ms": {"1": draw.uniform(1, 20), "4": draw.uniform(20, 40)},
            }
            for stage in stages
            for number in range(draw.choice([1, 2]))
        ]  # fmt: skip
    return {
        "format": "torchsplit.simulation_request", "version": 1, "models": models, "servers": servers,
        "queue": draw.choice(["shared", "per_server"]), "warmup_share": 0.0,
    }  # fmt: skip


@in_blocks("seed", range(200))
def test_every_response_is_that_of_a_loop_before_the_slow_simulator(seed):
    data = instance(seed)
    left = through(data)
    behind = json.loads(json.dumps(data))
    for model in behind["models"]:
        model["arrivals"]["times_s"] = left[model["name"]]
        del model["front_ms"]
    asked = read_text(json.dumps(data))[1]
    for number, (name, later) in enumerate(responses(behind).items()):
        arrived = data["models"][number]["arrivals"]["times_s"]
        expected = np.array(later) + 1e3 * (np.array(left[name]) - np.array(arrived))
        assert run_model(prepare_model(asked, number), 0).response_ms == pytest.approx(expected, abs=1e-5), (
            name
        )


def test_what_is_more_than_the_front_passes_grows_without_end():
    asked = request(("a", PoissonArrivals(600.0), 1.0), ("b", PoissonArrivals(300.0), 2.0))
    outcome = simulate(asked)
    assert [model.stable for model in outcome.models] == [False, False]
    assert [model.capacity_rps for model in outcome.models] == pytest.approx([500.0, 250.0])
    assert [model.response_ms.p95 for model in outcome.models] == [None, None]
    assert outcome.warnings[0].startswith(
        "a: 600 requests/s arrive and 500 requests/s can be passed on by the front"
    )


def test_the_slower_of_front_and_servers_is_the_capacity():
    asked = request(("a", PoissonArrivals(100.0), 1.0), count=1, ms=4.0)
    assert simulate(replace(asked, requests_per_model=100)).models[0].capacity_rps == pytest.approx(250.0)
    asked = request(("a", PoissonArrivals(100.0), 5.0), count=1, ms=4.0)
    assert simulate(replace(asked, requests_per_model=100)).models[0].capacity_rps == pytest.approx(200.0)


def test_the_highest_load_ends_at_the_front():
    asked = request(("a", DeterministicArrivals(100.0), 2.0), ("b", PoissonArrivals(50.0), 2.0))
    asked = replace(
        asked, models=tuple(replace(model, slo_ms=20.0) for model in asked.models), requests_per_model=20_000,
        replications=3, find=MaxLoadSearch(95.0),
    )  # fmt: skip
    found = simulate(asked).highest_load
    assert found is not None and found.factor is not None and 2.5 < found.factor < 1000 / 300


def test_a_model_that_passes_no_front_is_as_it_was_to_the_bit():
    alone = request(("a", PoissonArrivals(300.0), 0.0), count=1, ms=3.0)
    beside = request(("a", PoissonArrivals(300.0), 0.0), ("b", PoissonArrivals(900.0), 1.0), count=1, ms=3.0)
    assert simulate(alone).models[0] == simulate(beside).models[0]
    assert "front_ms" not in write_text(alone) and "front_ms" in write_text(beside)


def test_a_rare_model_beside_a_busy_one_has_fewer_requests_and_says_so(monkeypatch):
    monkeypatch.setattr(frontend, "MOST_PASSED", 10_000)
    asked = request(("a", PoissonArrivals(1.0), 0.5), ("b", PoissonArrivals(999.0), 0.5))
    outcome = simulate(replace(asked, requests_per_model=5_000))
    assert [model.completed for model in outcome.models] == [10 * 5, 5_000 * 5]
    assert any(words.startswith("a: 10 of 5000 requests are simulated") for words in outcome.warnings)
    # Whom it waits behind is the busy one, not itself.
    assert (outcome.models[0].wait_ms.mean or 0.0) > 0.1


@pytest.mark.parametrize("ms", [-1.0, float("nan")])
def test_a_front_that_makes_no_sense_is_refused(ms):
    with pytest.raises(InputFault, match="front_ms"):
        simulate(request(("a", PoissonArrivals(1.0), ms)))


def test_a_trace_too_long_for_what_else_passes_is_refused():
    long = TraceArrivals((0.0, 1e6))
    with pytest.raises(InputFault, match="pass the front, more than"):
        simulate(request(("a", long, 1.0), ("b", PoissonArrivals(100.0), 1.0)))
