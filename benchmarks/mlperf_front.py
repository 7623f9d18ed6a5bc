"""How LoadGen's Poisson arrivals reach one of the slices behind NVIDIA's front for many slices.

LoadGen sleeps until the next request is due, and Linux wakes a thread up to its timer slack late: 50 µs by default
(prctl(2), PR_SET_TIMERSLACK). Requests that fell due meanwhile go out in the same call
(`server_coalesce_queries` in mlcommons/inference, loadgen/issue_query_controller.cc). The front gives one slice as many
calls in a row as a batch has places, then turns to the next slice (harness_triton_mig of
mlcommons/inference_results_v1.1, closed/NVIDIA/code/harness). Calls of several requests fill a batch before the turn
ends; the remaining requests wait for the slice's next turn.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

TIMER_SLACK_MS = 0.05


def arrivals(
    requests: int, rate_per_ms: float, slices: int, calls_in_a_row: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times in ms at which at least `requests` requests of one slice fall due, and at which they reach it.

    `rate_per_ms` is the rate of all slices together. Gaps between calls are exact; the other slices' turns are drawn as
    the sum of theirs.
    """
    late = TIMER_SLACK_MS
    more_a_call = min(rate_per_ms * late, requests)
    # Six standard deviations more, so that there are always enough.
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
    # Calls do not overlap, so requests reach the slice in the order in which they fall due.
    return np.sort(due), reached
