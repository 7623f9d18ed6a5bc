"""Small random instances against a slow simulator that shares no code, to the microsecond."""

import json
import random
from typing import Any

import numpy as np
import pytest

from tests.support.seeds import in_blocks
from tests.support.simulation.reference import responses
from torchsplit_core.files import read_text
from torchsplit_core.simulation import simulate, simulate_one
from torchsplit_core.simulation.replication import prepare_model, run_model
from torchsplit_core.values import SimulationRequest


def instance(seed: int) -> dict[str, Any]:
    """One or two models with equal times, ties, waits, counts and several stages; half of them on a coarse grid."""
    draw = random.Random(seed)
    coarse = seed % 2 == 0
    stages = [f"s{number}" for number in range(draw.choice([1, 1, 1, 2, 3]))]
    models, servers = [], []
    for name in ("a", "b")[: draw.choice([1, 1, 2])]:
        grid = draw.choice([0.001, 0.005, 0.01]) if coarse else 1e-7
        last = draw.choice([10, 60, 200]) if coarse else 2_000_000
        times = sorted(round(draw.randint(0, last) * grid, 9) for _ in range(draw.randint(1, 40)))
        models.append({"name": name, "stages": stages, "arrivals": {"kind": "trace", "times_s": times}})
        if len(stages) > 1 and draw.random() < 0.6:
            models[-1]["transfer_ms"] = [draw.choice([0.0, 1.0, 2.5, 0.3]) for _ in stages[1:]]
        for stage in stages:
            for number in range(draw.choice([1, 1, 2, 3])):
                sizes = sorted(draw.sample(range(1, 9), draw.randint(1, 3)))
                time = (
                    (lambda: float(draw.choice([1, 2, 5, 10, 20])))
                    if coarse
                    else (lambda: draw.uniform(1, 30))
                )
                servers.append({
                    "id": f"{name}/{stage}/{number}", "model": name, "stage": stage,
                    "count": draw.choice([1, 1, 2, 3]), "max_batch": draw.randint(1, sizes[-1]),
                    "max_wait_ms": draw.choice([0.0, 0.0, 5.0, 10.0, 20.0, 0.1]),
                    "batch_ms": {str(size): time() for size in sizes},
                })  # fmt: skip
    draw.shuffle(servers)
    return {
        "format": "torchsplit.simulation_request", "version": 1, "models": models, "servers": servers,
        "queue": draw.choice(["shared", "per_server"]), "warmup_share": 0.0,
    }  # fmt: skip


def request_of(data: dict[str, Any]) -> SimulationRequest:
    return read_text(json.dumps(data))[1]


@pytest.mark.slow
@in_blocks("seed", range(600), kept=20)
def test_every_response_is_that_of_the_slow_simulator(seed):
    data = instance(seed)
    request = request_of(data)
    for number, (name, expected) in enumerate(responses(data).items()):
        found = run_model(prepare_model(request, number), 0).response_ms
        assert found == pytest.approx(expected, abs=1e-6), name


@in_blocks("seed", range(1000, 1100))
def test_simulate_one_and_the_figures_are_of_the_same_responses(seed):
    data = instance(seed)
    data["warmup_share"] = 0.2
    for model in data["models"]:
        model["slo_ms"] = 25.0
    request = request_of(data)
    outcome = simulate(request)
    for model, load, expected in zip(request.models, outcome.models, responses(data).values(), strict=True):
        times = model.arrivals.times_s  # type: ignore[union-attr]
        one = simulate_one(model, request.servers, times, queue=request.queue)
        assert one == pytest.approx(expected, abs=1e-6)
        kept = sorted(expected[len(expected) // 5 :])
        assert load.response_ms.mean == pytest.approx(np.mean(kept), abs=1e-6)
        for figure, percent in (("p50", 50), ("p95", 95), ("p99", 99)):
            nearest = kept[-(-percent * len(kept) // 100) - 1]
            assert getattr(load.response_ms, figure) == pytest.approx(nearest, abs=1e-6)
        assert load.response_ms.max == pytest.approx(kept[-1], abs=1e-6)
        assert load.slo_attainment == sum(response <= 25.0 for response in kept) / len(kept)
        assert load.completed == len(expected)
