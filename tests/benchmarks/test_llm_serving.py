"""An engine on this processor beside its simulation: a short trial of the benchmark, and its errors."""

from dataclasses import astuple

import numpy as np
import pytest

from benchmarks import llm_serving
from benchmarks.llm_serving import Case, Requests, Times, errors, predict, predicted, server_of
from benchmarks.sections import BENCHMARKS
from torchsplit_core.serving.llm_endpoint.client import StreamedAnswer
from torchsplit_core.serving.llm_engine.step_log import LoggedStep
from torchsplit_core.simulation.continuous import run_engines
from torchsplit_core.values import StepLine

LIMITS = {
    "max_num_seqs": 2, "max_num_batched_tokens": 64, "kv_blocks": 64, "block_tokens": 16, "max_model_len": 512,
}  # fmt: skip


def test_predictions_are_the_simulations():
    requests = Requests(np.array([0.0, 0.0, 0.0]), np.array([10, 10, 10]), np.array([2, 3, 2]))
    times = predicted(server_of(LIMITS, StepLine(10.0)), requests)
    # Two sequences at once: the third begins when the first is done, after two steps of 10 ms.
    assert [times.ttft, times.ttft_p90, times.tpot] == pytest.approx([(10 + 10 + 30) / 3, 30, 10])
    assert [times.whole, times.whole_p90] == pytest.approx([(20 + 30 + 40) / 3, 40])


def test_errors_are_relative_to_what_was_measured():
    measured = Times(100, 100, 10, 1000, 2000)
    assert errors(Times(110, 100, 5, 1000, 1000), measured) == pytest.approx([0.1, 0, -0.5, 0, -0.5])


def test_a_case_is_predicted_from_its_neighbours_and_from_its_own_steps():
    def case_of(load, line, rate):
        times = np.arange(1, 31) / rate
        requests = Requests(times, np.full(30, 20), np.full(30, 5))
        run = run_engines(server_of(LIMITS, line), *astuple(requests), np.zeros(30, dtype=np.int64))
        # The way of 3 ms is in the first token and in the last.
        answers = tuple(
            StreamedAnswer(float(due), float(due), (first + 0.003, last + 0.003), 20, 5, 200, "")
            for due, first, last in zip(times, run.first_token_s, run.last_token_s, strict=True)
        )
        rng = np.random.default_rng(1)
        # Steps of which some end when a first token is made.
        ends = [*run.first_token_s, *(-1.0 - 0.01 * number for number in range(30))]
        steps = [step_of(line, int(rng.integers(0, 60)), int(rng.integers(0, 3)), float(end)) for end in ends]
        return Case("short", load, rate, requests, answers, tuple(steps))

    def step_of(line, prompt, sequences, end_s):
        time_ms = line.base_ms + line.prompt_token_ms * prompt + line.sequence_ms * sequences
        return LoggedStep(end_s - time_ms / 1e3, end_s, prompt, sequences, 0, 0.0, sequences, 0)

    slow, fast = StepLine(8.0, 0.1, 1.0), StepLine(4.0, 0.05, 0.5)
    cases = [case_of(0.3, slow, 5.0), case_of(0.6, fast, 9.0), case_of(0.8, slow, 12.0)]
    prediction = predict(LIMITS, cases, 1)
    # The way is found, the case's own steps tell all, and its neighbours' speed is what is left.
    assert prediction.way_ms == pytest.approx(3.0)
    assert errors(prediction.from_own_steps, cases[1].measured) == pytest.approx([0] * 5, abs=1e-6)
    assert min(errors(prediction.from_neighbours, cases[1].measured)) > 0.5

    # A round more of a case is more requests of it.
    joined = cases[1].joined(cases[1])
    assert len(joined.answers) == len(joined.requests.times_s) == 60 and len(joined.steps) == 120
    assert joined.measured.ttft == pytest.approx(cases[1].measured.ttft)


@pytest.mark.repeated
@pytest.mark.torch
def test_a_short_trial_prints_what_was_measured_and_predicted(capsys):
    (section,) = (section for section in BENCHMARKS if section.module == "benchmarks.llm_serving")
    assert llm_serving.main(section.quick) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith("| short | 0.6 |")]
    assert len(rows) == 1 and rows[0].count("|") == lines[0].count("|")
    assert "Median error, predicted" in "".join(lines) and "Load average of this machine" in lines[-1]
    assert [line for line in lines if line.startswith("| short, 0.6: neighbours |")]
