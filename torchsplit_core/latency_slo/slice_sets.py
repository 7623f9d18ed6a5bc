"""The cheapest GPUs on which each model has a set of whole slices that keeps its response limit.

The instances of a model share one queue: what a set carries is not the sum of what its slices carry alone. So sets are
simulated. A set with more slices than one that keeps the limit keeps it, one with fewer than one that fails does not;
so few simulations find the least sets. A program then gives each model one of its sets, on the fewest GPUs, as it does
with the patterns of plans without limits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from torchsplit_core.latency_slo.derating import DeratedRequests, with_request_points
from torchsplit_core.latency_slo.isolated_capacity import keeps_limit, quick_points
from torchsplit_core.latency_slo.relaxation import without_limits
from torchsplit_core.latency_slo.slo_check import limited_models
from torchsplit_core.planning.outcome.assignment import assign_instances, build_planned_gpus
from torchsplit_core.planning.patterns.capacity import FleetCapacity, Vector
from torchsplit_core.planning.patterns.master import Column, solve_integer
from torchsplit_core.planning.patterns.solve import build_search
from torchsplit_core.planning.problem.build import Problem, build_problem
from torchsplit_core.values import PlanModel, PlannedGpu, PlanRequest, Point, Stage

MOST_POOLS = 6
"""Pools of a model, those that carry most for their price: the profiles of a GPU type, or the best of several."""

LIMIT_PARTS = (0.4, 0.6, 0.8)
"""Parts of the response limit that a batch may take at a point."""

SLACK = 1e-9
"""Relative slack of minima, for sums of decimals that meet one exactly."""

Counts = tuple[int, ...]
"""Slices by pool."""

Way = Mapping[int, int]
"""The choice (its index in the problem) that slices of a pool run."""


@dataclass
class SliceSets:
    """The least sets of one model, and the way in which each keeps the limit.

    `keeps(way, counts)`: whether a set does. `pools`: those used, the most efficient last; `most`: slices by pool.
    `complete` is False if the time ended before all sets were known.
    """

    ways: Sequence[Way]
    keeps: Callable[[Way, Counts], bool]
    pools: Sequence[int]
    most: Counts
    sets: dict[Counts, Way] = field(default_factory=dict)
    failed: list[Counts] = field(default_factory=list)
    complete: bool = False

    def enumerate(self, until: float) -> None:
        """Find the least sets, or those found before `until` (time.perf_counter)."""
        self.complete = True
        self._extend((0,) * len(self.most), 0, until)
        self.sets = {
            counts: way
            for counts, way in self.sets.items()
            if not any(other != counts and _within(other, counts) for other in self.sets)
        }

    def reject(self, counts: Counts) -> None:
        """Take a set out that failed a longer simulation, and those with fewer slices."""
        self.failed.append(counts)
        self.sets = {known: way for known, way in self.sets.items() if not _within(known, counts)}

    def _extend(self, counts: Counts, position: int, until: float) -> None:
        """Sets that have these counts of the first pools and any of those from `position` on."""
        if position == len(self.pools):
            return
        pool = self.pools[position]
        for count in range(self.most[pool] + 1):
            more = (*counts[:pool], count, *counts[pool + 1 :])
            if self._holds(more):
                return
            if time.perf_counter() > until:
                self.complete = False
                return
            self._extend(more, position + 1, until)

    def _holds(self, counts: Counts) -> bool:
        if any(_within(known, counts) for known in self.sets):
            return True
        if not any(counts) or any(_within(counts, known) for known in self.failed):
            return False
        used = {pool for pool, count in enumerate(counts) if count}
        way = next((way for way in self.ways if used <= way.keys() and self.keeps(way, counts)), None)
        if way is None:
            self.failed.append(counts)
        else:
            self.sets[counts] = way
        return way is not None


def _within(few: Counts, many: Counts) -> bool:
    return all(a <= b for a, b in zip(few, many, strict=True))


@dataclass
class SliceSetSearch:
    """Plans of a request by sets of slices. `models`: the sets of each model; None for one that needs no slice.

    `variants`: the request's variant by model and variant of the problem. `chosen`: the sets of the last plan.
    """

    request: PlanRequest
    variants: Mapping[tuple[str, str], str]
    problem: Problem
    capacity: FleetCapacity
    models: Sequence[SliceSets | None]
    chosen: list[Counts] = field(default_factory=list)

    @classmethod
    def of(cls, derated: DeratedRequests) -> SliceSetSearch | None:
        """The search for a request that counts GPUs; None if its plans are more than sets of whole slices."""
        request = derated.request
        if (
            request.objective.max_touched_gpus is not None
            or any(
                model.llm is not None or model.expected_arrivals.kind == "trace" for model in request.models
            )
            or any(len(variant.stages) > 1 for model in request.models for variant in model.variants)
        ):
            return None
        points, names = _with_quick_points(derated)
        problem = build_problem(points)
        patterns = None if problem.limits else build_search(problem, {})
        if patterns is None:
            return None
        patterns.start_from_divisible_prices(range(len(patterns.options)))
        limited = {model.name for model in limited_models(request)}
        models: list[SliceSets | None] = []
        for index, model in enumerate(request.models):
            sets = None
            if model.name in limited or model.min_throughput_rps:
                sets = _slice_sets(problem, patterns.capacity, patterns.prices, index, model, names)
                if sets is None:
                    return None
            models.append(sets)
        return cls(request, names, problem, patterns.capacity, models)

    @property
    def complete(self) -> bool:
        """Whether all least sets of all models are known."""
        return all(sets is None or sets.complete for sets in self.models)

    def enumerate(self, until: float) -> None:
        """Find the sets of every model, each in its part of the time until `until` (time.perf_counter)."""
        wanted = [sets for sets in self.models if sets is not None]
        for number, sets in enumerate(wanted):
            now = time.perf_counter()
            sets.enumerate(now + (until - now) / (len(wanted) - number))

    def cheapest(self, max_cost: float, seconds: float) -> tuple[PlannedGpu, ...] | None:
        """The cheapest GPUs, costing at most `max_cost`, with the request's points; None if none are found in time."""
        columns: list[Column] = []
        ways: list[Way] = []
        nothing: dict[Counts, Way] = {(0,) * len(self.capacity.pools): {}}
        for index, sets in enumerate(self.models):
            for counts, way in (nothing if sets is None else sets.sets).items():
                columns.append((index, 0, np.array(counts, dtype=np.int64)))
                ways.append(way)
        if len({column[0] for column in columns}) < len(self.models):
            return None
        costs: Vector = np.array([group.cost for group in self.problem.groups])[self.capacity.group_of]
        no_levels = np.zeros((0, len(self.models)), dtype=np.bool_)
        solution = solve_integer(self.capacity, no_levels, columns, (), seconds, np.zeros(0), costs, max_cost)
        if isinstance(solution, str):
            return None
        self.chosen = [tuple(columns[number][2].tolist()) for number in solution.columns]
        amounts = [
            (self.problem.choices[ways[number][pool]], count)
            for number, counts in zip(solution.columns, self.chosen, strict=True)
            for pool, count in enumerate(counts)
            if count
        ]
        layouts = {
            column: count
            for column, count in zip(self.capacity.columns, solution.layouts.tolist(), strict=True)
            if count
        }
        gpus = build_planned_gpus(self.problem.request, assign_instances(self.problem, layouts, amounts))
        return with_request_points(self.request, gpus, self.variants)

    def reject(self, names: Sequence[str], until: float) -> None:
        """The last plan's sets of these models failed a longer simulation: find others."""
        for model, sets, counts in zip(self.request.models, self.models, self.chosen, strict=True):
            if model.name in names and sets is not None:
                sets.reject(counts)
                sets.enumerate(until)


def _with_quick_points(derated: DeratedRequests) -> tuple[PlanRequest, dict[tuple[str, str], str]]:
    """The request with variants of one point a slice, and the request's variant of each by model and name.

    A slice's points: the one that carries most alone, and those that carry most in batches of parts of the limit.
    """
    names: dict[tuple[str, str], str] = {}
    models = []
    for spec, plain in zip(derated.request.models, without_limits(derated.request).models, strict=True):
        variants = []
        for _, variant in spec.allowed_variants if spec.max_response_ms is not None else ():
            (stage,) = variant.stages
            alone = [
                tuple(rate.point for rate in item.stages[0])
                for item in derated.derated_variants[spec.name]
                if item.variant is variant and item.share == 1
            ]
            for number, points in enumerate(dict.fromkeys((*alone, *_quick_points(spec, stage)))):
                name = f"{variant.name} {number}"
                names[spec.name, name] = variant.name
                variants.append(replace(variant, name=name, stages=(replace(stage, points=points),)))
        models.append(replace(plain, variants=tuple(variants)) if variants else plain)
    return replace(derated.request, models=tuple(models)), names


def _quick_points(model: PlanModel, stage: Stage) -> Iterator[tuple[Point, ...]]:
    limit = model.max_latency_ms or math.inf
    allowed = replace(stage, points=tuple(point for point in stage.points if point.latency_ms <= limit))
    for part in LIMIT_PARTS:
        yield quick_points(allowed, part * (model.max_response_ms or 0.0))


def _slice_sets(
    problem: Problem,
    capacity: FleetCapacity,
    prices: Vector,
    index: int,
    model: PlanModel,
    names: Mapping[tuple[str, str], str],
) -> SliceSets | None:
    """The sets of a model of the request by its choices in the problem; None if it has none."""
    row_of = {pool: row for row, pool in enumerate(capacity.pools)}
    by_case: dict[int, dict[int, int]] = {}
    worth: dict[int, float] = {}
    for number, choice in enumerate(problem.choices):
        if choice.model == index:
            pool = row_of[choice.group, choice.profile]
            by_case.setdefault(choice.case, {})[pool] = number
            worth[pool] = max(worth.get(pool, 0.0), choice.rate_rps / float(prices[pool]))
    if not by_case:
        return None
    # Batches below a point's take the times of the request's other points.
    stage_of = {variant.name: variant.stages[0] for variant in model.variants}
    stages = [
        stage_of[names.get((model.name, variant.name), variant.name)]
        for variant in problem.request.models[index].variants
    ]
    least = (model.min_throughput_rps or 0.0) * (1 - SLACK)

    def keeps(way: Way, counts: Counts) -> bool:
        running = [(problem.choices[way[pool]], count) for pool, count in enumerate(counts) if count]
        if sum(choice.rate_rps * count for choice, count in running) < least:
            return False
        points = [(choice.point, count) for choice, count in running]
        return model.max_response_ms is None or keeps_limit(model, stages[running[0][0].variant], points)

    pools = sorted(worth, key=lambda pool: worth[pool])[-MOST_POOLS:]
    return SliceSets([*by_case.values()], keeps, pools, tuple(capacity.max_slices.tolist()))
