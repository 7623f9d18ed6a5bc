"""Segments of many GPUs: bound and pipelines by covers, without listing multisets of kinds.

The bound is the least threshold that cover packings refute. If one segment or one complete component suffices there,
the pipeline of the packing is optimal; otherwise beam searches look for one below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance, Segments
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.large_segments.cover_threshold import CoverThreshold
from torchsplit_core.placement.search.layer_assignment import pipeline_throughput
from torchsplit_core.values import InternalFault

LEAST, MOST = 1e-100, 1e100
"""All throughputs but 0 are within these limits."""

WIDTH = 1e-8
"""Relative width at which bisection ends."""

EQUAL = 5e-7
"""Value and bound within this relative distance are equal: half of the contract's tolerance."""

_FACTOR = 4.0
"""First step from a threshold to the next while bound or value have no limit yet; each further one is squared. In
benchmarks/placement_constants.py 2 and 16 make no difference beyond the noise (a third)."""

_REFUTED = 2
"""Consecutive refuted thresholds after which the value may be optimal, so that the one just above it is tried. In
benchmarks/placement_constants.py 1 and 8 make no difference beyond the noise (a third)."""

_SHARE = 0.05
"""Share of the remaining time for one packing in the first run; four times as much in each further one. In
benchmarks/placement_constants.py a quarter and four times of it make no difference beyond the noise (a third)."""

_FIRST_STEP, _LAST_STEP, _STEP, _HALVES = 1e-5, 1 - 1e-4, 8, 5
"""Relative distance below the bound at which beam searches begin and end, the factor from one to the next, and the
bisections between the value and the last missed threshold. Chosen, not measured."""

_WALK_PART = 0.25
"""Share of the remaining time for the beam searches at one threshold. Chosen, not measured."""


@dataclass(frozen=True)
class BoundedPipeline:
    """value: of the segments. bound: no pipeline is better. fewest: provably none of this value has fewer GPUs."""

    value: float
    bound: float
    segments: Segments
    fewest: bool = False

    def proven(self) -> bool:
        """Whether the segments are optimal, or provably none exist."""
        return self.bound <= 0 or self.value >= self.bound * (1 - EQUAL)


class LargeSegmentSearch:
    """State: `segments` reach `value`, `bound` and above are refuted; packings do not refute `allowed`, and did not
    refute `low` in their time."""

    def __init__(self, instance: ProblemInstance, tell: Callable[[float, float], None]) -> None:
        self._instance, self._clock, self._report = instance, SearchClock.start(0.0), tell
        self._value, self._allowed, self._low, self._bound = 0.0, 0.0, 0.0, float("inf")
        self._segments: Segments = ()
        self._share = _SHARE / 4  # run multiplies it

    def run(self, clock: SearchClock, known: Segments, *, walks: bool = True) -> BoundedPipeline:
        """The pipeline and the bound within the time of the clock; another run continues with what was undecided.

        known: a pipeline to begin with, or none. walks: search by beams too if links bind.
        """
        self._clock, self._share = clock, min(4 * self._share, 1.0)
        self._low = max(self._value, self._allowed)
        self._update_incumbent(known)
        self._bracket()
        self._bisect()
        if walks and not self._result().proven():
            self._search_downward()
        result = self._result()
        return self._with_fewest_gpus(result) if result.proven() and result.segments else result

    def _result(self) -> BoundedPipeline:
        return BoundedPipeline(self._value, self._bound, self._segments)

    def _bracket(self) -> None:
        """Find a threshold that packings do not refute, unless all are refuted, and a higher one that they do."""
        step = _FACTOR
        links = self._instance.links[np.isfinite(self._instance.links) & (self._instance.links > 0)]
        at = self._value or (float(np.median(links)) if len(links) else 1.0)
        while not np.isfinite(self._bound) and at < MOST and not self._clock.over():
            self._test_threshold(at)
            at, step = max(at, self._value) * step, step * step
        step = _FACTOR
        while not self._low and self._bound > LEAST and not self._clock.over():
            self._test_threshold(max(self._bound / step, LEAST))
            step = step * step
        if self._bound <= LEAST:
            self._tighten_bound(0.0)

    def _bisect(self) -> None:
        """Bisect to the least threshold that packings refute; easily found pipelines raise the value.

        After several refuted thresholds in a row, the value may be optimal: the next one is just above it.
        """
        refuted = 0
        while 0 < self._low * (1 + WIDTH) < self._bound < MOST and not self._clock.over():
            low = self._low
            near = refuted == _REFUTED and low == self._value
            self._test_threshold(low * (1 + WIDTH) if near else sqrt(low) * sqrt(self._bound))
            refuted = 0 if self._low > low else refuted + 1

    def _test_threshold(self, threshold: float) -> None:
        """Refute the threshold, or record that it is not refuted."""
        at = CoverThreshold(self._instance, threshold, self._clock, self._share)
        status = at.relaxation_status()
        if status == "none":
            self._tighten_bound(threshold)
            return
        self._low = max(self._low, threshold)
        if status == "found":
            self._allowed = max(self._allowed, threshold)
        self._update_incumbent(at.solve_easy())

    def _search_downward(self) -> None:
        """From the bound down in growing steps until a beam search finds a pipeline, then a few bisections."""
        upper, step = self._bound, _FIRST_STEP
        while np.isfinite(upper) and not self._search_at(self._bound * (1 - step)):
            upper = self._bound * (1 - step)
            step = _STEP * step if step < 0.1 else 1 - (1 - step) / _STEP
            if step > _LAST_STEP or self._clock.over():
                return
        for _ in range(_HALVES):
            if self._value and self._value < upper * (1 - EQUAL) and not self._clock.over():
                at = sqrt(self._value) * sqrt(upper)
                upper = upper if self._search_at(at) else at

    def _search_at(self, threshold: float) -> bool:
        """Search at the threshold; whether a pipeline of it is known."""
        if self._value < threshold:
            at = CoverThreshold(self._instance, threshold, self._clock, self._share)
            self._update_incumbent(at.solve_easy())
            if self._value < threshold:
                self._update_incumbent(at.beam_search(self._clock.part(_WALK_PART * self._clock.left_s())))
        return self._value >= threshold * (1 - EQUAL)

    def _with_fewest_gpus(self, result: BoundedPipeline) -> BoundedPipeline:
        segments, fewest = CoverThreshold(
            self._instance, self._value, self._clock, self._share
        ).minimize_gpus()
        if segments and pipeline_throughput(self._instance, segments) >= self._value:
            self._segments = segments
        else:
            fewest = False
        self._clock.count("fewest_proven", fewest)
        return BoundedPipeline(result.value, result.bound, self._segments, fewest)

    def _update_incumbent(self, segments: Segments) -> None:
        value = pipeline_throughput(self._instance, segments) if segments else 0.0
        if value > self._value:
            if value > self._bound * (1 + EQUAL):
                raise InternalFault(
                    "The placement search found a pipeline at a threshold that it had refuted."
                )
            self._value, self._segments = value, segments
            self._low, self._bound = max(self._low, value), max(self._bound, value)
            self._report(self._value, self._bound)

    def _tighten_bound(self, threshold: float) -> None:
        if threshold < self._bound:
            self._bound = max(threshold, self._value)
            self._report(self._value, self._bound)
