"""A better plan of shared slices near a known one: whole numbers of slices by what stands on them together.

A content is a set of models on a slice of a pool, each with a least share λ: all tenancies of a model need the share
that its longest latency in use asks for, so a model has one λ, chosen among some options. With the options of most
models kept as the best plan so far has them, contents are few, equal slices are not told apart and layouts stay free:

| row | formula |
|---|---|
| fleet[g] | Σ_{c∈g} y[c] ≤ GPUs[g] |
| pool[p] | Σ_s∈p n[s] ≤ Σ_c slices[p,c]·y[c] |
| spare[s] | Σ_m∈s e[s,m] ≤ (1 − Σ_m∈s λ[m]) · n[s] |
| option[p,o] | Σ_s∈p with o n[s] ≤ X·w[o], Σ_o∈m w[o] ≤ 1 where a model has several options o |
| level[m] | Σ_s∋m rate(m,p,λ)·(λ[m]·n[s] + e[s,m]) ≥ unit(m)·t |
| minimum[m] | the same ≥ minimum(m) |

n[s] slices have content s, e[s,m] is what its model m has of them beyond its least shares together, rate(m,p,λ) that of
the model's best point of the pool with a latency that λ allows, or one of less memory where those of the others leave
no room. A few models at a time get other options, as long as time remains: the program for all of them at once is too
large.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from torchsplit_core.planning.fractional.added_tenants.slice_classes import PRESENCE_SHARE
from torchsplit_core.planning.fractional.restricted_master import (
    PlacedPattern,
    add_layout_columns,
    slices_per_column,
)
from torchsplit_core.planning.fractional.tenancy_counts import (
    TenancyCounts,
    counts_all_levels,
    counts_of,
    latency_part,
    longest_latencies,
)
from torchsplit_core.planning.problem.build import Problem
from torchsplit_core.planning.request.objective import goal_of, reached_levels, requires_resilience, unit_rps
from torchsplit_core.planning.tolerance import TOLERANCE
from torchsplit_core.solver.highs import INF, ProgramRejected
from torchsplit_core.solver.row_program import RowProgram
from torchsplit_core.values import PlannedGpu, PlanOutcome, PlanRequest

MAX_CONTENTS = 4000
"""Contents above which a program is not solved."""

STEP_S = 1.0
"""Most seconds of a program: more of them beat longer ones (S1 on 2 and S3 on 5 A100)."""

FREE_MODELS, NEARBY, RANDOM = (2, 3), 1, 3
"""Models with other options: in turn so many with random ones, so many with the next ones on either side."""

MAX_FAILURES = 40
"""Programs in a row without a better plan after which the search ends."""

LEVEL_SCALE, RELATIVE_GAP, LEAST_GAIN = 1000.0, 5e-4, 1e-6

MEMORY_STEP = 0.05
"""Least part of a slice's memory that a point saves over the next better one to be a tenancy of its own."""

Pool = tuple[int, str]
"""The group of a GPU and the profile of a slice."""


@dataclass(frozen=True, slots=True)
class ContentTenant:
    """A model's best tenancy on a pool under one of its options."""

    case: int
    least: float
    choice: int
    rate_rps: float
    memory_gib: float


Points = dict[Pool, dict[int, list[tuple[float, float, int]]]]
"""By pool and case the least share, the requests/s and the index of every choice there."""

Content = tuple[Pool, tuple[tuple[int, float], ...]]
"""A pool, and the cases there with their least shares."""


@dataclass(frozen=True)
class ContentPlan:
    """A plan by contents; `level` is that of its worst-served model, `patterns` the slices with their tenants."""

    level: float
    layouts: Mapping[tuple[int, int], int]
    contents: Mapping[Content, int]
    least: Mapping[int, float]
    patterns: Mapping[PlacedPattern, int] = field(default_factory=dict)


def better_contents(
    problem: Problem, known: PlanOutcome, bound: float, deadline: float, hints: Iterable[int] = ()
) -> ContentPlan | None:
    """Contents with a higher level than the known plan's, by `deadline` (time.perf_counter).

    None without one, and where the request has what contents do not know. `hints`: choices (indices in the problem)
    whose least shares are tried first.
    """
    level = reached_levels(known.objective)[0]
    start = content_plan(problem, known.gpus, level) if is_known(problem) else None
    if start is None:
        return None
    search = ContentSearch(problem, bound, start, _longest(problem, hints))
    while not search.is_exhausted and time.perf_counter() < deadline:
        search.step(deadline)
    return None if search.best is start else search.best


def contents_of(
    problem: Problem, counts: TenancyCounts, reached: float, bound: float, deadline: float
) -> ContentPlan | None:
    """The best contents in which models keep the longest latencies of these tenants, by `deadline`.

    None without any between the level reached and the bound. The layouts counted come first, which is
    quicker, then any. Requires `is_known`.
    """
    least, best = _longest(problem, counts.tenants), None
    for layouts in (counts.layouts, None):
        level = reached if best is None else best.level
        seconds = min(STEP_S, deadline - time.perf_counter())
        best = contents_with(problem, least, level, bound, seconds, layouts) or best
    return best


def contents_with(
    problem: Problem,
    least: Mapping[int, float],
    reached: float,
    bound: float,
    seconds: float,
    layouts: Mapping[tuple[int, int], int] | None = None,
) -> ContentPlan | None:
    """The same for least shares by case, in these layouts or in any."""
    if reached >= bound or not math.isfinite(bound):
        return None
    return ContentSearch(problem, bound, ContentPlan(reached, {}, {}, least), {}).first(seconds, layouts)


def _longest(problem: Problem, tenants: Iterable[int]) -> dict[int, float]:
    """By case under a latency limit the longest latency of these choices, as a share of its budget."""
    return {case: max(parts) for case, parts in longest_latencies(problem, tenants).items()}


def is_known(problem: Problem) -> bool:
    """Whether contents cover the request: what `is_countable` says, no loss, and no model is tied to another.

    Soft co-locations choose among plans of equal levels, which a higher level comes before.
    """
    request = problem.request
    return is_countable(problem) and not requires_resilience(request) and not ties_models(request)


def is_countable(problem: Problem) -> bool:
    """Whether contents count all but ties and survival: a fair objective, models of one case and stage."""
    cases = problem.cases
    return (
        goal_of(problem.request).fair
        and counts_all_levels(problem)
        and not any(group.held or group.parts or group.must_change for group in problem.groups)
        and all(case.stages == 1 for case in cases)
        and len({case.model for case in cases}) == len(cases)
        and all(choice.cap_rps >= choice.rate_rps for choice in problem.choices)
    )


def ties_models(request: PlanRequest) -> bool:
    """Whether a hard co-location, or a weight of soft ones, ties models to one another."""
    hard = any(item.mode == "hard" for item in request.colocations)
    return hard or bool(request.colocations and request.objective.separation_weight)


def content_plan(problem: Problem, gpus: Sequence[PlannedGpu], level: float) -> ContentPlan | None:
    """The contents of planned GPUs; None if the problem lacks one of their points."""
    counts = counts_of(problem, gpus)
    if counts is None:
        return None
    least = _longest(problem, counts.tenancies)
    for case, part in presence_parts(problem).items():
        least[case] = max(part, least.get(case, 0.0))
    group_of = {gpu: g for g, group in enumerate(problem.groups) for gpu in group.gpu_ids}
    case_of = {problem.request.models[case.model].name: number for number, case in enumerate(problem.cases)}
    contents: dict[Content, int] = {}
    for gpu in gpus:
        for item in gpu.slices:
            if item.tenants:
                cases = sorted({case_of[tenant.model] for tenant in item.tenants})
                content = (
                    (group_of[gpu.id], item.profile),
                    tuple((case, least.get(case, 0.0)) for case in cases),
                )
                contents[content] = contents.get(content, 0) + 1
    return ContentPlan(level, counts.layouts, contents, least)


def presence_parts(problem: Problem) -> dict[int, float]:
    """By case of a hard member the least share with which it is present."""
    members = problem.colocation_index.hard_members
    return {
        choice.case: PRESENCE_SHARE
        for choice in problem.choices
        if problem.colocation_members(choice) & members
    }


def _least_parts(problem: Problem) -> list[float]:
    """The least share of each choice, by its own latency and by presence."""
    present = presence_parts(problem)
    return [max(latency_part(problem, choice), present.get(choice.case, 0.0)) for choice in problem.choices]


def list_options(problem: Problem) -> dict[int, list[float]]:
    """By case the least shares, rising, at which a better point of some pool comes into reach."""
    # A point that may share its slice is no worse than one of a higher rate that may not.
    by_case: dict[int, list[tuple[float, float, tuple[Pool, bool]]]] = {}
    for choice, least in zip(problem.choices, _least_parts(problem), strict=True):
        entry = least, -choice.rate_rps, ((choice.group, choice.profile), choice.needs_own_slice)
        by_case.setdefault(choice.case, []).append(entry)
    options: dict[int, list[float]] = {}
    for case, entries in by_case.items():
        best: dict[tuple[Pool, bool], float] = {}
        for least, negative_rate, alike in sorted(entries):
            if -negative_rate > best.get(alike, 0.0) and least <= 1 + TOLERANCE:
                best[alike] = -negative_rate
                options.setdefault(case, []).append(least)
    return {case: sorted(set(parts)) for case, parts in options.items()}


def list_points(problem: Problem) -> Points:
    """The points of every pool and case."""
    points: Points = {}
    for number, (choice, least) in enumerate(zip(problem.choices, _least_parts(problem), strict=True)):
        point = least, choice.rate_rps, number
        points.setdefault((choice.group, choice.profile), {}).setdefault(choice.case, []).append(point)
    return points


@dataclass
class ContentSearch:
    """The best plan so far, and programs around it. Requires `is_known`."""

    problem: Problem
    bound: float
    best: ContentPlan
    hints: Mapping[int, float]
    options: dict[int, list[float]] = field(init=False)
    points: Points = field(init=False)
    turns: Iterator[dict[int, list[float]]] = field(init=False)
    failures: int = 0
    is_tried: bool = False
    """Whether a program had few enough contents."""

    def __post_init__(self) -> None:
        self.options, self.points = list_options(self.problem), list_points(self.problem)
        self.turns = self._turns(random.Random(0))

    @property
    def is_exhausted(self) -> bool:
        """Whether the bound is reached, or too many programs in a row brought no better plan."""
        return self.failures >= MAX_FAILURES or self.best.level >= self.bound * (1 - TOLERANCE)

    def step(self, deadline: float) -> ContentPlan | None:
        """A better plan by one more program, the best from then on; None without one."""
        program = ContentProgram(self.problem, self.points, next(self.turns), LEVEL_SCALE / self.bound)
        plan = None
        if len(program.contents) <= MAX_CONTENTS:
            self.is_tried = True
            plan = self._solve(program, min(STEP_S, deadline - time.perf_counter()))
        elif not self.is_tried:
            # Those of the best plan alone are too many already.
            self.failures = MAX_FAILURES
        if plan is None or plan.level <= self.best.level * (1 + LEAST_GAIN):
            self.failures += 1
            return None
        self.best, self.failures = plan, 0
        return plan

    def first(
        self, seconds: float, layouts: Mapping[tuple[int, int], int] | None = None
    ) -> ContentPlan | None:
        """A better plan with the options of the best one, in these layouts or in any; None if there is none, or none in
        time."""
        program = ContentProgram(self.problem, self.points, self._kept(), LEVEL_SCALE / self.bound)
        if layouts is not None:
            program.hold(layouts)
        program.require(self.best.level * (1 + RELATIVE_GAP))
        return None if len(program.contents) > MAX_CONTENTS else self._solve(program, seconds)

    def _turns(self, draw: random.Random) -> Iterator[dict[int, list[float]]]:
        """Options by case for one program after the other: first those of the best plan and the hints."""
        cases = sorted(self.options)
        yield self._kept()
        yield {case: [self.hints.get(case, parts[0])] for case, parts in self._kept().items()}
        yield {case: sorted({*parts, self.hints.get(case, parts[0])}) for case, parts in self._kept().items()}
        while True:
            for nearby, count in zip((False, True), FREE_MODELS, strict=True):
                options = self._kept()
                for case in draw.sample(cases, min(count, len(cases))):
                    every = self.options[case]
                    at = max(
                        (place for place, part in enumerate(every) if part <= options[case][0]), default=0
                    )
                    others = (
                        every[max(0, at - NEARBY) : at + NEARBY + 1]
                        if nearby
                        else draw.sample(every, min(RANDOM, len(every)))
                    )
                    options[case] = sorted({options[case][0], *others})
                yield options

    def _kept(self) -> dict[int, list[float]]:
        return {case: [self.best.least.get(case, every[0])] for case, every in self.options.items()}

    def _solve(self, program: ContentProgram, seconds: float) -> ContentPlan | None:
        try:
            start = program.values_of(self.best) if self.best.layouts else None
            # In a second HiGHS comes further without restarts.
            solution = program.rows.solve(seconds, start=start, relative_gap=RELATIVE_GAP, restarts=False)
        except ProgramRejected:
            return None
        return program.read(solution.values.tolist()) if len(solution.values) else None


class ContentProgram:
    """The program for some options (least shares, by case); `scale` is the unit of levels.

    Points that save less than `memory_step` (a part of the slice's memory) over a better one are left out; if `relaxed`
    they are taken for points that need the memory of the least of them at the rate of the best, so that no plan is left
    out. Beyond `most` contents none are added.
    """

    def __init__(
        self,
        problem: Problem,
        points: Points,
        options: Mapping[int, list[float]],
        scale: float,
        relaxed: bool = False,
        most: int = MAX_CONTENTS,
        memory_step: float = MEMORY_STEP,
    ) -> None:
        self.problem, self.points, self.options, self.scale = problem, points, options, scale
        self.relaxed, self.most, self.memory_step = relaxed, most, memory_step
        self.rows = RowProgram()
        self.layouts = add_layout_columns(self.rows, problem, INF, 1.0, minimised=False)
        self.chosen: dict[tuple[int, float], int] = {}
        self.contents: dict[int, tuple[Pool, tuple[ContentTenant, ...]]] = {}
        self.rates: dict[int, list[tuple[int, float]]] = {case: [] for case in options}
        for case, parts in options.items():
            if len(parts) > 1:
                first = self.rows.add_columns([0.0] * len(parts), [1.0] * len(parts))
                self.rows.add_row(-INF, 1.0, range(first, first + len(parts)), [1.0] * len(parts))
                self.chosen.update({(case, part): first + place for place, part in enumerate(parts)})
        for pool in sorted(points):
            self._add_pool(pool)
        self._add_models()

    def values_of(self, plan: ContentPlan) -> dict[int, float]:
        """The whole numbers of the program for a plan."""
        values = {column: float(plan.layouts.get(key, 0)) for key, column in self.layouts.items()}
        left = dict(plan.contents)
        for column, (pool, tenants) in self.contents.items():
            values[column] = float(left.pop((pool, _names(tenants)), 0))
        values.update(
            {column: float(plan.least.get(case) == part) for (case, part), column in self.chosen.items()}
        )
        return values

    def require(self, level: float) -> None:
        """Have no plan below this level."""
        self.rows.add_row(level * self.scale, INF, [self.level], [1.0])

    def ask(self, level: float, layouts: Mapping[tuple[int, int], int]) -> None:
        """Ask whether there is a plan at this level with so many GPUs by (group, layout), not for the best one."""
        self.require(level)
        self.rows.cost[self.level] = 0.0
        self.rows.upper[self.level] = min(self.rows.upper[self.level], level * self.scale)
        self.hold(layouts)

    def hold(self, layouts: Mapping[tuple[int, int], int]) -> None:
        """Have so many GPUs by (group, layout)."""
        for key, column in self.layouts.items():
            count = float(layouts.get(key, 0))
            self.rows.add_row(count, count, [column], [1.0])

    def read(self, values: Sequence[float]) -> ContentPlan:
        """The plan of a solution."""
        contents: dict[Content, int] = {}
        least: dict[int, float] = {}
        patterns: dict[PlacedPattern, int] = {}
        for column, (pool, content) in self.contents.items():
            if count := round(values[column]):
                key = pool, _names(content)
                contents[key] = contents.get(key, 0) + count
                least.update(_names(content))
                # Its shares follow its column (`_add_pool`).
                shares = [
                    tenant.least + values[column + 1 + place] / count for place, tenant in enumerate(content)
                ]
                pattern = tuple((tenant.choice, share) for tenant, share in zip(content, shares, strict=True))
                patterns[PlacedPattern(pool, pattern)] = count
        layouts = {key: round(values[column]) for key, column in self.layouts.items()}
        return ContentPlan(
            self._level(values), {key: n for key, n in layouts.items() if n}, contents, least, patterns
        )

    def _level(self, values: Sequence[float]) -> float:
        """The level of the worst-served model."""
        return values[self.level] / self.scale

    def _add_pool(self, pool: Pool) -> None:
        group = self.problem.groups[pool[0]]
        slices = max(layout.usable_counts.get(pool[1], 0) for layout in group.layouts)
        most = float(slices * len(group.gpu_ids))
        columns: list[int] = []
        by_option: dict[tuple[int, float], list[int]] = {}
        for tenants in self._list_contents(pool, self._tenants_of(pool)):
            if len(self.contents) > self.most:
                # Not solved.
                return
            column = self.rows.add_columns([0.0], [most])
            columns.append(column)
            self.contents[column] = pool, tenants
            spare = max(0.0, 1 - sum(tenant.least for tenant in tenants))
            shares = self.rows.add_columns([0.0] * len(tenants), [most] * len(tenants))
            self.rows.continuous.update(range(shares, shares + len(tenants)))
            row = [*range(shares, shares + len(tenants)), column]
            self.rows.add_row(-INF, 0.0, row, [1.0] * len(tenants) + [-spare])
            for share, tenant in enumerate(tenants, shares):
                terms = (column, tenant.rate_rps * tenant.least), (share, tenant.rate_rps)
                self.rates[tenant.case] += terms
                if (tenant.case, tenant.least) in self.chosen:
                    by_option.setdefault((tenant.case, tenant.least), []).append(column)
        supply = [(c, n) for c, n in slices_per_column(self.problem, pool, self.layouts).items() if n]
        row = [*columns, *(column for column, _ in supply)]
        self.rows.add_row(-INF, 0.0, row, [1.0] * len(columns) + [-count for _, count in supply])
        for option, using in by_option.items():
            self.rows.add_row(-INF, 0.0, [*using, self.chosen[option]], [1.0] * len(using) + [-most])

    def _tenants_of(self, pool: Pool) -> list[list[ContentTenant]]:
        """By case and option the best tenancy on the pool, then those that need less of its memory."""
        size = self.problem.slice_memory_gib(*pool)
        tenants: list[list[ContentTenant]] = []
        for case, points in sorted(self.points[pool].items()):
            for part in self.options.get(case, ()):
                alike: list[ContentTenant] = []
                below = math.inf
                for rate, number in sorted(((r, n) for least, r, n in points if least <= part), reverse=True):
                    choice = self.problem.choices[number]
                    memory = size if choice.needs_own_slice else choice.memory_gib
                    alone = bool(alike) and self.problem.choices[alike[-1].choice].needs_own_slice
                    if memory < below or (self.relaxed and alone and not choice.needs_own_slice):
                        alike.append(ContentTenant(case, part, number, rate, memory))
                        below = memory - self.memory_step * size
                    elif self.relaxed and memory < alike[-1].memory_gib:
                        alike[-1] = replace(alike[-1], memory_gib=memory)
                if alike:
                    tenants.append(alike)
        return tenants

    def _list_contents(
        self, pool: Pool, tenants: Sequence[Sequence[ContentTenant]]
    ) -> Iterator[tuple[ContentTenant, ...]]:
        """Sets of tenants of different models that fit on a slice together, none with room for a better point."""
        size = self.problem.slice_memory_gib(*pool) * (1 + TOLERANCE)
        most = self.problem.request.max_tenants_per_slice or len(self.options)
        beside = [self._shareable(alike) for alike in tenants]
        stack: list[tuple[int, tuple[Sequence[ContentTenant], ...]]] = [(0, ())]
        while stack:
            first, content = stack.pop()
            spare = 1 + TOLERANCE - sum(alike[0].least for alike in content)
            room = size - sum(alike[-1].memory_gib for alike in content)
            for place in range(first, len(tenants)):
                alike = beside[place] if content else tenants[place]
                if not alike or (content and alike[0].case == content[-1][0].case):
                    continue
                if alike[0].least > spare or alike[-1].memory_gib > room:
                    continue
                yield from _best_points((*content, alike), size)
                if beside[place] and len(content) + 1 < most:
                    stack.append((place + 1, (*content, beside[place])))

    def _shareable(self, tenants: Sequence[ContentTenant]) -> list[ContentTenant]:
        """Those that may stand beside others."""
        return [tenant for tenant in tenants if not self.problem.choices[tenant.choice].needs_own_slice]

    def _add_models(self) -> None:
        self.level = self.rows.add_columns([-1.0], [INF])
        self.rows.continuous.add(self.level)
        for case, terms in self.rates.items():
            spec = self.problem.request.models[self.problem.cases[case].model]
            unit = unit_rps(spec) / self.scale
            columns, rates = [column for column, _ in terms], [rate / unit for _, rate in terms]
            self.rows.add_row(0.0, INF, [*columns, self.level], [*rates, -1.0])
            if spec.min_throughput_rps:
                self.rows.add_row(spec.min_throughput_rps / unit, INF, columns, rates)
            if spec.cap_at_demand:
                self.rows.upper[self.level] = min(self.rows.upper[self.level], spec.demand_rps / unit)


def _best_points(
    content: Sequence[Sequence[ContentTenant]], size: float
) -> Iterator[tuple[ContentTenant, ...]]:
    """A point of each, best first, that fit together, where no better one of any of them would fit."""
    for places in product(*(range(len(alike)) for alike in content)):
        room = size - sum(alike[place].memory_gib for alike, place in zip(content, places, strict=True))
        if room >= 0 and all(
            place == 0 or alike[place - 1].memory_gib - alike[place].memory_gib > room
            for alike, place in zip(content, places, strict=True)
        ):
            yield tuple(alike[place] for alike, place in zip(content, places, strict=True))
            if not any(places):
                return


def _names(tenants: Sequence[ContentTenant]) -> tuple[tuple[int, float], ...]:
    return tuple((tenant.case, tenant.least) for tenant in tenants)
