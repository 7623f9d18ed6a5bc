"""Whether cores keep their speed: a fixed loop, timed on all of them at once.

A virtual core may share its physical core with another guest (the sibling hyperthread), and clocks follow power and
temperature. Both change how long the same batch takes, in ways that a plan cannot know.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

MEASURE_S = 2.0
"""Seconds that a core is measured."""
WINDOW_S = 0.1
"""Medians over this time separate changes of speed from single interrupts, which do not affect a batch of ms."""
BAND = 0.15
"""Share by which a time may differ from the planned time before that counts as a deviation."""
STEADY_RATIO = (1 + BAND) / (1 - BAND)
"""Derived: two times with a larger ratio cannot both lie within BAND of a single planned time."""
END_S = 30.0
"""Seconds by which a loop may overrun before its core is given up."""


@dataclass(frozen=True, slots=True)
class ClockStability:
    """One core: 5, 50 and 95 % quantiles of the loop's ms, and the ratio 95 % / 5 % of runs and of 100 ms medians."""

    core: int
    p5_ms: float
    p50_ms: float
    p95_ms: float
    ratio: float
    window_ratio: float

    @property
    def steady(self) -> bool:
        """Whether a single batch time can represent every moment."""
        return self.window_ratio <= STEADY_RATIO


def measure_cores(cores: Iterable[int], seconds: float = MEASURE_S) -> tuple[ClockStability, ...]:
    """Measure the given cores at once, each with its own process. Omits cores that are not available."""
    loop = Path(__file__).with_name("fixed_loop.py")
    results = []
    with contextlib.ExitStack() as ending:
        started = []
        for core in sorted(set(cores)):
            command = [sys.executable, "-I", "-S", str(loop), str(core), str(seconds)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            ending.enter_context(process)
            ending.callback(process.kill)
            started.append((core, process))
        for core, process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, _ = process.communicate(timeout=seconds + END_S)
                if process.returncode == 0:
                    results.append(compute_stability(core, json.loads(output)))
    return tuple(results)


def compute_stability(core: int, runs: Sequence[Sequence[float]]) -> ClockStability:
    """The figures of a core from its runs: start (s) and duration (ms) of each."""
    low, middle, high = _quantiles([ms for _, ms in runs])
    windows = [
        statistics.median(ms for _, ms in window_runs)
        for _, window_runs in groupby(runs, lambda run: int(run[0] / WINDOW_S))
    ]
    fast, _, slow = _quantiles(windows)
    return ClockStability(core, low, middle, high, high / low, slow / fast)


def _quantiles(times: Sequence[float]) -> tuple[float, float, float]:
    """The 5, 50 and 95 % quantiles, interpolated linearly."""
    if len(times) == 1:
        return times[0], times[0], times[0]
    cuts = statistics.quantiles(times, n=20, method="inclusive")
    return cuts[0], cuts[9], cuts[18]


def instability_words(cores: Sequence[ClockStability]) -> str | None:
    """A warning for readers of times; None if every core keeps its speed."""
    unstable = [stability for stability in cores if not stability.steady]
    if not unstable:
        return None
    worst = max(unstable, key=lambda stability: stability.window_ratio)
    return (
        f"the cores of this host change speed by a factor of {worst.window_ratio:.2g} by themselves (core "
        f"{', '.join(str(stability.core) for stability in unstable)}; a fixed loop, medians of 100 "
        f"ms): times of batches and queues "
        "part from any one time that is planned with"
    )
