"""Patterns with hard co-locations of models: a co-located set is one model that takes part of whole GPUs.

Models joined by hard co-locations make a set. On every GPU all of its members have a slice, or none has. To the search
a set is a model whose stages are its members, each counted in units of its own demand. Its patterns are GPUs by
their division (`gpu_divisions`): the slices of the members, and the layout of the GPU, which no other set takes; its
other slices stay open. Two sets on one GPU are not searched, so "no" here comes from prices that allow them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar

import numpy as np

from torchsplit_core.planning.outcome.assignment import (
    Assignment,
    ColocatedGpus,
    assign_instances,
    build_planned_gpus,
)
from torchsplit_core.planning.patterns.capacity import Counts, FleetCapacity, Vector
from torchsplit_core.planning.patterns.covers.gpu_divisions import GpuDivisions, enumerate_divisions
from torchsplit_core.planning.patterns.covers.joint_covers import linear_cover, whole_covers
from torchsplit_core.planning.patterns.feasibility import (
    Decision,
    FeasibilityProblem,
    LevelDemand,
    PatternPlan,
    PatternSearch,
)
from torchsplit_core.planning.patterns.least_cost import NO_LEVELS
from torchsplit_core.planning.patterns.leximin_levels import raise_levels
from torchsplit_core.planning.patterns.mixture import Mixture, PatternPart
from torchsplit_core.planning.patterns.options import ModelOption, ModelOptions, StageOption
from torchsplit_core.planning.patterns.pricing import Pattern, PricedPatterns, price_patterns
from torchsplit_core.planning.patterns.rounding import round_relaxation, seek_plan
from torchsplit_core.planning.patterns.solve import build_search
from torchsplit_core.planning.problem.build import Choice, Problem, build_problem
from torchsplit_core.planning.request.colocation_index import ColocationIndex
from torchsplit_core.planning.request.objective import (
    TierGroup,
    goal_of,
    has_penalties,
    has_tiers,
    level_count,
    requires_resilience,
)
from torchsplit_core.planning.timing import partial_deadline
from torchsplit_core.planning.tolerance import TOLERANCE
from torchsplit_core.values import PlanRequest, Progress, ignore_progress

MAX_COLUMNS = 1000
"""Layout columns above which sets are not searched: each has a pool more. Only hosts divided by cores have so many."""

NEW_PER_SET = 10
"""Patterns added for a set in a round: whole fleets need more to choose from than a linear program."""

OPEN_STEP = 1e-5
"""Relative difference of bounds for which a linear program is solved again."""

FEW_GPUS = 6.0
"""GPUs of a set up to which rounding matters to its bound."""

FIRST_DROP = 0.03
"""The first attempt's relative distance from what divisible slices reach."""

FIRST_MARGIN, NEAR_MARGIN, FIRST_PATTERNS = 0.008, 0.006, 12
"""Relative distances of the first two plans from what parts of patterns reach; patterns of a model for the first."""

LATE_MARGIN = 0.05
"""The first of these distances, if time ended before parts of patterns were known."""

FIRST_SHARE = 0.3
"""Part of the remaining time for the patterns of the first plan."""

FIRST_LEVEL_SHARE = 0.85
"""Part of the time for the first level, the only one with a bound."""


@dataclass(frozen=True)
class ColocatedPlan:
    """The plan, of a problem whose layouts tell no presence; a bound of each level; how many levels are proven."""

    problem: Problem
    assignment: Assignment
    bounds: tuple[float, ...]
    proven: int


@dataclass(frozen=True)
class _Block:
    """A model, or a set of several (indices of the request); `least[i]` of a set is the i-th minimum in its unit."""

    models: tuple[int, ...]
    least: Vector
    divisions: GpuDivisions | None = None


def hard_sets(index: ColocationIndex, models: int) -> tuple[tuple[int, ...], ...] | None:
    """The models joined by hard co-locations; None if stages are joined, or nothing is."""
    together = {number: frozenset((number,)) for number in range(models)}
    for colocation in index.colocations:
        if not colocation.hard:
            continue
        if any(number >= models for number in colocation.members):
            return None
        joined = reduce(frozenset.union, (together[number] for number in colocation.members))
        together.update(dict.fromkeys(joined, joined))
    sets = sorted({tuple(sorted(joined)) for joined in together.values() if len(joined) > 1})
    return tuple(sets) or None


def plan_colocated(
    problem: Problem, deadline: float, progress: Progress = ignore_progress, free: Problem | None = None
) -> ColocatedPlan | None:
    """The fairest plan found before the deadline; None without one, or if sets do not apply to the request.

    The levels after the first count a set as its worst-served member. `free`: the problem without co-locations, if it
    is built already.
    """
    request = problem.request
    sets = hard_sets(problem.colocation_index, len(request.models)) if _applies(request) else None
    if sets is None:
        return None
    free = free or build_problem(replace(request, colocations=()))
    search = _build_colocated_search(free, sets)
    if search is None:
        return None
    uncounted = replace(free, request=request, colocation_index=problem.colocation_index)
    search.on_better = lambda level, plan: problem.report(
        level, lambda: build_planned_gpus(request, search.assign(uncounted, plan))
    )
    result = raise_levels(
        search,
        (TierGroup(tuple(range(len(search.blocks)))),),
        len(search.blocks) if goal_of(request).every_level else 1,
        deadline,
        lambda part: progress(part, "Raising the worst-served models"),
        least_share=FIRST_LEVEL_SHARE,
        start=search.first_plan(deadline),
    )
    if result.plan is None:
        return None
    # Of the levels after the first only the sorted ceilings of all models are bounds.
    ceilings = np.sort(search.ceilings)[: level_count(request)].tolist()
    bound = min([*result.bounds[:1], ceilings[0]])
    proven = int(result.levels[0] >= bound * (1 - TOLERANCE))
    bounds = (max(bound, result.levels[0]), *ceilings[1:])
    return ColocatedPlan(uncounted, search.assign(uncounted, result.plan), bounds, proven)


def _applies(request: PlanRequest) -> bool:
    return (
        goal_of(request).fair
        and not has_tiers(request)
        and not has_penalties(request.objective)
        and not requires_resilience(request)
        and all(item.mode != "routed" for item in request.colocations)
    )


def _build_colocated_search(free: Problem, sets: Sequence[tuple[int, ...]]) -> ColocatedSearch | None:
    """The search of a problem without co-locations, with these sets; None if it does not apply."""
    base = build_search(free, {})
    if base is None or len(base.capacity.columns) > MAX_COLUMNS:
        return None
    joined = {model for members in sets for model in members}
    blocks: list[_Block] = []
    options: list[ModelOptions] = []
    columns = len(base.capacity.columns)
    width = len(base.capacity.pools) + columns
    for members in sorted([*sets, *((m,) for m in range(len(free.request.models)) if m not in joined)]):
        minima, units = base.demand.minima[list(members)], base.demand.units[list(members)]
        if len(members) == 1:
            blocks.append(_Block(members, minima))
            options.append(base.options[members[0]].moved(0, width))
            continue
        ways = [base.options[model].options for model in members]
        if any(len(way) != 1 or len(way[0].stages) != 1 for way in ways):
            # Of several variants a model runs one everywhere, and of several stages each may be elsewhere.
            return None
        stages = tuple(
            StageOption(way[0].stages[0].rates / unit, way[0].stages[0].choices)
            for way, unit in zip(ways, units, strict=True)
        )
        divisions = enumerate_divisions(base.capacity, np.array([stage.rates for stage in stages]))
        if divisions is None or not len(divisions.slices):
            return None
        blocks.append(_Block(members, minima / units, divisions))
        options.append(ModelOptions((ModelOption(stages),)).moved(0, width))
    capacity = _with_layout_pools(base.capacity)
    search = ColocatedSearch(
        capacity,
        options,
        _block_demand(base.demand, blocks),
        np.concatenate([base.prices, np.zeros(columns)]),
        np.tile(capacity.max_slices, (len(options), 1)),
        closed=frozenset(number for number, block in enumerate(blocks) if block.divisions is not None),
    )
    search.blocks, search.ceilings = blocks, base.demand.ceilings
    search.take_prices(search.prices)
    return search


def _with_layout_pools(capacity: FleetCapacity) -> FleetCapacity:
    """The capacity with a pool more for each layout column: the GPUs with it, of which sets take some."""
    columns = len(capacity.columns)
    return replace(
        capacity,
        slices=np.concatenate([capacity.slices, np.eye(columns, dtype=np.int64)]),
        pools=(*capacity.pools, *((g, f"layout {number}") for g, number in capacity.columns)),
        max_slices=np.concatenate([capacity.max_slices, capacity.gpus[capacity.group_of]]),
    )


def _block_demand(demand: LevelDemand, blocks: Sequence[_Block]) -> LevelDemand:
    """The demand of each block: a set is at the level of its worst-served member, and its unit is 1."""
    members = [list(block.models) for block in blocks]
    single = np.array([block.divisions is None for block in blocks])
    first = [models[0] for models in members]
    return LevelDemand(
        np.where(single, demand.units[first], 1.0),
        np.where(single, demand.minima[first], 0.0),
        np.array([demand.caps[models].min() for models in members]),
        np.array([demand.ceilings[models].min() for models in members]),
        demand.tiers[first],
    )


class ColocatedSearch(PatternSearch):
    """A search over blocks: models, and co-located sets priced by the divisions of whole GPUs.

    `ceilings` are of all models. The last pools are GPUs by layout column, priced at what the layout lacks to the
    dearest of its group.
    """

    blocks: Sequence[_Block]
    ceilings: Vector
    quick_share: ClassVar[float] = 0.2
    quick_patterns: ClassVar[int] = 80

    def __post_init__(self) -> None:
        super().__post_init__()
        self._members = [
            [ModelOptions((ModelOption((stage,)),)) for stage in self.options[model].options[0].stages]
            if model in self.closed
            else []
            for model in range(len(self.options))
        ]

    def take_prices(self, prices: Vector) -> None:
        """Price slices anew, and whole GPUs by them."""
        slices = len(prices) - len(self.capacity.columns)
        super().take_prices(prices[:slices])
        value = self.prices @ self.capacity.slices[:slices]
        # A little above 0, as slices are: no model uses these pools, and 0 times endless is no cost.
        dearest = self.capacity.dearest(value)[self.capacity.group_of]
        self.prices = np.concatenate([self.prices, np.maximum(dearest - value, 1e-9 * dearest)])

    def first_plan(self, deadline: float) -> Decision | None:
        """A plan not far below the first level with divisible slices; None without one after a few attempts.

        Bounds take most of the time, which on a busy machine may be all of it.
        """
        self.start_from_divisible_prices(range(len(self.blocks)))
        costs = float(self.linear_costs().sum())
        highest = min(float(self.demand.ceilings.min()), self.capacity.worth(self.prices) / max(costs, 1e-12))
        drop, zeta = FIRST_DROP, None
        while zeta is None and drop < 1:
            level = highest * (1 - drop)
            zeta = self.fleet_share(FeasibilityProblem((level,)), partial_deadline(deadline, FIRST_SHARE))
            drop *= 2
        if zeta is None:
            return None
        in_time = zeta == zeta
        reach = min(level / zeta, highest) if in_time and zeta > 0 else level
        margin = FIRST_MARGIN if in_time else LATE_MARGIN
        while margin < 1 and time.perf_counter() < deadline:
            problem = FeasibilityProblem((reach * (1 - margin),))
            # The prices stay nearly the same, so a round adds the patterns that just reach this level.
            self.price_models(problem, self.prices, NO_LEVELS, None, deadline)
            # Few patterns are enough for a plan that is not tight, and are searched in a fraction of the time.
            seconds = FIRST_SHARE * (deadline - time.perf_counter())
            plan = round_relaxation(self, problem, seconds) or self.solve_columns(
                problem, self.cheapest_columns(problem, NO_LEVELS, FIRST_PATTERNS), seconds
            )
            if isinstance(plan, PatternPlan):
                self.on_better(problem.levels[0], plan)
                near = FeasibilityProblem((reach * (1 - NEAR_MARGIN),))
                better = seek_plan(self, near, deadline) if in_time else None
                return better if better is not None and better.plan else Decision("found", plan)
            margin *= 3
        return None

    def price_level(
        self, model: int, level: float, prices: Vector, *, max_cost: float | None = None, keep: int
    ) -> PricedPatterns:
        """As for any model; of a set these are not all patterns, and the bound is by parts of GPUs."""
        block = self.blocks[model]
        need = np.maximum(block.least, level)
        if block.divisions is None or need.max() <= 0:
            return super().price_level(model, level, prices, max_cost=max_cost, keep=keep)
        return self._price_set(model, need, prices, max(keep, NEW_PER_SET))

    def _price_set(self, model: int, need: Vector, prices: Vector, keep: int) -> PricedPatterns:
        divisions = self.blocks[model].divisions
        assert divisions is not None
        slices = divisions.totals.shape[1]
        spent = divisions.totals @ prices[:slices]
        lacking = np.where(divisions.fits, prices[slices:], np.inf)
        column = lacking.argmin(axis=1)
        costs = spent + lacking[np.arange(len(column)), column]
        linear = linear_cover(costs, divisions.rates, need)
        if linear is None:
            return PricedPatterns(np.zeros(0), (), float("inf"))
        # A bound leaves out the price of whole GPUs, which may have two sets.
        least = linear.least(spent, divisions.rates, need)
        if least < linear.cost * (1 - OPEN_STEP):
            open_linear = linear_cover(spent, divisions.rates, need)
            least = max(
                least, 0.0 if open_linear is None else open_linear.least(spent, divisions.rates, need)
            )
        if linear.amounts.sum() <= FEW_GPUS:
            # Each member by itself costs no more than beside the others, and whole slices more than parts of them.
            least = max(least, self._least_apart(model, need, prices))
        covers = whole_covers(costs, divisions.rates, need, linear, keep)
        patterns = tuple(
            _set_pattern(
                divisions, [(division, int(column[division]), count) for division, count in cover.gpus]
            )
            for cover in covers
        )
        return PricedPatterns(np.array([cover.cost for cover in covers]), patterns, least, truncated=True)

    def mix(self, model: int, parts: Sequence[PatternPart], level: float) -> Mixture | None:
        """As for any model; of a set its GPUs by division and layout column."""
        block = self.blocks[model]
        need = np.maximum(block.least, level)
        if block.divisions is None or need.max() <= 0:
            return super().mix(model, parts, level)
        mixed: dict[tuple[int, int], float] = {}
        for part, pattern in parts:
            for division, column, count in pattern.stages.tolist():
                mixed[division, column] = mixed.get((division, column), 0.0) + part * count
        divisions, columns = np.array(list(mixed)).T
        whole = np.eye(block.divisions.fits.shape[1], dtype=np.int64)[columns]
        usage = np.concatenate([np.rint(block.divisions.totals[divisions]).astype(np.int64), whole], axis=1)
        needed = need > 0
        shares = block.divisions.rates[divisions][:, needed] / need[needed]

        def build(counts: Counts) -> Pattern:
            assert block.divisions is not None
            gpus = [(*key, count) for key, count in zip(mixed, counts.tolist(), strict=True) if count]
            return _set_pattern(block.divisions, gpus)

        gpus = self.capacity.gpus[self.capacity.group_of[columns]]
        return Mixture(np.array(list(mixed.values())), gpus, usage, shares, build)

    def _least_apart(self, model: int, need: Vector, prices: Vector) -> float:
        """The least cost of the members of a set by themselves."""
        return sum(
            price_patterns(member, prices, float(need[number]), self.capacity.max_slices, keep=1).least
            for number, member in enumerate(self._members[model])
        )

    def assign(self, free: Problem, plan: PatternPlan) -> Assignment:
        """The plan on the GPUs of the problem without co-locations that it was searched for."""
        together: list[ColocatedGpus] = []
        for model in sorted(self.closed):
            divisions = self.blocks[model].divisions
            assert divisions is not None
            for division, column, count in plan.patterns[model].stages.tolist():
                instances = self._instances(free, model, divisions.slices[division])
                together.append(ColocatedGpus(self.capacity.columns[column], instances, count))
        singles = self.instance_counts(plan, [m for m in range(len(plan.patterns)) if m not in self.closed])
        layouts = {self.capacity.columns[c]: int(plan.layouts[c]) for c in np.flatnonzero(plan.layouts)}
        return assign_instances(free, layouts, [(free.choices[index], n) for index, n in singles], together)

    def _instances(self, free: Problem, model: int, division: Counts) -> tuple[tuple[Choice, int], ...]:
        """The instances of a division (member by pool)."""
        stages = self.options[model].options[0].stages
        return tuple(
            (free.choices[stages[member].choices[pool]], int(division[member, pool]))
            for member, pool in zip(*np.nonzero(division), strict=True)
        )


def _set_pattern(divisions: GpuDivisions, gpus: Sequence[tuple[int, int, int]]) -> Pattern:
    """The pattern of a set; `stages` has a row for each of `gpus`: division, layout column, number of GPUs."""
    rows = np.array(gpus, dtype=np.int64).reshape(-1, 3)
    whole = np.zeros(divisions.fits.shape[1], dtype=np.int64)
    np.add.at(whole, rows[:, 1], rows[:, 2])
    used = np.rint(rows[:, 2] @ divisions.totals[rows[:, 0]]).astype(np.int64)
    rate = float((rows[:, 2] @ divisions.rates[rows[:, 0]]).min())
    return Pattern(-1, rows, np.concatenate([used, whole]), rate)
