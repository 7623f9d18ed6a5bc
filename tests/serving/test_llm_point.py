"""Points of engines on cores: the largest rate at which a load kept the limits, and the line of the engine's steps."""

import os

import numpy as np
import pytest

from tests.support.serving.llm_plans import decoder_in
from torchsplit_core import workflow
from torchsplit_core.engine_plans.engine_figures import EngineRequests
from torchsplit_core.serving.device_binding import bind_cores
from torchsplit_core.serving.llm_endpoint.client import StreamedAnswer
from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings
from torchsplit_core.serving.llm_engine.step_log import LoggedStep
from torchsplit_core.serving.load_test import llm_point
from torchsplit_core.serving.load_test.llm_comparison import line_ms
from torchsplit_core.serving.load_test.llm_point import measure_point
from torchsplit_core.simulation.continuous import run_engines
from torchsplit_core.values import (
    ConstantTokens,
    EngineServer,
    InputFault,
    PoissonArrivals,
    StepLine,
    ignore_progress,
)

LINE = StepLine(4.0, 0.1, 0.5)
LIMITS = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,
    "kv_blocks": 512,
    "block_tokens": 16,
    "max_model_len": 512,
}


def requests(ttft=None, tpot=None):
    lengths = ConstantTokens(40), ConstantTokens(10)
    return EngineRequests(*lengths, None, ttft, tpot, 95.0, PoissonArrivals(1.0), 0)


class Engine:
    """The process of an engine whose steps take LINE; loads that are `stalled` take longer to their first tokens."""

    url, pid = "http://127.0.0.1:9", 0

    def __init__(self, stalled=()):
        self.stalled, self.loads, self.logged = list(stalled), [], []

    def engine(self):
        return LIMITS

    def take_steps(self):
        steps, self.logged = self.logged, []
        return steps

    def send(self, endpoint, load, seed):
        server = EngineServer(
            "e", "m", "whole", 8, 128, 512, (LINE,), reserve_full_prompt=False, max_model_len=512
        )
        times, prompts, outputs = map(np.array, (load.times_s, load.prompt_tokens, load.output_tokens))
        run = run_engines(server, times, prompts, outputs, np.zeros_like(prompts))
        rng = np.random.default_rng(len(self.loads))
        for _ in range(60):
            prompt, sequences = int(rng.integers(0, 128)), int(rng.integers(1, 9))
            step = LoggedStep(0.0, 0.0, prompt, sequences, 50 * sequences, 100.0 * prompt, sequences, 0)
            stall_ms = 400.0 if rng.random() < 0.03 else 0.0
            ends_s = (line_ms((LINE,), step) + stall_ms) / 1e3
            self.logged.append(LoggedStep(0.0, ends_s, *list(step.__getstate__())[2:]))
        late_s = (
            1.0 if len(times) >= llm_point.LEAST_REQUESTS and self.stalled and self.stalled.pop(0) else 0.0
        )
        self.loads.append(load)
        answers = []
        for n, due_s in enumerate(times):
            first, last = due_s + run.ttft_ms[n] / 1e3 + late_s, due_s + run.response_ms[n] / 1e3 + late_s
            tokens = tuple(np.linspace(first, last, outputs[n]))
            answers.append(StreamedAnswer(due_s, due_s, tokens, 40, int(outputs[n]), 200, ""))
        return tuple(answers)

    @property
    def rates(self):
        """Requests/s of the loads that were to verify a rate."""
        longest = (load.times_s for load in self.loads if len(load.times_s) >= llm_point.LEAST_REQUESTS)
        return [len(times) / times[-1] if times[-1] else 0.0 for times in longest]


@pytest.fixture
def point_of(monkeypatch):
    def measured(engine, asked):
        class Entered:
            def __enter__(self):
                return engine

            def __exit__(self, *error):
                pass

        monkeypatch.setattr(llm_point, "llm_engine", lambda settings: Entered())
        monkeypatch.setattr(llm_point, "send_tokens", engine.send)
        settings = LlmEngineSettings("config.json", "llm")
        return measure_point(settings, bind_cores(1), asked, 5.0, ignore_progress)

    return measured


def test_the_line_is_that_of_the_steps_and_the_rate_keeps_the_limits(point_of):
    engine = Engine()
    point = point_of(engine, requests(ttft=60.0, tpot=15.0))
    (line,) = point.engine.step
    # Stalls of another process are no part of it.
    assert (line.base_ms, line.prompt_token_ms, line.sequence_ms) == pytest.approx((4.0, 0.1, 0.5), rel=0.02)
    (rate,) = engine.rates
    assert point.throughput_rps == pytest.approx(rate, rel=0.1)
    assert 0 < point.ttft_ms <= 60.0 and 4.0 < point.tpot_ms <= 15.0
    assert (point.gpu_type, point.profile, point.basis) == ("CPU", "1c", "measured")
    assert (point.engine.kv_blocks, point.engine.max_model_len, point.engine.max_num_seqs) == (512, 512, 8)
    assert not point.engine.reserve_full_prompt


def test_a_rate_whose_load_breaks_a_limit_is_lowered(point_of):
    engine = Engine(stalled=[True, True])
    point = point_of(engine, requests(ttft=60.0))
    first, second, third = engine.rates
    assert second <= llm_point.LESS * first * 1.001 and third <= llm_point.LESS * second * 1.001
    assert point.throughput_rps == pytest.approx(third, rel=0.15)


@pytest.mark.repeated
def test_limits_that_no_rate_keeps_are_named(point_of):
    with pytest.raises(InputFault, match=r"--max-ttft: is 5, and p95 of the requests took 8 ms alone"):
        point_of(Engine(), requests(ttft=5.0))
    with pytest.raises(InputFault, match=r"--max-tpot: is 4, and p95 of the requests took 4\.5\d* ms alone"):
        point_of(Engine(), requests(tpot=4.0))
    engine = Engine(stalled=[True] * llm_point.MOST_TRIES)
    with pytest.raises(InputFault, match=r"--max-ttft: is 60, and p95 .* ms at \d.* requests/s"):
        point_of(engine, requests(ttft=60.0))


def test_without_limits_a_point_is_what_is_completed_when_all_are_there(point_of):
    point = point_of(Engine(), requests())
    assert point.ttft_ms is None and point.tpot_ms is None
    # Eight sequences a step and 40 prompt tokens a request: a step of each of its tokens, shared by eight.
    assert 60 < point.throughput_rps < 90


def test_a_request_that_fails_and_cores_that_are_not_here_are_said(point_of, monkeypatch):
    engine, good = Engine(), Engine.send

    def failing(endpoint, load, seed):
        return tuple(
            StreamedAnswer(a.due_s, a.sent_s, (), None, None, 400, "answered 400: too long")
            for a in good(engine, endpoint, load, seed)
        )

    engine.send = failing
    with pytest.raises(InputFault, match=r"failed 1 of 1 requests \(1: answered 400: too long\)"):
        point_of(engine, requests(ttft=60.0))
    with pytest.raises(InputFault, match="--device: names 600 cores"):
        bind_cores(600)


@pytest.mark.repeated
@pytest.mark.torch
def test_an_engine_of_this_host_is_measured(tmp_path):
    before = os.sched_getaffinity(0)
    settings = LlmEngineSettings(decoder_in(tmp_path), "llm", 4, 64, 64)
    points = workflow.profile_llm(settings, requests(ttft=5e3, tpot=5e3), (1,), 1.0)
    (point,) = points.points
    assert point.throughput_rps > 0 and 0 < point.ttft_ms <= 5e3 and 0 < point.tpot_ms <= 5e3
    assert sum(point.engine.step[0].__getstate__()) > 0 and point.engine.max_model_len == 512
    assert (points.source, points.max_ttft_ms, points.percentile) == (settings.source, 5e3, 95.0)
    assert os.sched_getaffinity(0) == before
