"""What a pass of the batch costs, and a pipeline with its throughput and the seconds of a pass."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.model.instance import Instance, Segments, figures

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
        found = np.full(np.shape(tokens_per_s), np.inf)
        np.divide(self.tokens, tokens_per_s, out=found, where=tokens_per_s > 0)
        return found


@dataclass(frozen=True)
class Plan:
    """A pipeline that keeps every rule of its instance."""

    segments: Segments
    throughput: float
    latency_s: float
    gpus: int


@dataclass(frozen=True)
class Least:
    """The least latency at a threshold. plan: the best found, if any; bound_s: no pipeline whose every segment and
    link reaches the threshold takes less, infinite where there is none."""

    plan: Plan | None
    bound_s: float

    @property
    def proven(self) -> bool:
        """Whether the plan's latency is the least, or that there is no plan."""
        if self.plan is None:
            return math.isinf(self.bound_s)
        return self.plan.latency_s <= self.bound_s * (1 + PROVEN)


def plan_of(instance: Instance, costs: PassCosts, segments: Segments) -> Plan | None:
    """The pipeline with its figures, reckoned from the instance alone; None where it breaks a rule."""
    found = figures(instance, segments)
    if found is None:
        return None
    seconds = found.pass_s
    if seconds is None:
        parts = costs.segment_s(np.array(found.segments)).tolist()
        seconds = math.fsum([*parts, *costs.link_s(np.array(found.links)).tolist()])
    return Plan(segments, found.value, seconds, sum(len(gpus) for _, gpus in segments))


def better(one: Plan, other: Plan | None) -> bool:
    """Whether `one` takes less time than the other, or as much with a higher throughput, or fewer GPUs."""
    if other is None or one.latency_s < other.latency_s * (1 - SAME):
        return True
    if one.latency_s > other.latency_s * (1 + SAME):
        return False
    return (one.throughput, -one.gpus) > (other.throughput, -other.gpus)


def unbeaten(plans: Iterable[Plan]) -> list[Plan]:
    """The plans that no other beats in throughput and latency, by rising throughput."""
    kept: list[Plan] = []
    for plan in sorted(plans, key=lambda one: (-one.throughput, one.latency_s, one.gpus)):
        if not kept or plan.latency_s < kept[-1].latency_s * (1 - SAME):
            kept.append(plan)
        elif plan.throughput == kept[-1].throughput and better(plan, kept[-1]):
            # As quick, but for the order of its sum, with fewer GPUs.
            kept[-1] = plan
    return kept[::-1]
