"""How requests of LoadGen's Poisson arrivals reach one of the slices behind NVIDIA's front for many slices.

LoadGen sleeps until the next request is due, and Linux wakes a thread up to its timer slack late: 50 µs unless set
otherwise (prctl(2), PR_SET_TIMERSLACK). What fell due meanwhile goes out in the same call
(`server_coalesce_queries` in mlcommons/inference, loadgen/issue_query_controller.cc). The front gives as many calls in
a row to one slice as a batch has places, then turns to the next (harness_triton_mig of
mlcommons/inference_results_v1.1, closed/NVIDIA/code/harness). Calls of several requests fill a batch before the turn
ends: what is left over waits until the slice has its next turn.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

TIMER_SLACK_MS = 0.05


def arrivals(
    requests: int, rate_per_ms: float, slices: int, calls_in_a_row: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """When requests of one slice fall due and when they reach it, ms, at least `requests` of them.

    `rate_per_ms` is that of all slices together. Times between calls are exact, those of the other slices' turns as
    their sum.
    """
    late = TIMER_SLACK_MS
    more_a_call = min(rate_per_ms * late, requests)
    # Six deviations of their number more: never too few.
    calls = 1 + int((requests + 6 * math.sqrt(requests)) / (1 + more_a_call))
    gaps = rng.standard_exponential(calls) / rate_per_ms
    others = (slices - 1) * calls_in_a_row
    if others:
        turns = len(gaps[::calls_in_a_row])
        gaps[::calls_in_a_row] += rng.gamma(others, 1 / rate_per_ms, turns) + others * late
    first = np.cumsum(gaps + late) - late
    more = rng.poisson(more_a_call, calls)
    reached = np.repeat(first + late, 1 + more)
    due = np.concatenate((first, np.repeat(first, more) + late * rng.random(int(more.sum()))))
    # Calls do not overlap, so what falls due first reaches the slice first.
    return np.sort(due), reached
