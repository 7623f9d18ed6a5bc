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
from torchsplit_core.planning.objective import goal_of, unit_rps
from torchsplit_core.planning.serving import ENOUGH, NoPlan, Offer, Serving
from torchsplit_core.values import PlanRequest

HALVINGS = 10
"""Steps of the search for the factor: a thousandth of the demands."""


def best_fit(request: PlanRequest, start: Callable[[], Serving], deadline: float) -> Serving:
    """The board after all three steps; `start` gives an empty one. An objective of cost asks for minima only.

    Where not even one segment a model fits, the worst-served step is all. Raises NoPlan after
    `deadline` (time.perf_counter).
    """
    serving = start()
    if not _place(request, serving, 1.0):
        low, high, serving = 0.0, 1.0, start()
        # With an objective of cost the minima are the demands, and they do not scale.
        for _ in range(0 if goal_of(request).by_cost else HALVINGS):
            if time.perf_counter() > deadline:
                raise NoPlan("No time was left to scale the demands to the fleet.")
            middle, tried = (low + high) / 2, start()
            if _place(request, tried, middle):
                low, serving = middle, tried
            else:
                high = middle
    serving.fill()
    return serving


def _place(request: PlanRequest, serving: Serving, factor: float) -> bool:
    """Segments for the demands times the factor; False where one of them finds no room."""
    goals: dict[int, float] = {}
    for number, spec in enumerate(request.models):
        if serving.wanted(number):
            owed = 0.0 if goal_of(request).by_cost else factor * unit_rps(spec)
            if spec.cap_at_demand:
                owed = min(owed, spec.demand_rps)
            goals[number] = max(owed, spec.min_throughput_rps or 0.0)
    for model, goal in goals.items():
        # Models that must stand together do not fit one by one: they come first, GPU by GPU.
        while len(serving.blocks[model]) > 1 and serving.rate(model) < goal * (1 - ENOUGH):
            if not serving.give(model):
                return False
    most = 8 * len(serving.board.names)
    waiting: list[tuple[tuple[int, int, int], int, int, Offer]] = []
    for model, goal in goals.items():
        way = serving.ways[model]
        assert way is not None
        for stage, offers in enumerate(way.stages if len(serving.blocks[model]) == 1 else ()):
            found = _segments(offers, goal, most)
            if found is None:
                return False
            for copy, offer in enumerate(found):
                size = gpu_type(serving.board.groups[offer.group].type).profile(offer.profile)
                waiting.append(((-size.compute_slices, -size.memory_slices, copy), model, stage, offer))
    for _, model, stage, offer in sorted(waiting, key=lambda item: item[:3]):
        gpu = serving.board.first(offer.group, offer.profile)
        if gpu is None:
            return False
        serving.seat(model, stage, offer, gpu)
    return True


def _segments(offers: tuple[Offer, ...], goal: float, most: int) -> list[Offer] | None:
    """The segments that give a stage `goal` requests/s; None for more than `most`. Best worth stands first."""
    best = offers[0]
    count = math.floor(min(goal / best.point.throughput_rps * (1 + ENOUGH), float(most + 1)))
    rest = goal - count * best.point.throughput_rps
    found = [best] * count
    if rest > ENOUGH * goal or not found:
        fitting = [offer for offer in offers if offer.point.throughput_rps >= rest]
        found.append(min(fitting, key=lambda offer: offer.burden) if fitting else best)
    return None if len(found) > most else found
