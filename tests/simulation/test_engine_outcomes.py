"""What a simulation answers of models with engines, reckoned again from the slow simulator's tokens; and faults."""

import json
import math
from typing import Any

import numpy as np
import pytest

from tests.support.simulation import token_steps
from torchsplit_core.files import read_text, write_text
from torchsplit_core.simulation import simulate
from torchsplit_core.simulation.continuous.engine_model import prepare_engine_model
from torchsplit_core.simulation.continuous.request_rows import COLUMNS, request_rows
from torchsplit_core.values import InputFault, SimulationOutcome, SimulationRequest

PROMPTS, OUTPUTS = [30, 5, 60, 1], [12, 1, 40]
ENGINE = {
    "id": "e", "model": "chat", "stage": "whole", "kind": "continuous", "max_num_seqs": 4,
    "max_num_batched_tokens": 32, "kv_blocks": 12, "block_tokens": 16,
    "step": [
        {"base_ms": 6.0, "context_token_ms": 0.01}, {"base_ms": 1.0, "prompt_token_ms": 0.5, "sequence_ms": 1.5},
    ],
}  # fmt: skip
CHAT = {
    "name": "chat", "stages": ["whole"], "slo_ms": 900.0, "max_ttft_ms": 1200.0, "max_tpot_ms": 12.0,
    "arrivals": {"kind": "trace", "times_s": [0.01 * place + 3 for place in range(50)]},
    "prompt_tokens": {"kind": "list", "values": PROMPTS}, "output_tokens": {"kind": "list", "values": OUTPUTS},
    "cached_prompt_tokens": {"kind": "constant", "value": 3},
}  # fmt: skip
BERT = {"name": "bert", "stages": ["whole"], "arrivals": {"kind": "poisson", "rate_rps": 5.0}}
BATCHES = {"id": "b", "model": "bert", "stage": "whole", "max_batch": 1, "batch_ms": {"1": 20.0}}
SINGLE = {"kind": "constant", "value": 1}
DRAWN = {
    "arrivals": {"kind": "poisson", "rate_rps": 3.0}, "prompt_tokens": {"kind": "lognormal", "mean": 40.0, "cv": 1.0},
    "output_tokens": {"kind": "lognormal", "mean": 10.0, "cv": 0.5},
}  # fmt: skip


def question(
    chat: dict[str, Any] | None = None, engine: dict[str, Any] | None = None, **more: Any
) -> SimulationRequest:
    """A request of one model and its engine, with these fields changed; None leaves a field out."""
    models = [{**CHAT, **(chat or {})}]
    servers = [{**ENGINE, **(engine or {})}]
    data = {
        "format": "torchsplit.simulation_request",
        "version": 1,
        "models": models,
        "servers": servers,
        **more,
    }
    for entry in [*data["models"], *data["servers"]]:
        for name in [name for name, value in entry.items() if value is None]:
            del entry[name]
    request: SimulationRequest = read_text(json.dumps(data))[1]
    return request


def nearest_rank(values: list[float], percent: int) -> float:
    return sorted(values)[math.ceil(percent * len(values) / 100) - 1]


def described(values: list[float]) -> dict[str, float]:
    percentiles = {f"p{percent}": nearest_rank(values, percent) for percent in (50, 90, 95, 99)}
    return {"mean": sum(values) / len(values), **percentiles, "max": max(values)}


def as_dict(times: Any) -> dict[str, float]:
    return {name: getattr(times, name) for name in ("mean", "p50", "p90", "p95", "p99", "max")}


@pytest.mark.parametrize("count", [1, 2])
def test_every_figure_is_reckoned_again_from_the_tokens(count):
    outcome = simulate(question(engine={"count": count}, warmup_share=0.25))
    model, server = outcome.models[0], outcome.servers[0]
    times = CHAT["arrivals"]["times_s"]
    lengths = [(PROMPTS[place % 4], OUTPUTS[place % 3], 3) for place in range(50)]
    requests, engines = token_steps.run([{**ENGINE, "count": count}], times, lengths)
    arrivals = dict(zip(range(50), (1000 * time for time in times), strict=True))
    counted = [request for request in requests if request.number >= 12]
    ttft = [float(request.times[0]) - arrivals[request.number] for request in counted]
    response = [float(request.times[-1]) - arrivals[request.number] for request in counted]
    tpot = {
        request.number: float(request.times[-1] - request.times[0]) / (request.output - 1)
        for request in counted
        if request.output > 1
    }
    gaps = [
        float(late - early)
        for request in counted
        for early, late in zip(request.times, request.times[1:], strict=False)
    ]
    assert as_dict(model.ttft_ms) == pytest.approx(described(ttft))
    assert as_dict(model.response_ms) == pytest.approx(described(response))
    assert as_dict(model.tpot_ms) == pytest.approx(described(list(tpot.values())))
    assert as_dict(model.itl_ms) == pytest.approx(described(gaps))
    waits = [float(request.start) - arrivals[request.number] for request in counted]
    assert model.wait_ms.mean == pytest.approx(sum(waits) / len(waits))
    good = [
        first <= 1200 and tpot.get(request.number, 0) <= 12
        for first, request in zip(ttft, counted, strict=True)
    ]
    assert 0 < model.goodput < 1 and model.goodput == sum(good) / len(good)
    assert model.slo_attainment == sum(whole <= 900 for whole in response) / len(response)
    span_s = (max(float(request.times[-1]) for request in requests) - 3000) / 1e3
    assert model.prompt_tokens_per_s == pytest.approx(sum(length[0] for length in lengths) / span_s)
    assert model.output_tokens_per_s == pytest.approx(sum(length[1] for length in lengths) / span_s)
    assert model.throughput_rps == pytest.approx(50 / span_s)
    assert (model.completed, model.cut_requests) == (50, 0)
    assert model.preemptions == sum(engine.preemptions for engine in engines) > 0
    assert server.kv_peak_blocks == max(engine.peak for engine in engines)
    steps = sum(engine.steps for engine in engines)
    assert server.mean_batch == model.mean_batch == sum(engine.sequences for engine in engines) / steps
    busy_s = sum(float(engine.busy) for engine in engines) / 1e3
    assert server.utilisation == pytest.approx(busy_s / count / span_s)
    at_once, _ = token_steps.run([{**ENGINE, "count": count}], [0.0] * 50, lengths)
    assert model.capacity_rps == pytest.approx(
        50 / (max(float(request.times[-1]) for request in at_once) / 1e3)
    )
    assert model.offered_rps == pytest.approx(100)
    assert read_text(write_text(outcome)) == ("torchsplit.simulation", outcome)


def test_rows_have_each_request_on_the_axis_of_its_trace():
    request = question()
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in request_rows(request)]
    requests, _ = token_steps.run(
        [ENGINE], CHAT["arrivals"]["times_s"], [(PROMPTS[i % 4], OUTPUTS[i % 3], 3) for i in range(50)]
    )
    assert [row["arrival_s"] for row in rows] == CHAT["arrivals"]["times_s"]
    assert [row["start_s"] for row in rows] == pytest.approx([float(slow.start) / 1e3 for slow in requests])
    assert [row["first_token_s"] for row in rows] == pytest.approx(
        [float(slow.times[0]) / 1e3 for slow in requests]
    )
    assert [row["last_token_s"] for row in rows] == pytest.approx(
        [float(slow.times[-1]) / 1e3 for slow in requests]
    )


def test_engines_and_batches_beside_each_other_are_as_each_alone():
    alone = question()
    both = question(models=[CHAT, BERT], servers=[ENGINE, BATCHES], requests_per_model=500)
    outcome = simulate(both)
    assert outcome.models[0] == simulate(alone).models[0]
    assert outcome.models[1].ttft_ms is None and outcome.models[1].response_ms.p90 is None
    assert outcome.models[1].offered_rps == 5.0
    assert [server.id for server in outcome.servers] == ["e", "b"]
    assert '"goodput"' not in write_text(simulate(question(models=[BERT], servers=[BATCHES])))


def drawn(**more: Any) -> SimulationOutcome:
    return simulate(question({**DRAWN, "cached_prompt_tokens": None}, **{"requests_per_model": 200, **more}))


def test_drawn_lengths_repeat_with_their_seed_and_are_cut_to_the_cache():
    outcome = drawn()
    model = outcome.models[0]
    assert outcome.models == drawn().models
    assert drawn(seed=1).models[0].ttft_ms != model.ttft_ms
    assert model.completed == 1000 and 0 < model.cut_requests < 200
    assert any("were drawn longer than an engine takes" in warning for warning in outcome.warnings)
    for widths in (model.ttft_ci95_ms, model.tpot_ci95_ms, model.response_ci95_ms):
        assert widths.mean > 0 and widths.p99 > 0
    tokens = prepare_engine_model(question(DRAWN, requests_per_model=20_000), 0).tokens(0)
    assert int((tokens.prompts + tokens.outputs).max()) == 12 * 16
    assert tokens.prompts.min() >= 1 and tokens.outputs.min() >= 1
    # Rounded up, so half a token more on average; the few longest are cut.
    assert tokens.outputs.mean() == pytest.approx(10.5, abs=0.2)
    assert tokens.prompts.mean() == pytest.approx(40, abs=1.5)


def test_only_what_is_drawn_is_cut():
    fixed = {"kind": "constant", "value": 100}
    prompts = prepare_engine_model(question({**DRAWN, "output_tokens": fixed}), 0).tokens(0)
    outputs = prepare_engine_model(
        question({**DRAWN, "prompt_tokens": fixed}, {"max_model_len": 110}), 0
    ).tokens(0)
    assert set(prompts.outputs.tolist()) == {100} and prompts.prompts.max() == 92
    assert set(outputs.prompts.tolist()) == {100} and outputs.outputs.max() == 10
    lists = prepare_engine_model(question({"output_tokens": fixed}, {"kv_blocks": 100}), 0).tokens(0)
    assert lists.prompts.tolist()[:5] == [*PROMPTS, PROMPTS[0]] and lists.cut == 0


def test_a_single_server_queue_waits_as_theory_says():
    # Sequences of one token, one at a time: M/D/1, whose mean wait is ρ · s / (2 · (1 - ρ)).
    chat = {
        "arrivals": {"kind": "poisson", "rate_rps": 70.0},
        "prompt_tokens": SINGLE,
        "output_tokens": SINGLE,
    }
    outcome = simulate(
        question(
            chat, {"max_num_seqs": 1, "step": [{"base_ms": 10.0}]}, requests_per_model=20_000, replications=10
        )
    )
    model = outcome.models[0]
    assert model.capacity_rps == pytest.approx(100)
    assert abs(model.ttft_ms.mean - (10 + 0.7 * 10 / (2 * 0.3))) < 2 * model.ttft_ci95_ms.mean
    assert model.tpot_ms.mean is None and model.itl_ms.mean is None
    assert model.goodput == pytest.approx(1.0, abs=0.01)


def test_random_arrivals_beyond_the_capacity_have_no_times():
    outcome = drawn(models=[{**CHAT, **DRAWN, "arrivals": {"kind": "poisson", "rate_rps": 500.0}}])
    model = outcome.models[0]
    assert model.stable is False and model.ttft_ms.mean is None and model.goodput is None
    assert model.response_ms.mean is None and model.itl_ms.p99 is None
    assert model.output_tokens_per_s > 0 and "grows without limit" in outcome.warnings[0]


def test_one_replication_stands_for_all_where_nothing_is_drawn():
    chat = {"arrivals": {"kind": "deterministic", "rate_rps": 2.0}}
    model = simulate(question(chat, requests_per_model=100)).models[0]
    assert model.completed == 500 and model.ttft_ci95_ms.p95 == 0
    assert simulate(question(chat, requests_per_model=100, replications=1)).models[0].ttft_ms == model.ttft_ms


@pytest.mark.parametrize("limit", ["slo_ms", "max_ttft_ms", "max_tpot_ms"])
def test_the_highest_load_keeps_each_limit(limit):
    limits = {"slo_ms": None, "max_ttft_ms": None, "max_tpot_ms": None, limit: CHAT[limit]}
    request = question({**DRAWN, **limits}, requests_per_model=300, find={"percentile": 90})
    load = simulate(request).highest_load
    assert load.high <= 1.01 * load.low
    times = {"slo_ms": "response_ms", "max_ttft_ms": "ttft_ms", "max_tpot_ms": "tpot_ms"}[limit]
    for factor, keeps in ((load.low, True), (load.high, False)):
        rate = {"kind": "poisson", "rate_rps": 3.0 * factor}
        model = simulate(question({**DRAWN, **limits, "arrivals": rate}, requests_per_model=300)).models[0]
        percentile_ms = getattr(model, times).p90
        assert (percentile_ms is not None and percentile_ms <= CHAT[limit]) is keeps


def test_the_front_is_passed_before_the_engines():
    with_front = simulate(question({"front_ms": 2.0})).models[0]
    without = simulate(question()).models[0]
    assert with_front.ttft_ms.p50 > without.ttft_ms.p50
    calm = {"arrivals": {"kind": "trace", "times_s": [0.0, 5.0]}, "cached_prompt_tokens": None}
    ahead = simulate(question({**calm, "front_ms": 2.0}, warmup_share=0)).models[0]
    assert ahead.ttft_ms.mean == pytest.approx(
        simulate(question(calm, warmup_share=0)).models[0].ttft_ms.mean + 2
    )
    assert ahead.wait_ms.mean == pytest.approx(0)


SHORT = {"kind": "lognormal", "mean": 5.0, "cv": 1.0}


@pytest.mark.parametrize(
    ("chat", "engine", "message"),
    [
        ({"prompt_tokens": {"kind": "list", "values": [3, 0]}}, {}, "models.chat.prompt_tokens.values[1]: is 0, below"),
        ({"output_tokens": {"kind": "constant", "value": 0}}, {}, "models.chat.output_tokens.value: is 0, below"),
        ({"prompt_tokens": None}, {}, "models.chat.prompt_tokens: is missing, and e is an engine"),
        ({}, {"kv_blocks": 6}, "request 2 (the first is 0) has 60 prompt tokens and 40 output tokens, which take 7 "),
        ({}, {"max_model_len": 99}, "request 2 (the first is 0) has 60 prompt tokens and 40 output tokens, and e "),
        ({"prompt_tokens": SHORT}, {"max_model_len": 40}, "has at least 1 prompt token and 40 output tokens, and e"),
        ({"prompt_tokens": SHORT, "output_tokens": SHORT}, {"max_model_len": 1}, "e.max_model_len: leaves room for 1"),
        ({"prompt_tokens": SHORT, "output_tokens": SHORT}, {"kv_blocks": 1, "block_tokens": 1}, "e.kv_blocks: leaves"),
        ({"stages": ["a", "whole"]}, {}, "models.chat.stages: has 2 stages, and e is an engine"),
        ({}, {"stage": "a"}, "servers.e.stage: is 'a', not a stage of chat"),
        ({}, {"model": "chatt"}, "is given, and no engine serves chat"),
        ({}, {"step": [{"base_ms": 0.0}]}, "servers.e.step: takes 0 ms whatever is in a step"),
        ({"output_tokens": SINGLE}, {"step": [{"base_ms": 0, "sequence_ms": 1}]}, "takes 0 ms in every step of these"),
        ({"prompt_tokens": {"kind": "constant", "value": 10**9}}, {"kv_blocks": 10**9}, "takes 1.56e+09 steps of 32"),
        ({"output_tokens": {"kind": "constant", "value": 10**15}}, {"kv_blocks": 10**15}, "makes up to 5e+16 tokens"),
    ],
)  # fmt: skip
def test_a_fault_is_one_clear_message(chat, engine, message):
    with pytest.raises(InputFault) as fault:
        simulate(question(chat, engine))
    assert message in str(fault.value)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"step": []}, "servers[0].step: is empty"),
        ({"step": [{"base_ms": -1.0}]}, "servers[0].step[0].base_ms: is -1.0, below the least value 0"),
        ({"step": [{"prompt_token_ms": 1.0}]}, "servers[0].step[0].base_ms: is missing"),
        ({"kind": "batch"}, "servers[0].kind: is 'batch', not a known value. Known values: continuous."),
        ({"kind": None}, "servers[0].max_batch: is missing"),
        ({"kv_block": 3}, "servers[0].kv_block: is not a known field. Did you mean kv_blocks?"),
        ({"kv_blocks": 0}, "servers[0].kv_blocks: is 0, below the least value 1"),
    ],
)
def test_a_file_of_engines_is_read_strictly(engine, message):
    with pytest.raises(InputFault) as fault:
        question(engine=engine)
    assert message in str(fault.value)


def test_one_model_has_engines_or_batches():
    with pytest.raises(InputFault, match=r"servers\.c: takes batches of chat, and e is an engine of it"):
        simulate(question(servers=[ENGINE, {**BATCHES, "id": "c", "model": "chat"}]))
    with pytest.raises(InputFault, match=r"models\.bert\.max_ttft_ms: is given, and no engine serves bert"):
        simulate(question(models=[{**BERT, "max_ttft_ms": 5.0}], servers=[BATCHES]))


def test_a_file_of_engines_is_written_as_it_is_read():
    request = question({**DRAWN}, {"max_model_len": 100})
    assert read_text(write_text(request))[1] == request
    assert np.isclose(request.engines[0].longest_request, 100)
