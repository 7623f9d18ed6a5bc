"""The costs of a pass of the batch, and a pipeline with its throughput and latency."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance, Segments, evaluate_pipeline

SAME = 1e-9
"""Relative difference up to which latencies are equal: sums of the same times in another order."""

PROVEN = 1e-6
"""A latency at most this much above its bound, relatively, is proven."""


@dataclass(frozen=True)
class PassCosts:
    """tokens: those of a pass. link_tokens: tokens/s of a link value of 1 in the instance's units."""

    tokens: float
    link_tokens: float

    def segment_s(self, value: np.ndarray) -> np.ndarray:
        """Seconds of a pass through segments of these throughputs; infinite for 0."""
        return self._seconds(value)

    def link_s(self, value: np.ndarray) -> np.ndarray:
        """Seconds of a pass over links of these values; infinite for 0."""
        return self._seconds(value * self.link_tokens)

    def _seconds(self, tokens_per_s: np.ndarray) -> np.ndarray:
        seconds = np.full(np.shape(tokens_per_s), np.inf)
        np.divide(self.tokens, tokens_per_s, out=seconds, where=tokens_per_s > 0)
        return seconds


@dataclass(frozen=True)
class PipelinePlan:
    """A pipeline that keeps every rule of its instance."""

    segments: Segments
    throughput: float
    latency_s: float
    gpus: int


@dataclass(frozen=True)
class MinLatency:
    """The least latency at a threshold. plan: the best found, if any; bound_s: a lower bound for pipelines whose every
    segment and link reaches the threshold, infinite if there are none."""

    plan: PipelinePlan | None
    bound_s: float

    @property
    def proven(self) -> bool:
        """Whether the plan's latency is the least, or no plan exists."""
        if self.plan is None:
            return math.isinf(self.bound_s)
        return self.plan.latency_s <= self.bound_s * (1 + PROVEN)


def evaluate_plan(instance: ProblemInstance, costs: PassCosts, segments: Segments) -> PipelinePlan | None:
    """The pipeline with its figures, computed from the instance alone; None if it breaks a rule."""
    pipeline_figures = evaluate_pipeline(instance, segments)
    if pipeline_figures is None:
        return None
    seconds = pipeline_figures.pass_s
    if seconds is None:
        parts = costs.segment_s(np.array(pipeline_figures.segments)).tolist()
        seconds = math.fsum([*parts, *costs.link_s(np.array(pipeline_figures.links)).tolist()])
    return PipelinePlan(segments, pipeline_figures.value, seconds, sum(len(gpus) for _, gpus in segments))


def is_better(plan: PipelinePlan, other: PipelinePlan | None) -> bool:
    """Whether `plan` is faster than the other, or as fast with a higher throughput, or fewer GPUs."""
    if other is None or plan.latency_s < other.latency_s * (1 - SAME):
        return True
    if plan.latency_s > other.latency_s * (1 + SAME):
        return False
    return (plan.throughput, -plan.gpus) > (other.throughput, -other.gpus)


def nondominated(plans: Iterable[PipelinePlan]) -> list[PipelinePlan]:
    """The nondominated plans in throughput and latency, by ascending throughput."""
    front: list[PipelinePlan] = []
    for plan in sorted(
        plans, key=lambda candidate: (-candidate.throughput, candidate.latency_s, candidate.gpus)
    ):
        if not front or plan.latency_s < front[-1].latency_s * (1 - SAME):
            front.append(plan)
        elif plan.throughput == front[-1].throughput and is_better(plan, front[-1]):
            # Equally fast up to the order of the sum, with fewer GPUs.
            front[-1] = plan
    return front[::-1]
