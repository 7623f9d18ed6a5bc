"""Step lines from logs of steps: exact where the steps follow a line, and never below zero."""

from dataclasses import astuple, replace

import numpy as np
import pytest

from torchsplit_core.serving.llm_engine.step_fit import LEAST_STEPS, fit_step_line
from torchsplit_core.serving.llm_engine.step_log import LoggedStep, StepLog
from torchsplit_core.values import InputFault, StepLine


def steps_of(line, count=200, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    steps = []
    for _ in range(count):
        prompt, sequences = int(rng.integers(0, 300)), int(rng.integers(0, 9))
        context, pairs = int(sequences * rng.integers(50, 500)), float(prompt * rng.integers(1, 400))
        work = (1.0, prompt, sequences, context, pairs)
        time_ms = float(np.dot(astuple(line), work)) * (1 + noise * rng.standard_normal())
        steps.append(LoggedStep(1.0, 1.0 + time_ms / 1e3, prompt, sequences, context, pairs, 0, 0))
    return steps


def test_a_line_is_recovered():
    line = StepLine(4.0, 0.05, 0.3, 2e-4, 3e-6)
    fit = fit_step_line(steps_of(line))
    assert astuple(fit.line) == pytest.approx(astuple(line), rel=1e-6)
    assert fit.steps == 200 and fit.median_error < 1e-9 and abs(fit.total_error) < 1e-9


def test_noise_leaves_the_sum_of_times_as_it_was_and_no_coefficient_below_zero():
    fit = fit_step_line(steps_of(StepLine(4.0, 0.05), noise=0.2))
    assert min(astuple(fit.line)) >= 0 and abs(fit.total_error) < 0.02 and fit.median_error < 0.2


def test_steps_in_which_something_else_had_the_core_weigh_less():
    line = StepLine(4.0, 0.05, 0.3)
    steps = steps_of(line, noise=0.01)
    stalled = [
        replace(step, end_s=step.end_s + (0.3 if n % 20 == 0 else 0.0)) for n, step in enumerate(steps)
    ]
    robust, plain = (fit_step_line(stalled, robust=robust).line for robust in (True, False))
    assert astuple(robust)[:3] == pytest.approx(astuple(line)[:3], rel=0.1)
    assert abs(plain.base_ms - line.base_ms) > 1.0


def test_few_steps_are_refused():
    with pytest.raises(InputFault, match=f"has 3 steps, fewer than the {LEAST_STEPS}"):
        fit_step_line(steps_of(StepLine(4.0), count=3))


class Scheduler:
    def __init__(self):
        self.waiting_requests = {}

    def schedule_batch(self, token_budget, cache_budget):
        return [], True, 0, 0


class Processor:
    """What the log looks at of transformers' processor: a step without requests is none."""

    def __init__(self):
        self.scheduler = Scheduler()

    def prepare_next_batch(self):
        return bool(self.scheduler.schedule_batch(1, 1)[0])

    def update_batch(self):
        pass


def test_a_step_without_requests_is_not_logged():
    log, processor = StepLog(), Processor()
    log.watch(processor)
    assert processor.prepare_next_batch() is False
    processor.update_batch()
    assert log.take() == []
