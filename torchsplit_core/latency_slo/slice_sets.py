"""The cheapest GPUs on which each model has a set of slices that keeps its response limit.

The instances of a model share one queue: what a set carries is not the sum of what its slices carry alone. So sets are
simulated. A set with more slices than one that keeps the limit keeps it, one with fewer than one that fails does not;
so few simulations find the least sets of whole slices. Where slices may be shared, one slice of a set may be a half or
a quarter, if the model's memory is no larger a part of it: such parts always fit together on whole slices. A program
then gives each model one of its sets, on the fewest GPUs, as it does with the patterns of plans without limits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.latency_slo.derating import with_request_points
from torchsplit_core.latency_slo.isolated_capacity import keeps_limit, quick_points
from torchsplit_core.latency_slo.relaxation import without_limits
from torchsplit_core.latency_slo.slo_check import limited_models
from torchsplit_core.planning.outcome.assignment import Assignment, assign_instances, build_planned_gpus
from torchsplit_core.planning.patterns.capacity import FleetCapacity, Vector
from torchsplit_core.planning.patterns.master import Column, solve_integer
from torchsplit_core.planning.patterns.solve import build_search
from torchsplit_core.planning.problem.build import Problem, build_problem, slice_memories
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.values import PlanModel, PlannedGpu, PlanRequest, Point, Stage, Variant

MOST_POOLS = 6
"""Pools of a model, those that carry most for their price: the profiles of a GPU type, or the best of several."""

LIMIT_PARTS = (0.4, 0.6, 0.8)
"""Parts of the response limit that a batch may take at a point."""

SLACK = 1e-9
"""Relative slack of minima, for sums of decimals that meet one exactly."""

QUARTERS = 4
"""Parts that a slice is counted in where slices may be shared."""

SHARES = (0.25, 0.5)
"""Shares of a slice, least first."""

Counts = tuple[int, ...]
"""Slices by pool."""

Way = tuple[int, ...]
"""By pool, the choice (its index in the problem) that slices run; -1: none."""


@dataclass(frozen=True)
class Part:
    """A share of one slice of a pool, and the choice that it runs."""

    pool: int
    share: float
    choice: int


@dataclass(frozen=True)
class SliceSet:
    """Whole slices with what they run, and perhaps a part of one more."""

    counts: Counts
    way: Way
    part: Part | None = None

    def usage(self, unit: int) -> NDArray[np.int64]:
        """What it takes of each pool, a slice counting `unit`."""
        used = unit * np.array(self.counts, dtype=np.int64)
        if self.part is not None:
            used[self.part.pool] += round(unit * self.part.share)
        return used


@dataclass
class SliceSets:
    """The least sets of one model.

    `keeps(set)`: whether it keeps the limit. `pools`: those used, the most efficient last; `most`: slices by pool.
    `parts`: what may stand for a slice, least share first. `complete` is False if the time ended before all sets of
    whole slices were known.
    """

    ways: Sequence[Way]
    keeps: Callable[[SliceSet], bool]
    pools: Sequence[int]
    most: Counts
    parts: Sequence[Part] = ()
    whole: dict[Counts, SliceSet] = field(default_factory=dict)
    divided: list[SliceSet] = field(default_factory=list)
    failed: list[Counts] = field(default_factory=list)
    answers: dict[SliceSet, bool] = field(default_factory=dict)
    complete: bool = False

    @property
    def sets(self) -> tuple[SliceSet, ...]:
        """All sets that are known."""
        return (*self.whole.values(), *self.divided)

    def enumerate(self, until: float) -> None:
        """Find the least sets, or those found before `until` (time.perf_counter)."""
        self.complete = True
        self._extend((0,) * len(self.most), 0, until)
        self.whole = {
            counts: item
            for counts, item in self.whole.items()
            if not any(other != counts and _within(other, counts) for other in self.whole)
        }
        self.divided = [*self._divide(until)] if self.parts else []

    def reject(self, failing: SliceSet) -> None:
        """Take a set out that failed a longer simulation, and those with fewer slices."""
        if failing.part is not None:
            self.answers[failing] = False
            return
        self.failed.append(failing.counts)
        self.whole = {known: item for known, item in self.whole.items() if not _within(known, failing.counts)}

    def _extend(self, counts: Counts, position: int, until: float) -> None:
        """Sets that have these counts of the first pools and any of those from `position` on."""
        if position == len(self.pools):
            return
        pool = self.pools[position]
        for count in range(self.most[pool] + 1):
            more = _with_count(counts, pool, count)
            if self._holds(more):
                return
            if time.perf_counter() > until:
                self.complete = False
                return
            self._extend(more, position + 1, until)

    def _holds(self, counts: Counts) -> bool:
        if any(_within(known, counts) for known in self.whole):
            return True
        if not any(counts) or any(_within(counts, known) for known in self.failed):
            return False
        for way in self.ways:
            runs = all(choice >= 0 for choice, count in zip(way, counts, strict=True) if count)
            if runs and self.keeps(SliceSet(counts, way)):
                self.whole[counts] = SliceSet(counts, way)
                return True
        self.failed.append(counts)
        return False

    def _divide(self, until: float) -> Iterator[SliceSet]:
        """The sets in which the least possible part of a slice stands for a whole one."""
        seen: set[tuple[Counts, int]] = set()
        for item in self.whole.values():
            for pool, count in enumerate(item.counts):
                fewer = _with_count(item.counts, pool, count - 1)
                if count and (fewer, pool) not in seen and time.perf_counter() < until:
                    seen.add((fewer, pool))
                    divided = (SliceSet(fewer, item.way, part) for part in self.parts if part.pool == pool)
                    yield from islice(filter(self._keeps_divided, divided), 1)

    def _keeps_divided(self, item: SliceSet) -> bool:
        if item not in self.answers:
            self.answers[item] = self.keeps(item)
        return self.answers[item]


def _with_count(counts: Counts, pool: int, count: int) -> Counts:
    return (*counts[:pool], count, *counts[pool + 1 :])


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
    chosen: Sequence[SliceSet | None] = ()

    @classmethod
    def of(cls, request: PlanRequest) -> SliceSetSearch | None:
        """The search for a request that counts GPUs; None if its plans are more than sets of slices."""
        if (
            request.objective.max_touched_gpus is not None
            or any(
                model.llm is not None or model.expected_arrivals.kind == "trace" for model in request.models
            )
            or any(len(variant.stages) > 1 for model in request.models for variant in model.variants)
        ):
            return None
        points, origins = _with_quick_points(request)
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
                sets = _slice_sets(problem, patterns.capacity, patterns.prices, index, model, origins)
                if sets is None:
                    return None
            models.append(sets)
        variants = {key: origin.name for key, origin in origins.items()}
        return cls(request, variants, problem, patterns.capacity, models)

    @property
    def complete(self) -> bool:
        """Whether all least sets of whole slices are known."""
        return all(sets is None or sets.complete for sets in self.models)

    def enumerate(self, until: float) -> None:
        """Find the sets of every model, each in its part of the time until `until` (time.perf_counter)."""
        wanted = [sets for sets in self.models if sets is not None]
        for number, sets in enumerate(wanted):
            now = time.perf_counter()
            sets.enumerate(now + (until - now) / (len(wanted) - number))

    def cheapest(self, max_cost: float, seconds: float) -> tuple[PlannedGpu, ...] | None:
        """The cheapest GPUs, costing at most `max_cost`, with the request's points; None if none are found in time."""
        unit = QUARTERS if self.request.sharing == "fractional" else 1
        candidates: list[tuple[int, SliceSet | None]] = []
        for index, sets in enumerate(self.models):
            candidates += [(index, item) for item in (sets.sets if sets is not None else (None,))]
        nothing = np.zeros(len(self.capacity.pools), dtype=np.int64)
        columns: list[Column] = [
            (index, 0, nothing if item is None else item.usage(unit)) for index, item in candidates
        ]
        if len({column[0] for column in columns}) < len(self.models):
            return None
        costs: Vector = np.array([group.cost for group in self.problem.groups])[self.capacity.group_of]
        no_levels = np.zeros((0, len(self.models)), dtype=np.bool_)
        capacity = replace(self.capacity, slices=unit * self.capacity.slices)
        solution = solve_integer(capacity, no_levels, columns, (), seconds, np.zeros(0), costs, max_cost)
        if isinstance(solution, str):
            return None
        self.chosen = [candidates[number][1] for number in solution.columns]
        layouts = {
            column: count
            for column, count in zip(self.capacity.columns, solution.layouts.tolist(), strict=True)
            if count
        }
        gpus = build_planned_gpus(self.problem.request, self._assign(layouts))
        return with_request_points(self.request, gpus, self.variants)

    def _assign(self, layouts: Mapping[tuple[int, int], int]) -> Assignment:
        """The chosen sets on slices. Parts of a power of two fit together, the largest first."""
        choices = self.problem.choices
        chosen = [item for item in self.chosen if item is not None]
        amounts = [
            (choices[item.way[pool]], count)
            for item in chosen
            for pool, count in enumerate(item.counts)
            if count
        ]
        assignment = assign_instances(self.problem, layouts, amounts)
        parts = [item.part for item in chosen if item.part is not None]
        for part in sorted(parts, key=lambda part: -part.share):
            choice = choices[part.choice]
            slice_ = next(
                item
                for item in assignment.slices
                if (item.group, item.profile) == (choice.group, choice.profile)
                and item.free_share >= part.share
            )
            slice_.tenants.append((choice, part.share))
        return assignment

    def reject(self, names: Sequence[str], until: float) -> None:
        """The last plan's sets of these models failed a longer simulation: find others."""
        for model, sets, item in zip(self.request.models, self.models, self.chosen, strict=True):
            if model.name in names and sets is not None and item is not None:
                sets.reject(item)
                sets.enumerate(until)


@dataclass(frozen=True)
class _Origin:
    """The request's variant that a variant of few points was made of, and the share of slices that it is for."""

    name: str
    share: float = 1.0


def _with_quick_points(request: PlanRequest) -> tuple[PlanRequest, dict[tuple[str, str], _Origin]]:
    """The request for whole slices with variants of one point a slice, and where each variant comes from.

    A slice's points are those that carry most in batches of parts of the limit. A part of a slice runs points that need
    no larger part of its memory.
    """
    memory_gib = slice_memories(request, list_gpus(request.gpus))
    tenants = request.max_tenants_per_slice or QUARTERS
    shares = [share for share in SHARES if request.sharing == "fractional" and 1 / share <= tenants]
    origins: dict[tuple[str, str], _Origin] = {}
    models = []
    for spec, plain in zip(request.models, without_limits(request).models, strict=True):
        variants: list[Variant] = []
        for _, variant in spec.allowed_variants if spec.max_response_ms is not None else ():
            (stage,) = variant.stages
            for share in (1.0, *shares):
                allowed = replace(stage, points=tuple(_points_on(spec, stage, share, memory_gib)))
                limits = [share * part * (spec.max_response_ms or 0.0) for part in LIMIT_PARTS]
                for points in filter(None, dict.fromkeys(quick_points(allowed, limits))):
                    name = f"{variant.name} {len(variants)}"
                    origins[spec.name, name] = _Origin(variant.name, share)
                    variants.append(replace(variant, name=name, stages=(replace(stage, points=points),)))
        models.append(replace(plain, variants=tuple(variants)) if variants else plain)
    return replace(request, models=tuple(models), sharing="exclusive"), origins


def _points_on(
    model: PlanModel, stage: Stage, share: float, memory_gib: Mapping[tuple[str, str], float]
) -> Iterator[Point]:
    """The points that a model may run on a share of a slice."""
    limit = share * (model.max_latency_ms or math.inf)
    for point in stage.points:
        size = memory_gib.get((point.gpu_type, point.profile), 0.0)
        fits = share == 1 or (point.memory_gib is not None and point.memory_gib <= share * size)
        if point.latency_ms <= limit and fits:
            yield point


def _slice_sets(
    problem: Problem,
    capacity: FleetCapacity,
    prices: Vector,
    index: int,
    model: PlanModel,
    origins: Mapping[tuple[str, str], _Origin],
) -> SliceSets | None:
    """The sets of a model of the request by its choices in the problem; None if it has none."""
    row_of = {pool: row for row, pool in enumerate(capacity.pools)}
    variants = [
        origins.get((model.name, variant.name), _Origin(variant.name))
        for variant in problem.request.models[index].variants
    ]
    # Batches below a point's take the times of the request's other points.
    stages = {variant.name: variant.stages[0] for variant in model.variants}
    by_case: dict[int, list[int]] = {}
    parts: list[Part] = []
    worth: dict[int, float] = {}
    for number, choice in enumerate(problem.choices):
        if choice.model != index:
            continue
        pool, share = row_of[choice.group, choice.profile], variants[choice.variant].share
        if share < 1:
            parts.append(Part(pool, share, number))
            continue
        by_case.setdefault(choice.case, [-1] * len(capacity.pools))[pool] = number
        worth[pool] = max(worth.get(pool, 0.0), choice.rate_rps / float(prices[pool]))
    if not by_case:
        return None
    least = (model.min_throughput_rps or 0.0) * (1 - SLACK)

    def keeps(item: SliceSet) -> bool:
        running = [
            (problem.choices[item.way[pool]], count, 1.0) for pool, count in enumerate(item.counts) if count
        ]
        if item.part is not None:
            running.append((problem.choices[item.part.choice], 1, item.part.share))
        if sum(choice.rate_rps * count * share for choice, count, share in running) < least:
            return False
        stage = stages[variants[running[0][0].variant].name]
        points = [(choice.point, count, share) for choice, count, share in running]
        return model.max_response_ms is None or keeps_limit(model, stage, points)

    return SliceSets(
        [tuple(choices) for choices in by_case.values()],
        keeps,
        sorted(worth, key=lambda pool: worth[pool])[-MOST_POOLS:],
        tuple(capacity.max_slices.tolist()),
        sorted(parts, key=lambda part: part.share),
    )
