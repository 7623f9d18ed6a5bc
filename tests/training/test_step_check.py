"""A step that lies outside of what was estimated is told of once, with what differs most."""

from __future__ import annotations

import pytest

from torchsplit_core.training.monitor.step_check import CHECKED_STEPS, FIRST_STEPS, StepCheck
from torchsplit_core.values.strategy.run import PredictedStep

STEPS = FIRST_STEPS + CHECKED_STEPS
PREDICTED = PredictedStep(1.0, 0.02, 0.01, 0.04, {"compute": 0.015, "optimizer": 0.004, "fixed": 0.001})
PHASES = {"forward": 0.01, "backward": 0.03, "optimizer": 0.005, "data": 0.002, "agreement": 0.001}


def said(check: StepCheck, seconds: float, steps: int = 3 * STEPS) -> list[str]:
    words = [check.add(seconds, PHASES) for _ in range(steps)]
    return [word for word in words if word is not None]


@pytest.mark.parametrize("seconds", [0.01, 0.02, 0.04])
def test_a_step_within_its_interval_is_not_told_of(seconds: float) -> None:
    assert said(StepCheck(PREDICTED), seconds) == []


def test_a_step_outside_is_told_of_once_with_what_differs_most() -> None:
    (words,) = said(StepCheck(PREDICTED), 0.05)
    assert words == (
        "a step takes 50 ms, above the estimated 10 ms to 40 ms; most of the difference is forward and backward "
        "pass: 40 ms, where 15 ms was estimated"
    )
    (words,) = said(StepCheck(PREDICTED), 0.005)
    assert words.startswith("a step takes 5 ms, below the estimated 10 ms to 40 ms")


def test_the_first_steps_and_one_that_hangs_do_not_count() -> None:
    check = StepCheck(PREDICTED)
    for _ in range(FIRST_STEPS):
        assert check.add(9.0, PHASES) is None
    assert check.add(9.0, PHASES) is None
    assert said(check, 0.02) == []


@pytest.mark.parametrize("predicted", [None, PredictedStep(1.0, 0.02)])
def test_without_an_interval_nothing_is_compared(predicted: PredictedStep | None) -> None:
    assert said(StepCheck(predicted), 9.0) == []


def test_without_phases_only_the_step_is_told_of() -> None:
    check = StepCheck(PREDICTED)
    words = [check.add(0.05, {}) for _ in range(STEPS)]
    assert words[-1] == "a step takes 50 ms, above the estimated 10 ms to 40 ms" and set(words[:-1]) == {None}
