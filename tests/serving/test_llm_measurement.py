"""LLMs under load: their requests, what is predicted and measured of these, and where the two part."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.serving.llm_plans import LINE, LLM, decoder_in, llm_plan
from torchsplit_core import workflow
from torchsplit_core.cli.serving import format_model
from torchsplit_core.files import read_text, write_text
from torchsplit_core.serving.device_binding import bind_slices
from torchsplit_core.serving.llm_endpoint.client import StreamedAnswer
from torchsplit_core.serving.llm_engine.step_log import LoggedStep
from torchsplit_core.serving.load_test.llm_comparison import (
    LlmResult,
    line_ms,
    measured_llm,
    simulate_traffic,
    with_llms,
)
from torchsplit_core.serving.load_test.llm_load import cache_warnings, llm_traffic, without_llms
from torchsplit_core.serving.load_test.measurement import arrival_times
from torchsplit_core.serving.plan import plan_serving
from torchsplit_core.serving.settings import LoadSettings, ServeSettings
from torchsplit_core.values import ConstantTokens, FleetEntry, InputFault, LognormalTokens, PlanRequest
from torchsplit_core.values.serving.measurement import Measurement

HOP_MS = 1.5
TIMES = tuple(0.05 * number for number in range(100))


@pytest.fixture
def planned(tmp_path):
    return llm_plan(decoder_in(tmp_path))


def traffic_of(plan, request, times=TIMES):
    serving = plan_serving(plan, request, bind_slices(plan, "cpu"))
    return llm_traffic(plan, request, serving, {"chat": times}, 0)


def answers_of(traffic, run, slower=1.0, late_ms=HOP_MS):
    """The answers of the simulation, each time to the first token so many ms later, tokens so many times slower."""
    answers = []
    for number, due_s in enumerate(traffic.load.times_s):
        count = traffic.load.output_tokens[number]
        first = due_s + (run.ttft_ms[number] + late_ms) / 1e3
        gap_s = slower * (run.response_ms[number] - run.ttft_ms[number]) / 1e3 / max(1, count - 1)
        times = tuple(7.0 + first + gap_s * place for place in range(count))
        prompt = traffic.load.prompt_tokens[number]
        answers.append(StreamedAnswer(7.0 + due_s, 7.0 + due_s, times, prompt, count, 200, ""))
    return tuple(answers)


def step_of(ms, prompt=0, sequences=1):
    return LoggedStep(0.0, ms / 1e3, prompt, sequences, 40, 0.0, sequences + (prompt > 0), 0)


def measured(traffic, answers, steps):
    result = LlmResult(answers, {engine.id: steps for engine in traffic.engines}, HOP_MS, 5.0)
    return with_llms(Measurement("0" * 64, 5.0, 1.0, "here", ()), (traffic,), {"chat": result})


def test_requests_have_the_lengths_of_the_llm_cut_to_what_its_engines_take(planned):
    plan, request = planned
    varied = replace(LLM, prompt_tokens=LognormalTokens(300.0, 1.0), output_tokens=LognormalTokens(60.0, 0.5))
    request = replace(request, models=(replace(request.models[0], llm=varied),))
    (traffic,) = traffic_of(plan, request)
    prompts, outputs = traffic.load.prompt_tokens, traffic.load.output_tokens
    assert len(set(prompts)) > 50 and max(p + o for p, o in zip(prompts, outputs, strict=True)) == 512
    assert traffic_of(plan, request) == (traffic,) and traffic.simulated
    assert [engine.step for engine in traffic.engines] == [(LINE,), (LINE,)]
    cached = replace(traffic, llm=replace(LLM, cached_prompt_tokens=ConstantTokens(10)))
    assert not list(cache_warnings([traffic])) and "no prefix cache" in next(cache_warnings([cached]))


def test_an_llm_gets_the_lesser_of_demand_and_planned_rate(planned):
    plan, request = planned
    serving, load = plan_serving(plan, request, bind_slices(plan, "cpu")), LoadSettings(200.0, 2.0)
    planned_rps = {"chat": plan.models[0].throughput_rps}
    assert planned_rps == {"chat": 16.0}
    for demand, rate in ((12.0, 24.0), (40.0, 32.0)):
        of_demand = replace(request, models=(replace(request.models[0], demand_rps=demand),))
        times = arrival_times(of_demand, serving, load, lambda model: model.expected_arrivals, planned_rps)
        assert len(times["chat"]) / 200.0 == pytest.approx(rate, rel=0.05)


def test_lengths_that_are_not_known_are_asked_for(planned):
    plan, request = planned
    llm = replace(LLM, config=None, prompt_tokens=None)
    request = replace(request, models=(replace(request.models[0], llm=llm),))
    with pytest.raises(InputFault, match=r"models: chat: llm.prompt_tokens: is missing"):
        traffic_of(plan, request)


def test_what_agrees_is_not_named(planned):
    (traffic,) = traffic_of(*planned)
    run = simulate_traffic(traffic)
    steps = [step_of(line_ms((LINE,), step_of(0.0)))] * 10
    outcome = measured(traffic, answers_of(traffic, run), steps)
    (model,) = outcome.models
    assert outcome.disagreements == () and model.errors == 0 and model.percentile == 95.0
    for predicted, taken in (
        (model.predicted_ttft_ms, model.measured_ttft_ms),
        (model.predicted_tpot_ms, model.measured_tpot_ms),
    ):
        assert taken.value == pytest.approx(predicted.value) == pytest.approx(predicted.p95)
    # 30 prompt tokens and one sequence, without a queue, and the way.
    assert model.predicted_ttft_ms.p50 == pytest.approx(2.0 + 30 * 0.05 + HOP_MS)
    assert model.predicted_tpot_ms.p50 == pytest.approx(2.1)
    assert model.simulated_ms.p50 == pytest.approx(model.measured_ms.p50)
    assert (model.offered_rps, model.predicted_rps, model.hop_ms) == (20.0, 16.0, HOP_MS)
    first, second = outcome.servers
    assert (first.id, first.planned_batch_ms, first.batch_ms) == ("host0/1c@0", 2.1, pytest.approx(2.1))
    assert first.simulated_utilisation > second.simulated_utilisation == 0.0
    assert first.mean_batch == 1.0 and second.simulated_batch is None and first.wait_ms is None
    assert read_text(write_text(outcome))[1] == outcome


def test_slow_steps_are_told_from_waiting(planned):
    (traffic,) = traffic_of(*planned)
    answers = answers_of(traffic, simulate_traffic(traffic), slower=1.5, late_ms=9.0)
    slow = measured(traffic, answers, [step_of(3.2)] * 10)
    assert [(fault.where, fault.server) for fault in slow.disagreements] == [
        ("service", "host0/1c@0"), ("service", "host0/1c@1"),
    ]  # fmt: skip
    assert "its steps take 3.2 ms, +52% against 2.1 ms by its step line" in slow.disagreements[0].message
    (waiting,) = measured(traffic, answers, [step_of(2.1)] * 10).disagreements
    assert (
        waiting.where == "wait"
        and "TTFT 12.5 ms against 5 predicted, TPOT 3.15 ms against 2.1" in waiting.message
    )
    assert waiting.message.endswith("(p95), and its steps take what was planned")


def test_requests_without_a_result_are_counted_with_why(planned):
    (traffic,) = traffic_of(*planned)
    answers = list(answers_of(traffic, simulate_traffic(traffic)))
    answers[50] = StreamedAnswer(9.5, 9.5, (), None, None, 503, "answered 503: busy")
    answers[51] = StreamedAnswer(9.55, 9.55, (9.6,), None, None, 200, "ended early")
    outcome = measured(traffic, tuple(answers), [step_of(2.1)])
    (model,), (fault,) = outcome.models, outcome.disagreements
    assert (model.errors, model.statuses) == (2, ((0, 1), (200, 98), (503, 1)))
    assert (
        fault.where == "load"
        and "2 requests got no result (1: answered 503: busy, 1: ended early)" in fault.message
    )
    nothing = [replace(answer, token_times_s=(), problem="gone", status=0) for answer in answers]
    model = measured_llm(traffic, None, LlmResult(tuple(nothing), {}, HOP_MS, 5.0))
    assert model.measured_ttft_ms is None and model.measured_tpot_ms is None and model.measured_ms.p95 is None
    assert "n/a measured" in format_model(model)


def test_points_alone_predict_at_most_what_they_measured(tmp_path):
    (traffic,) = traffic_of(*llm_plan(decoder_in(tmp_path), config=False))
    assert not traffic.simulated and simulate_traffic(traffic) is None
    line = traffic.engines[0]
    assert line.step == () and line.longest_request == 512
    (simulated,) = traffic_of(*llm_plan(decoder_in(tmp_path)))
    answers = answers_of(simulated, simulate_traffic(simulated))
    outcome = measured(traffic, answers, [step_of(2.1)])
    (model,) = outcome.models
    assert (model.predicted_ttft_ms.value, model.predicted_tpot_ms.value) == (60.0, 9.0)
    assert model.simulated_ms.p50 is None and outcome.servers[0].planned_batch_ms is None
    assert outcome.disagreements == ()
    (late,) = measured(
        traffic, answers_of(simulated, simulate_traffic(simulated), late_ms=90.0), []
    ).disagreements
    assert "TTFT 93.5 ms against 60 predicted (p95), and its steps are not known" in late.message


def test_batch_models_are_left_by_themselves(planned):
    plan, request = planned
    outcome, rest = without_llms(plan, request)
    assert rest.models == () and outcome.models == () and not any(gpu.slices for gpu in outcome.gpus)


@pytest.mark.repeated
@pytest.mark.torch
def test_a_plan_of_engines_and_a_batch_model_is_measured(tmp_path):
    from tests.support.serving.plans import Placed, cpu_plan

    plan, request = llm_plan(decoder_in(tmp_path), cores=1)
    batch_plan, batch_request = cpu_plan([Placed("diamond")], {"diamond": "sample:diamond"}, demand_rps=20.0)
    # One plan of two hosts by hand: stand-ins run every slice.
    gpus = (*plan.gpus, *(replace(gpu, id="host1") for gpu in batch_plan.gpus))
    both = replace(plan, gpus=gpus, models=(*plan.models, *batch_plan.models))
    fleet = (*request.gpus, FleetEntry("CPU-2c", id="host1"))
    together = PlanRequest(fleet, (*request.models, *batch_request.models))
    outcome = workflow.measure(both, together, ServeSettings(stand_in="cpu", port=0), LoadSettings(2.0))
    batch, chat = outcome.models
    assert (batch.name, batch.errors, batch.percentile) == ("diamond", 0, None)
    assert (chat.name, chat.errors, chat.percentile) == ("chat", 0, 95.0) and chat.hop_ms > 0
    assert chat.offered_rps == pytest.approx(8.0, abs=5.0) and chat.predicted_rps <= 8.0
    for figure in (
        chat.predicted_ttft_ms,
        chat.measured_ttft_ms,
        chat.predicted_tpot_ms,
        chat.measured_tpot_ms,
    ):
        assert 0 < figure.p50 <= figure.value == figure.p95
    servers = {server.id: server for server in outcome.servers}
    engine = servers["host0/1c@0"]
    assert (
        engine.model == "chat"
        and engine.mean_batch >= 1
        and engine.batch_ms > 0
        and 0 < engine.utilisation <= 1
    )
    assert engine.planned_batch_ms == pytest.approx(2.1, abs=2.0)
    assert servers["host1/1c@0"].model == "diamond"
    assert np.isfinite(chat.measured_ms.p95) and read_text(write_text(outcome))[1] == outcome
