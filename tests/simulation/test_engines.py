"""Engines against a slow simulator that shares no code, and against small cases reckoned by hand."""

import random
from fractions import Fraction
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
    assert not any(slow.steps for slow in engines[len(ours.engines) :])
    for use, slow in zip(ours.engines, engines, strict=False):
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
            "kv_blocks": least + draw.choice([0, 0, 0, 1, 2, least, 20 * least]), "block_tokens": size,
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
    count = draw.randint(1, 25)
    span_ms = draw.choice([0, 20, 300, 3000])
    times = sorted(
        (draw.randint(0, span_ms) if coarse else draw.uniform(0, span_ms)) / 1e3 for _ in range(count)
    )
    lengths = [
        (draw.randint(1, longest), draw.choice([1, draw.randint(1, longest)]), draw.choice([0, 0, draw.randint(0, 40)]))
        for _ in range(count)
    ]  # fmt: skip
    return servers, times, lengths


BACK_AND_FORTH = (307, 1070, 1290, 1706, 2350, 4410)
"""Instances in which a sequence that came back is preempted again before its next token, which is rare."""


@in_blocks("seed", [*BACK_AND_FORTH, *range(994)], kept=10)
def test_every_token_is_that_of_the_slow_simulator(seed):
    compare(*instance(seed))


LINE = {"base_ms": 10.0, "prompt_token_ms": 1.0, "sequence_ms": 2.0, "context_token_ms": 0.5}
PLAIN = {"max_num_seqs": 8, "max_num_batched_tokens": 100, "kv_blocks": 100, "step": [{"base_ms": 1.0}]}


def tokens_ms(server: dict[str, Any], times_ms: list[float], lengths: list[tuple[int, int, int]]) -> Any:
    """Starts, first and last tokens in milliseconds, as both simulators have them."""
    ours = compare([server], [time / 1e3 for time in times_ms], lengths)
    return [
        (np.round(column * 1e3, 9)).tolist()
        for column in (ours.start_s, ours.first_token_s, ours.last_token_s)
    ]


def test_a_prompt_takes_two_steps_and_the_context_grows():
    server = {**PLAIN, "max_num_batched_tokens": 2, "step": [LINE]}
    # 10 + 2, 10 + 1, then 10 + 2 + 0.5 · 4 and 10 + 2 + 0.5 · 5.
    assert tokens_ms(server, [0.0], [(3, 3, 0)]) == [[0.0], [23.0], [51.5]]


def test_attention_is_of_pairs_of_tokens_and_the_largest_line_counts():
    server = {
        **PLAIN, "max_num_batched_tokens": 2,
        "step": [{"base_ms": 1.0, "attention_ms": 2.0}, {"base_ms": 5.0}],
    }  # fmt: skip
    # 1 + 2 · 2 · 1.5 = 7; then 1 + 2 · 1 · (2 + 1) = 7; a sequence that decodes has no pairs: 5.
    assert tokens_ms(server, [0.0], [(3, 2, 0)]) == [[0.0], [14.0], [19.0]]


def test_cached_tokens_are_processed_already_but_for_the_last():
    server = {**PLAIN, "step": [LINE]}
    assert tokens_ms(server, [0.0, 100.0], [(8, 1, 5), (8, 1, 50)])[1] == [13.0, 111.0]


@pytest.mark.parametrize("reserve", [True, False])
def test_the_last_one_admitted_is_preempted_and_processed_anew(reserve):
    server = {**PLAIN, "kv_blocks": 5, "block_tokens": 1, "reserve_full_prompt": reserve}
    starts, firsts, lasts = tokens_ms(server, [0.0, 0.0], [(2, 3, 0), (2, 3, 1)])
    # The second asks for a block at 1 ms and none is free; the first ends at 3 ms, then its three tokens are one step.
    assert (starts, firsts, lasts) == ([0.0, 0.0], [1.0, 1.0], [3.0, 5.0])
    run = compare([server], [0.0, 0.0], [(2, 3, 0), (2, 3, 1)])
    assert (run.preemptions, run.kv_peak_blocks) == (1, 5)
    assert np.sort(np.repeat(*run.gaps.sample())).tolist() == [1.0, 1.0, 1.0, 3.0]


def test_a_first_chunk_is_admitted_where_the_whole_prompt_is_not():
    lengths = [(4, 5, 0), (6, 1, 0)]
    server = {**PLAIN, "max_num_batched_tokens": 5, "kv_blocks": 11, "block_tokens": 1}
    # Beside the four tokens of the first, one of the second fits into the budget; its six blocks into the seven free.
    assert tokens_ms({**server, "reserve_full_prompt": False}, [0.0, 0.0], lengths)[0] == [0.0, 0.0]
    assert tokens_ms({**server, "reserve_full_prompt": True}, [0.0, 0.0], lengths)[0] == [0.0, 0.0]
    scarce = {**server, "kv_blocks": 9}
    assert tokens_ms({**scarce, "reserve_full_prompt": False}, [0.0, 0.0], lengths)[0] == [0.0, 0.0]
    assert tokens_ms({**scarce, "reserve_full_prompt": True}, [0.0, 0.0], lengths)[0] == [0.0, 5.0]


def test_a_request_that_comes_as_a_step_ends_joins_the_next():
    server = {**PLAIN, "step": [{"base_ms": 0.1}]}
    # In doubles 0.1 + 0.1 + 0.1 is later than 0.3.
    assert tokens_ms(server, [0.0, 0.3, 0.300000002], [(1, 9, 0), (1, 1, 0), (1, 1, 0)])[0] == [0.0, 0.3, 0.4]
    near = run_engines(
        engine(server),
        np.array([0.0, 0.3000000005]) / 1e3,
        np.ones(2, int),
        np.array([9, 1]),
        np.zeros(2, int),
    )
    assert near.start_s[1] * 1e3 == pytest.approx(0.3, abs=1e-9)


def test_a_request_goes_to_the_engine_with_the_fewest():
    server = {**PLAIN, "count": 2, "max_num_seqs": 1, "step": [{"base_ms": 1.0}]}
    ours = compare(
        [server, PLAIN], [0.0, 0.0, 0.0, 0.0, 0.002], [(1, 2, 0), (1, 9, 0), (1, 9, 0), (1, 1, 0), (1, 1, 0)]
    )
    # The fourth waits at the first engine, whose end at 2 ms comes before the arrival of the fifth: it has one, as
    # the others have, and is the first of equals.
    assert ours.start_s.tolist() == pytest.approx([0.0, 0.0, 0.0, 0.002, 0.003])
    assert [use.entry for use in ours.engines] == [0, 0, 1]


def test_engines_without_requests_are_not_made():
    run = run_engines(engine({**PLAIN, "count": 10**6}), np.array([0.0]), *np.ones((3, 1), int))
    assert len(run.engines) == 1


@pytest.mark.parametrize("steps", [10**6, 10**9])
def test_a_million_steps_are_few_stretches(steps):
    server = engine({**PLAIN, "kv_blocks": 10**9, "step": [{"base_ms": 1.0, "context_token_ms": 1e-9}]})
    run = run_engines(server, np.array([0.0, 2.0]), *np.array([[1, 1], [steps, steps], [0, 0]]))
    assert len(run.gaps.steps) < 6
    # Every step processes steps · 2 tokens but for those in which one runs alone.
    assert run.engines[0].sequences == 2 * steps
    alone_ms = steps + 1e-9 * (steps * (steps + 1) // 2 - 1)
    assert run.last_token_s[0] * 1e3 >= alone_ms * (1 - 1e-12)


@in_blocks("seed", range(60), kept=2)
def test_percentiles_of_gaps_are_those_of_their_sample(seed):
    servers, times, lengths = instance(seed)
    tokens = np.array(lengths, dtype=np.int64).T
    gaps = run_engines([engine(server) for server in servers], np.array(times), *tokens).gaps
    if not gaps.count:
        return
    ordered = np.sort(np.repeat(*gaps.sample()))
    places = {f"p{percent}": -(-percent * len(ordered) // 100) - 1 for percent in (1, 50, 99)}
    expected = {"mean": ordered.mean(), "max": ordered[-1]}
    expected |= {name: ordered[place] for name, place in places.items()}
    shares = {name: Fraction(int(name[1:]), 100) for name in places}
    assert gaps.statistics(shares) == pytest.approx(expected, rel=1e-9)
