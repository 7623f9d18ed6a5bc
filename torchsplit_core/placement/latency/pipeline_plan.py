"""What a pass of the batch costs, and a pipeline with its throughput and the seconds of a pass."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance, Segments, evaluate_pipeline

SAME = 1e-9
"""Latencies closer than this, relatively, are one: sums of the same times in another order."""

PROVEN = 1e-6
"""A latency that is no more than this above its bound, relatively, is proven."""


@dataclass(frozen=True)
class PassCosts:
    """tokens: those that a pass makes. link_tokens: tokens/s of a link with the value 1 in units of the instance."""

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
    """The least latency at a threshold. plan: the best found, if any; bound_s: no pipeline whose every segment and
    link reaches the threshold takes less, infinite where there is none."""

    plan: PipelinePlan | None
    bound_s: float

    @property
    def proven(self) -> bool:
        """Whether the plan's latency is the least, or that there is no plan."""
        if self.plan is None:
            return math.isinf(self.bound_s)
        return self.plan.latency_s <= self.bound_s * (1 + PROVEN)


def evaluate_plan(instance: ProblemInstance, costs: PassCosts, segments: Segments) -> PipelinePlan | None:
    """The pipeline with its figures, reckoned from the instance alone; None where it breaks a rule."""
    pipeline_figures = evaluate_pipeline(instance, segments)
    if pipeline_figures is None:
        return None
    seconds = pipeline_figures.pass_s
    if seconds is None:
        parts = costs.segment_s(np.array(pipeline_figures.segments)).tolist()
        seconds = math.fsum([*parts, *costs.link_s(np.array(pipeline_figures.links)).tolist()])
    return PipelinePlan(segments, pipeline_figures.value, seconds, sum(len(gpus) for _, gpus in segments))


def is_better(plan: PipelinePlan, other: PipelinePlan | None) -> bool:
    """Whether `plan` takes less time than the other, or as much with a higher throughput, or fewer GPUs."""
    if other is None or plan.latency_s < other.latency_s * (1 - SAME):
        return True
    if plan.latency_s > other.latency_s * (1 + SAME):
        return False
    return (plan.throughput, -plan.gpus) > (other.throughput, -other.gpus)


def nondominated(plans: Iterable[PipelinePlan]) -> list[PipelinePlan]:
    """The plans that no other beats in throughput and latency, by rising throughput."""
    front: list[PipelinePlan] = []
    for plan in sorted(
        plans, key=lambda candidate: (-candidate.throughput, candidate.latency_s, candidate.gpus)
    ):
        if not front or plan.latency_s < front[-1].latency_s * (1 - SAME):
            front.append(plan)
        elif plan.throughput == front[-1].throughput and is_better(plan, front[-1]):
            # As quick, but for the order of its sum, with fewer GPUs.
            front[-1] = plan
    return front[::-1]
