"""Engines against a slow simulator that shares no code, and against small cases reckoned by hand."""

import random
from typing import Any

import numpy as np
import pytest

from tests.support.seeds import in_blocks
from tests.support.simulation import token_steps
from torchsplit_core.simulation.continuous import run_engines
from torchsplit_core.values import EngineServer, StepLine


def engine(data: dict[str, Any]) -> EngineServer:
    lines = tuple(StepLine(**line) for line in data["step"])
    return EngineServer("e", "chat", "whole", **{**data, "step": lines})


def compare(servers: list[dict[str, Any]], times_s: list[float], lengths: list[tuple[int, int, int]]) -> Any:
    """Run both simulators, hold them equal, and return ours."""
    requests, engines = token_steps.run(servers, times_s, lengths)
    prompts, outputs, cached = np.array(lengths, dtype=np.int64).reshape(-1, 3).T
    ours = run_engines([engine(server) for server in servers], np.array(times_s), prompts, outputs, cached)
    exact = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(ours.start_s * 1e3, [float(request.start) for request in requests], **exact)
    np.testing.assert_allclose(
        ours.first_token_s * 1e3, [float(request.times[0]) for request in requests], **exact
    )
    np.testing.assert_allclose(
        ours.last_token_s * 1e3, [float(request.times[-1]) for request in requests], **exact
    )
    gaps = [
        float(b - a) for request in requests for a, b in zip(request.times, request.times[1:], strict=False)
    ]
    np.testing.assert_allclose(np.sort(np.repeat(*ours.gaps.sample())), np.sort(gaps), rtol=1e-9, atol=1e-12)
    for use, slow in zip(ours.engines, engines, strict=True):
        assert use.busy_s * 1e3 == pytest.approx(float(slow.busy), rel=1e-12)
        assert (use.steps, use.sequences, use.preemptions, use.kv_peak_blocks) == (
            slow.steps, slow.sequences, slow.preemptions, slow.peak,
        )  # fmt: skip
    return ours


def instance(seed: int) -> tuple[list[dict[str, Any]], list[float], list[tuple[int, int, int]]]:
    """Small caches, budgets and batches; half of the instances on a coarse grid of times, where events meet."""
    draw = random.Random(seed)
    coarse = seed % 2 == 0
    longest = draw.choice([6, 20, 60])
    reserve = draw.random() < 0.5
    fine = draw.choice([0.0, 1e-3, 0.0123456789])

    def coefficient(scale: float) -> float:
        if draw.random() < 0.35:
            return 0.0
        return (
            float(draw.choice([1, 2, 5])) * scale if coarse else draw.uniform(0.1, 3) * scale + fine * scale
        )

    servers = []
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        size = draw.choice([1, 2, 3, 4, 16])
        least = -(-2 * longest // size)
        servers.append({
            "count": draw.choice([1, 1, 2]), "max_num_seqs": draw.choice([1, 2, 3, 8, 64]),
            "max_num_batched_tokens": draw.choice([1, 2, 5, 16, 64, 512]),
            "kv_blocks": least + draw.choice([0, 1, 3, least, 20 * least]), "block_tokens": size,
            "reserve_full_prompt": reserve,
            "step": [
                {
                    "base_ms": 1.0 + coefficient(1.0), "prompt_token_ms": coefficient(0.1),
                    "sequence_ms": coefficient(0.1), "context_token_ms": coefficient(0.01),
                    "attention_ms": coefficient(0.001),
                }
                for _ in range(draw.choice([1, 1, 2, 3]))
            ],
        })  # fmt: skip
    count = draw.randint(1, 40)
    span_ms = draw.choice([0, 20, 300, 3000])
    times = sorted(
        (draw.randint(0, span_ms) if coarse else draw.uniform(0, span_ms)) / 1e3 for _ in range(count)
    )
    lengths = [
        (draw.randint(1, longest), draw.choice([1, draw.randint(1, longest)]), draw.choice([0, 0, draw.randint(0, 40)]))
        for _ in range(count)
    ]  # fmt: skip
    return servers, times, lengths


@in_blocks("seed", range(2000), kept=15)
def test_every_token_is_that_of_the_slow_simulator(seed):
    compare(*instance(seed))
