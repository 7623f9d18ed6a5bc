"""An engine on this processor beside its simulation: a short trial of the benchmark, and its errors."""

import numpy as np
import pytest

from benchmarks import llm_serving
from benchmarks.llm_serving import Requests, Times, errors, predicted, server_of
from benchmarks.sections import BENCHMARKS
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


@pytest.mark.torch
def test_a_short_trial_prints_what_was_measured_and_predicted(capsys):
    (section,) = (section for section in BENCHMARKS if section.module == "benchmarks.llm_serving")
    assert llm_serving.main(section.quick) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith("| short | 0.6 |")]
    assert len(rows) == 1 and rows[0].count("|") == lines[0].count("|")
    assert "Median error, calibrated on the others" in "".join(lines)
    assert [line for line in lines if line.startswith("| the other cases |")]
