"""Greedy best fit, as published MIG planners do it.

The idea is that of "ParvaGPU: Efficient Spatial GPU Sharing for Large-Scale DNN Inference in Cloud
Environments" (SC'24), written anew for the planner's requests: for each model the slice with the
most requests/s per compute slice within its latency limit, as many of these segments as its
demand needs and one fitting segment for the rest; segments placed first fit, the largest first.

What that paper does not need, because its fleet has no end: where the segments do not all fit,
every demand is scaled down by one factor, found by halving; and what is left over goes to the
worst served models.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.baselines.greedy import ENOUGH, GreedyFill, NoPlan, Option
from torchsplit_core.planning.request.objective import goal_of, unit_rps
from torchsplit_core.values import PlanRequest

HALVINGS = 10
"""Steps of the search for the factor: a thousandth of the demands."""


def best_fit(request: PlanRequest, start: Callable[[], GreedyFill], deadline: float) -> GreedyFill:
    """The fleet after all three steps; `start` gives an empty one. An objective of cost asks for minima only.

    Where not even one segment a model fits, the worst-served step is all. Raises NoPlan after
    `deadline` (time.perf_counter).
    """
    greedy = start()
    if not _place(request, greedy, 1.0):
        low, high, greedy = 0.0, 1.0, start()
        # With an objective of cost the minima are the demands, and they do not scale.
        for _ in range(0 if goal_of(request).by_cost else HALVINGS):
            if time.perf_counter() > deadline:
                raise NoPlan("No time was left to scale the demands to the fleet.")
            middle, tried = (low + high) / 2, start()
            if _place(request, tried, middle):
                low, greedy = middle, tried
            else:
                high = middle
    greedy.fill()
    return greedy


def _place(request: PlanRequest, greedy: GreedyFill, factor: float) -> bool:
    """Segments for the demands times the factor; False where one of them finds no room."""
    goals = goals_of(request, greedy, factor)
    for model, goal in goals.items():
        # Models that must stand together do not fit one by one: they come first, GPU by GPU.
        while greedy.blocks.together(model) and greedy.rate(model) < goal * (1 - ENOUGH):
            if not greedy.give(model):
                return False
    most = 8 * len(greedy.partial.names)
    waiting: list[tuple[tuple[int, int, int], int, int, Option]] = []
    for model, goal in goals.items():
        running = greedy.chosen[model]
        assert running is not None
        for stage, options in enumerate(() if greedy.blocks.together(model) else running.stages):
            found = _segments(options, goal, most)
            if found is None:
                return False
            for copy, option in enumerate(found):
                size = gpu_type(greedy.partial.groups[option.group].type).profile(option.profile)
                waiting.append(((-size.compute_slices, -size.memory_slices, copy), model, stage, option))
    for _, model, stage, option in sorted(waiting, key=lambda item: item[:3]):
        gpu = greedy.partial.first(option.group, option.profile)
        if gpu is None:
            return False
        greedy.put(model, stage, option, gpu)
    return True


def goals_of(request: PlanRequest, greedy: GreedyFill, factor: float) -> dict[int, float]:
    """Requests/s that each model which is to be served is owed, by its number: its demand times the factor."""
    goals: dict[int, float] = {}
    for number, spec in enumerate(request.models):
        if greedy.wanted(number):
            owed = 0.0 if goal_of(request).by_cost else factor * unit_rps(spec)
            if spec.cap_at_demand:
                owed = min(owed, spec.demand_rps)
            goals[number] = max(owed, spec.min_throughput_rps or 0.0)
    return goals


def _segments(options: tuple[Option, ...], goal: float, most: int) -> list[Option] | None:
    """The segments that give a stage `goal` requests/s; None for more than `most`. Best density stands first."""
    best = options[0]
    count = math.floor(min(goal / best.rate_rps * (1 + ENOUGH), float(most + 1)))
    rest = goal - count * best.rate_rps
    found = [best] * count
    if rest > ENOUGH * goal or not found:
        fitting = [option for option in options if option.rate_rps >= rest]
        found.append(min(fitting, key=lambda option: option.cost) if fitting else best)
    return None if len(found) > most else found
