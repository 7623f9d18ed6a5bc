"""An exact split of a latency limit over the stages of a variant that maximises the least stage's value."""

from __future__ import annotations

from collections.abc import Sequence

LatencyStep = tuple[float, float]
"""(longest latency allowed in ms, value of the stage with it)."""


def split_limit(budget_ms: float, stages: Sequence[Sequence[LatencyStep]]) -> tuple[float, ...] | None:
    """For each stage the longest latency allowed, in all at most `budget_ms`; None if nothing fits.

    Maximises the smallest value over the stages: v is reachable if the least latencies at which every stage is worth v
    add up to at most the budget, so bisection searches the values. The rest of the budget goes to the first stages that
    can use it.
    """
    fronts = [_pareto_front(steps) for steps in stages]
    if not all(fronts):
        return None
    values = sorted({worth for front in fronts for _, worth in front})

    def limits(value: float) -> tuple[float, ...] | None:
        latencies = [next((step[0] for step in front if step[1] >= value), None) for front in fronts]
        allowed = tuple(item for item in latencies if item is not None)
        return allowed if len(allowed) == len(latencies) and sum(allowed) <= budget_ms else None

    best, low, high = limits(values[0]), 0, len(values) - 1
    if best is None:
        return None
    while low < high:
        middle = (low + high + 1) // 2
        tried = limits(values[middle])
        if tried is None:
            high = middle - 1
        else:
            best, low = tried, middle
    spare = list(best)
    for number, front in enumerate(fronts):
        room = budget_ms - sum(spare) + spare[number]
        spare[number] = max([spare[number], *(latency for latency, _ in front if latency <= room)])
    return tuple(spare) if sum(spare) <= budget_ms else best


def _pareto_front(steps: Sequence[LatencyStep]) -> list[LatencyStep]:
    """The steps by latency, each of higher value than all before it."""
    front: list[LatencyStep] = []
    for latency, worth in sorted(steps, key=lambda step: (step[0], -step[1])):
        if not front or worth > front[-1][1]:
            front.append((latency, worth))
    return front
