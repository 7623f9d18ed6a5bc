"""Greedy best fit, as published MIG planners do it.

After "ParvaGPU: Efficient Spatial GPU Sharing for Large-Scale DNN Inference in Cloud Environments" (SC'24), written
anew for the planner's requests: a model's segment is the slice with the most requests/s per compute slice within the
latency limit; it gets as many as its demand needs and one fitting segment for the rest; segments are placed first
fit, the largest first.

The paper's fleet is unlimited. For a limited one, if the segments do not all fit, bisection finds one factor that
scales all demands down; the slices left over go to the worst served models.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.baselines.greedy import RATE_SLACK, GreedyPlacement, NoBaselinePlan, SliceOption
from torchsplit_core.planning.request.objective import goal_of, unit_rps
from torchsplit_core.values import PlanRequest

BISECTION_STEPS = 10
"""Bisection steps for the factor: to a thousandth of the demands."""


def best_fit(request: PlanRequest, start: Callable[[], GreedyPlacement], deadline: float) -> GreedyPlacement:
    """The fleet after all three steps; `start` gives an empty one. An objective of cost asks for minima only.

    If not even one segment a model fits, models are only served worst first. Raises NoBaselinePlan after `deadline`
    (time.perf_counter).
    """
    greedy = start()
    if not _place_segments(request, greedy, 1.0):
        low, high, greedy = 0.0, 1.0, start()
        # With an objective of cost the minima are the demands and are not scaled.
        for _ in range(0 if goal_of(request).by_cost else BISECTION_STEPS):
            if time.perf_counter() > deadline:
                raise NoBaselinePlan("No time was left to scale the demands to the fleet.")
            middle, tried = (low + high) / 2, start()
            if _place_segments(request, tried, middle):
                low, greedy = middle, tried
            else:
                high = middle
    greedy.serve_worst_first()
    return greedy


def _place_segments(request: PlanRequest, greedy: GreedyPlacement, factor: float) -> bool:
    """Place segments for the demands times the factor; False if one of them has no room."""
    targets = target_rates(request, greedy, factor)
    for model, target_rps in targets.items():
        # Co-located models do not fit one by one: they come first, GPU by GPU.
        while greedy.blocks.is_bound(model) and greedy.rate(model) < target_rps * (1 - RATE_SLACK):
            if not greedy.add_instance(model):
                return False
    most = 8 * len(greedy.partial.names)
    waiting: list[tuple[tuple[int, int, int], int, int, SliceOption]] = []
    for model, target_rps in targets.items():
        chosen = greedy.chosen[model]
        assert chosen is not None
        for stage, options in enumerate(() if greedy.blocks.is_bound(model) else chosen.stages):
            segments = _segments(options, target_rps, most)
            if segments is None:
                return False
            for copy, option in enumerate(segments):
                size = gpu_type(greedy.partial.groups[option.group].type).profile(option.profile)
                waiting.append(((-size.compute_slices, -size.memory_slices, copy), model, stage, option))
    for _, model, stage, option in sorted(waiting, key=lambda item: item[:3]):
        gpu = greedy.partial.first_with_room(option.group, option.profile)
        if gpu is None:
            return False
        greedy.place(model, stage, option, gpu)
    return True


def target_rates(request: PlanRequest, greedy: GreedyPlacement, factor: float) -> dict[int, float]:
    """Requests/s to provide, by model index, for each model to be served: its demand times the factor."""
    targets: dict[int, float] = {}
    for number, spec in enumerate(request.models):
        if greedy.is_to_be_served(number):
            target_rps = 0.0 if goal_of(request).by_cost else factor * unit_rps(spec)
            if spec.cap_at_demand:
                target_rps = min(target_rps, spec.demand_rps)
            targets[number] = max(target_rps, spec.min_throughput_rps or 0.0)
    return targets


def _segments(options: tuple[SliceOption, ...], target_rps: float, most: int) -> list[SliceOption] | None:
    """Segments that give a stage `target_rps` requests/s; None if it takes more than `most`. Options: densest first."""
    best = options[0]
    count = math.floor(min(target_rps / best.rate_rps * (1 + RATE_SLACK), float(most + 1)))
    rest = target_rps - count * best.rate_rps
    segments = [best] * count
    if rest > RATE_SLACK * target_rps or not segments:
        fitting = [option for option in options if option.rate_rps >= rest]
        segments.append(min(fitting, key=lambda option: option.cost) if fitting else best)
    return None if len(segments) > most else segments
