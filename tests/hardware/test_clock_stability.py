"""Whether cores keep their speed: the figures of a core's runs, and when they are said aloud."""

import os

import pytest

from torchsplit_core.hardware import ClockStability, instability_words, measure_cores
from torchsplit_core.hardware.clock_stability import STEADY_RATIO, compute_stability


def runs(*phases_ms: float, each_s: float = 0.5) -> list[tuple[float, float]]:
    """Runs of so many ms one behind the other, each phase as long."""
    found, at = [], 0.0
    for number, ms in enumerate(phases_ms):
        while at < each_s * (number + 1):
            found.append((at, ms))
            at += ms / 1e3
    return found


def test_a_core_of_two_speeds():
    stability = compute_stability(3, runs(0.45, 0.82, 0.45, 0.82))
    assert (stability.core, stability.p5_ms, stability.p95_ms) == (3, 0.45, 0.82)
    assert stability.ratio == stability.window_ratio == pytest.approx(0.82 / 0.45) and not stability.steady
    assert "by a factor of 1.8" in str(instability_words([stability]))
    assert "(core 3;" in str(instability_words([compute_stability(0, runs(0.45)), stability]))


def test_interrupts_are_no_change_of_speed():
    """A run in ten is held up for as long again."""
    stability = compute_stability(
        0, [(at, 0.9 if number % 10 == 0 else ms) for number, (at, ms) in enumerate(runs(0.45))]
    )
    assert stability.ratio == pytest.approx(2.0) and stability.window_ratio == 1.0 and stability.steady
    assert instability_words([stability]) is None and instability_words([]) is None


def test_the_limit_is_that_of_two_times_that_one_cannot_stand_for():
    assert pytest.approx(1.353, abs=1e-3) == STEADY_RATIO
    assert ClockStability(0, 1.0, 1.0, 1.3, 1.4, STEADY_RATIO).steady
    assert not ClockStability(0, 1.0, 1.0, 1.3, 1.0, STEADY_RATIO + 1e-9).steady


def test_cores_are_watched_at_once_each_by_itself():
    cores = sorted(os.sched_getaffinity(0))[:2]
    before = os.sched_getaffinity(0)
    found = measure_cores([*cores, cores[0]], 0.2)
    assert [one.core for one in found] == cores and os.sched_getaffinity(0) == before
    for one in found:
        assert 0 < one.p5_ms <= one.p50_ms <= one.p95_ms and one.ratio >= 1 and one.window_ratio >= 1


def test_a_core_that_is_not_there_is_left_out():
    assert measure_cores([10_000], 0.1) == () == measure_cores([])
