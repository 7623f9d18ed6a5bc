"""A better plan of shared slices on few GPUs that keeps hard co-locations or survives the loss of any GPU.

Contents of each GPU, a few GPUs at a time. The program of slice_contents.py, in which every GPU is a pool of its own,
with rows for models that stand together. A GPU is open, and any of some sets of models may stand there, or it keeps its
layout and which models stand together.

| row | formula |
|---|---|
| together[g,k] | a[g,k] ≤ Σ_{s∈g with m} n[s] for every member m of set k |
| absent[g,k] | Σ_{s∈g with m} n[s] ≤ X·a[g,k] |
| loss[g,m] | Σ of what m has elsewhere than on g ≥ minimum(m), where the loss of a GPU is to be survived |
| reach[m] | Σ of what m has / need(m) + short[m] ≥ 1 |
| rest[m] | q[m] ≤ level(m), q[m] ≤ RISE · the level of the known plan |

a[g,k] is 1 where the GPU keeps the set. Where service times are limited a tenancy has a least share and counts nearly
like a whole slice: a level somewhat above that of the best plan is asked, of which a content that gives more counts no
more, and Σ short is minimised. Elsewhere t + REST_WEIGHT · mean q is maximised. Both ways what raises other models than
the worst-served one is where the next program begins.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event, Lock
from typing import ClassVar

import numpy as np

from torchsplit_core.planning.fractional.added_tenants.slice_classes import presence_shares
from torchsplit_core.planning.fractional.diving import assign_patterns
from torchsplit_core.planning.fractional.packing import equalise_shares
from torchsplit_core.planning.fractional.slice_contents import (
    LEVEL_SCALE,
    MAX_CONTENTS,
    ContentPlan,
    ContentProgram,
    ContentTenant,
    Points,
    Pool,
    content_plan,
    is_countable,
    list_options,
    list_points,
)
from torchsplit_core.planning.outcome.assignment import Assignment
from torchsplit_core.planning.patterns.colocated import hard_sets
from torchsplit_core.planning.problem.build import Problem
from torchsplit_core.planning.request.objective import requires_resilience, unit_rps
from torchsplit_core.planning.tolerance import TOLERANCE
from torchsplit_core.solver.highs import INF, ProgramRejected
from torchsplit_core.solver.parallel import run_in_threads
from torchsplit_core.values import PlanModel, PlannedGpu

STEP_S = 0.4
"""Most seconds of a program: more of them beat longer ones (S3 with five pairs)."""

STEP, HIGHER, MOST_HIGHER = 0.01, 0.1, 0.05
"""How far above the best plan a level is asked: part of the distance to the bound, within these parts of the level."""

FREE_MODELS, NEARBY, RANDOM = (2, 3), 1, 3
"""Models with other options: so many with random ones, so many with the next ones on either side."""

GUIDED = 0.7
"""Part of the sets added to a GPU that are drawn from those of the worst-served models."""

QUICK_S, MOST_LARGER = 0.08, 3
"""Seconds of a program that is quick: after some of them more is open in the next ones, so many times at most."""

MAX_GPUS = 16

MAX_FAILURES = 150
"""Programs in a row without a better plan after which the search ends."""

REST_WEIGHT, RISE = 0.3, 1.15

RELATIVE_GAP, LEAST_GAIN = 1e-3, 1e-6


@dataclass(frozen=True)
class _Room:
    """What may stand on a GPU: these models, all of each set in `stays`; of a closed one only what `standing` has."""

    models: frozenset[int]
    stays: frozenset[int]
    standing: Mapping[Pool, frozenset[frozenset[int]]] | None = None


@dataclass
class _Size:
    """How much more than at first is open in programs, so that they are neither trivial nor out of reach."""

    steps: int = 0
    ease: int = 0

    def adapt(self, seconds: float) -> None:
        """Grow after quick programs, shrink after others."""
        self.ease += 1 if seconds < QUICK_S else -2
        if self.ease >= 4 or self.ease <= -4:
            self.steps = min(MOST_LARGER, max(0, self.steps + (1 if self.ease > 0 else -1)))
            self.ease = 0


def covers(problem: Problem) -> bool:
    """Whether these contents are what the request is about: hard co-locations of whole models, or a loss survived.

    Not on many GPUs.
    """
    return (
        (bool(problem.colocation_index.hard_members) or requires_resilience(problem.request))
        and _tied_sets(problem) is not None
        and sum(len(group.gpu_ids) for group in problem.groups) <= MAX_GPUS
        and is_countable(problem)
    )


def _tied_sets(problem: Problem) -> tuple[frozenset[int], ...] | None:
    """The models joined by hard co-locations; None if stages are joined."""
    if not problem.colocation_index.hard_members:
        return ()
    sets = hard_sets(problem.colocation_index, len(problem.request.models))
    return None if sets is None else tuple(map(frozenset, sets))


def improve_colocated(
    problem: Problem,
    gpus: Sequence[PlannedGpu],
    level: float,
    bound: float,
    deadline: float,
    free: Sequence[PlannedGpu] = (),
) -> Assignment | None:
    """Shares with a higher level than these GPUs', which keep what ties models and survive like these, by `deadline`.

    Requires a problem with a group for each GPU, which contents cover. No `gpus`: any plan that keeps all minima is
    sought first. None without a better plan. `bound`: no plan has a higher level. `free`: a plan whose least shares are
    tried first.
    """
    sets = _tied_sets(problem)
    start = None if sets is None else content_plan(problem, gpus, level)
    if sets is None or start is None:
        return None
    hints = content_plan(problem, free, level)
    search = _Search(problem, sets, bound, {} if hints is None else hints.least)
    search.is_missing = not gpus
    best = search.run(start, deadline)
    if best is start:
        return None
    assignment = assign_patterns(problem, best.layouts, best.patterns)
    surviving = [m for m, spec in enumerate(problem.request.models) if _outlives_loss(problem, spec)]
    return equalise_shares(problem, assignment, presence_shares(problem), surviving)


def _outlives_loss(problem: Problem, spec: PlanModel) -> bool:
    """Whether the model must keep a minimum without any one GPU."""
    return requires_resilience(problem.request) and bool(spec.min_throughput_rps)


class _Search:
    """Programs around the best plan so far, in several threads."""

    def __init__(
        self,
        problem: Problem,
        tied: Sequence[frozenset[int]],
        bound: float,
        hints: Mapping[int, float],
    ) -> None:
        self.problem, self.bound, self.hints = problem, bound, hints
        alone = set(range(len(problem.request.models))).difference(*tied)
        self.sets = (*tied, *(frozenset((model,)) for model in sorted(alone)))
        self.options, self.points = list_options(problem), list_points(problem)
        self.draw = random.Random(0)
        self.failures, self.turn, self.least = 0, 0, INF
        self.is_missing = False
        """Whether no plan is known that keeps all minima: what is to be raised is then the start for one."""
        self.sizes = {more: _Size() for more in (False, True)}
        self.wanting: frozenset[int] = frozenset()
        """The worst-served models of the plan, or those that lack a part of their minima."""

    def run(self, best: ContentPlan, deadline: float) -> ContentPlan:
        """The best plan found by the deadline; `best` itself without a better one."""
        self.best = self.plan = best
        lock = Lock()

        def work(stopped: Event) -> None:
            while not stopped.is_set():
                with lock:
                    if not self._goes_on(deadline):
                        return
                    known, plan = self.best, self.plan
                    program, size = self._next_program()
                if len(program.contents) > MAX_CONTENTS:
                    continue
                begun = time.perf_counter()
                seconds = min(STEP_S, deadline - begun)
                try:
                    solution = program.rows.solve(
                        seconds, start=program.values_of(plan), relative_gap=program.relative_gap
                    )
                except ProgramRejected:
                    continue
                with lock:
                    size.adapt(time.perf_counter() - begun)
                    if len(solution.values):
                        self._take(program, solution.values, known)

        run_in_threads(work)
        return self.best

    def _goes_on(self, deadline: float) -> bool:
        return (
            (self.is_missing or self.failures < MAX_FAILURES)
            and time.perf_counter() < deadline
            and self.best.level < self.bound * (1 - TOLERANCE)
        )

    def _next_program(self) -> tuple[_ColocatedProgram, _Size]:
        turn, self.turn, self.failures = self.turn, self.turn + 1, self.failures + 1
        more = self.is_missing or turn % 4 >= 2
        rooms = self._rooms(self.plan, turn, more)
        opened = frozenset[int]().union(*(room.models for room in rooms if room.standing is None))
        options = self._options(self.plan, turn, opened)
        return self._program(options, rooms, self.best, self.plan), self.sizes[more]

    def _take(self, program: _ColocatedProgram, values: np.ndarray, known: ContentPlan) -> None:
        """Go on from a solution that is better or as good; `known`: the best plan when the program was made."""
        other, lacking = program.read(values.tolist()), float(values @ np.array(program.rows.cost))
        if self.is_missing != isinstance(program, _KeepingProgram):
            # Another thread has found the first plan meanwhile.
            return
        if lacking < LEAST_GAIN if self.is_missing else other.level > self.best.level * (1 + LEAST_GAIN):
            self.is_missing, self.best, self.plan = False, other, other
            self.failures, self.least = 0, INF
        elif lacking <= self.least and known.level == self.best.level:
            self.failures = 0 if self.least - lacking > STEP * abs(self.least) else self.failures
            self.plan, self.least = other, lacking
            if isinstance(program, _RaisingProgram):
                # Raising keeps the first level, so that others are worth having.
                self.best = self.plan = replace(other, level=self.best.level)
        else:
            return
        self.wanting = program.wanting(values)

    def _program(
        self, options: Mapping[int, list[float]], rooms: Sequence[_Room], best: ContentPlan, plan: ContentPlan
    ) -> _ColocatedProgram:
        wanted = best.level + HIGHER * (self.bound - best.level)
        if best.level > 0:
            wanted = min(max(wanted, best.level * (1 + STEP)), best.level * (1 + MOST_HIGHER), self.bound)
        kind: type[_ColocatedProgram] = (
            _ReachingProgram if self.problem.limits_service_times else _RaisingProgram
        )
        if self.is_missing:
            kind, wanted = _KeepingProgram, self.bound
        return kind(self.problem, self.points, options, wanted, self.sets, rooms, plan)

    def _options(self, best: ContentPlan, turn: int, opened: frozenset[int]) -> dict[int, list[float]]:
        """The least shares of the best plan, and others for a few of the models on open GPUs."""
        options = {case: [best.least.get(case, every[0])] for case, every in self.options.items()}
        if not turn:
            return options
        nearby = turn % 4 == 1
        count = FREE_MODELS[nearby] if turn % 4 != 3 else 1
        cases = [case for case in sorted(options) if self.problem.cases[case].model in opened]
        for case in self.draw.sample(cases, min(count, len(cases))):
            every = self.options[case]
            at = max((place for place, part in enumerate(every) if part <= options[case][0]), default=0)
            others = (
                every[max(0, at - NEARBY) : at + NEARBY + 1]
                if nearby
                else self.draw.sample(every, min(RANDOM, len(every)))
            )
            if case in self.hints:
                others = [*others, self.hints[case]]
            options[case] = sorted({options[case][0], *others})
        return options

    def _rooms(self, best: ContentPlan, turn: int, more: bool) -> list[_Room]:
        """All GPUs open at first; then a few, where `more` with one or two more sets each, mostly such as lack."""
        groups = range(len(self.problem.groups))
        there = _models_by_gpu(self.problem, best)
        standing: dict[int, dict[Pool, set[frozenset[int]]]] = {g: {} for g in groups}
        for (pool, tenants), count in best.contents.items():
            if count:
                standing[pool[0]].setdefault(pool, set()).add(frozenset(case for case, _ in tenants))
        larger = self.sizes[more].steps
        most = self.draw.choice((1, 2) if more and not self.is_missing else (2, 3))
        most += (larger + 1) // 2 if more else larger
        opened = set(groups) if not turn else set(self.draw.sample(groups, min(most, len(groups))))
        lacking = [k for k, members in enumerate(self.sets) if members & self.wanting]
        rooms = []
        for g in groups:
            sets = frozenset(k for k, members in enumerate(self.sets) if members & there[g])
            if g not in opened:
                closed = {pool: frozenset(cases) for pool, cases in standing[g].items()}
                rooms.append(_Room(there[g], sets, closed))
                continue
            allowed = set(sets)
            for _ in range(1 + larger // 2 if more else 0):
                absent = sorted(set(range(len(self.sets))) - allowed)
                wanted = [k for k in lacking if k not in allowed]
                if absent:
                    guided = bool(wanted) and self.draw.random() < GUIDED
                    allowed.add(self.draw.choice(wanted if guided else absent))
            models = frozenset[int]().union(*(self.sets[k] for k in allowed))
            rooms.append(_Room(models, frozenset() if more else sets))
        return rooms


def _models_by_gpu(problem: Problem, plan: ContentPlan) -> list[frozenset[int]]:
    """The models on each GPU, by its group."""
    there: list[set[int]] = [set() for _ in problem.groups]
    for (pool, tenants), count in plan.contents.items():
        if count:
            there[pool[0]].update(problem.cases[case].model for case, _ in tenants)
    return [frozenset(models) for models in there]


class _ColocatedProgram(ContentProgram):
    """The program for some options of each case and what may stand on each GPU, near a `wanted` level."""

    relative_gap: ClassVar[float | None] = None

    def __init__(
        self,
        problem: Problem,
        points: Points,
        options: Mapping[int, list[float]],
        wanted: float,
        sets: Sequence[frozenset[int]],
        rooms: Sequence[_Room],
        best: ContentPlan,
    ) -> None:
        self.sets, self.rooms = sets, rooms
        allowed = {
            pool: {
                case: offered
                for case, offered in by_case.items()
                if problem.cases[case].model in rooms[pool[0]].models
            }
            for pool, by_case in points.items()
        }
        super().__init__(problem, allowed, options, LEVEL_SCALE / wanted)
        if len(self.contents) > MAX_CONTENTS:
            return
        for (group, layout), column in self.layouts.items():
            if rooms[group].standing is not None and (group, layout) not in best.layouts:
                self.rows.upper[column] = 0.0
        self.present: dict[tuple[int, int], int] = {}
        self._add_presence()
        self._survive()
        self._begin_with(best)

    def wanting(self, values: np.ndarray) -> frozenset[int]:
        """The models to which a solution gives little more than to the worst-served one."""
        levels = self._levels(values)
        most = min(levels.values()) * (1 + STEP)
        return frozenset(self.problem.cases[case].model for case, level in levels.items() if level <= most)

    def _levels(self, values: Sequence[float] | np.ndarray) -> dict[int, float]:
        """By case its level."""
        return {
            case: sum(values[column] * rate for column, rate in terms)
            / unit_rps(self.problem.request.models[self.problem.cases[case].model])
            for case, terms in self.rates.items()
        }

    def _begin_with(self, best: ContentPlan) -> None:
        """Rows that the plan to begin with sets."""

    def values_of(self, plan: ContentPlan) -> dict[int, float]:
        values = super().values_of(plan)
        there = _models_by_gpu(self.problem, plan)
        values.update({column: float(self.sets[k] <= there[g]) for (g, k), column in self.present.items()})
        return values

    def _list_contents(
        self, pool: Pool, tenants: Sequence[Sequence[ContentTenant]]
    ) -> Iterator[tuple[ContentTenant, ...]]:
        room = self.rooms[pool[0]]
        if room.standing is None:
            yield from super()._list_contents(pool, tenants)
            return
        together = room.standing.get(pool, frozenset())
        cases = frozenset[int]().union(*together)
        for content in super()._list_contents(pool, [alike for alike in tenants if alike[0].case in cases]):
            if frozenset(tenant.case for tenant in content) in together:
                yield content

    def _survive(self) -> None:
        """Rows of what models keep without each GPU."""
        gpu_of: dict[int, int] = {}
        for column, (pool, tenants) in self.contents.items():
            # Its shares follow its column.
            gpu_of.update(dict.fromkeys(range(column, column + 1 + len(tenants)), pool[0]))
        for case, terms in self.rates.items():
            spec = self.problem.request.models[self.problem.cases[case].model]
            if not _outlives_loss(self.problem, spec):
                continue
            least = (spec.min_throughput_rps or 0.0) * (1 + TOLERANCE)
            for lost in sorted({gpu_of[column] for column, _ in terms}):
                others = [(column, rate / least) for column, rate in terms if gpu_of[column] != lost]
                others += self._shortage(case)
                self.rows.add_row(1.0, INF, [column for column, _ in others], [rate for _, rate in others])

    def _shortage(self, case: int) -> list[tuple[int, float]]:
        """The columns of what a model may lack of its minimum."""
        return []

    def _add_presence(self) -> None:
        using: dict[tuple[int, int], list[int]] = {}
        for column, (pool, tenants) in self.contents.items():
            for tenant in tenants:
                using.setdefault((pool[0], self.problem.cases[tenant.case].model), []).append(column)
        for g, room in enumerate(self.rooms):
            for k, members in enumerate(self.sets):
                if len(members) < 2 or not members <= room.models:
                    continue
                if k not in room.stays:
                    self.present[g, k] = self.rows.add_columns([0.0], [1.0])
                for model in sorted(members):
                    columns = using.get((g, model), [])
                    ones = [1.0] * len(columns)
                    if k in room.stays:
                        self.rows.add_row(1.0, INF, columns, ones)
                        continue
                    most = sum(self.rows.upper[column] for column in columns)
                    self.rows.add_row(0.0, INF, [*columns, self.present[g, k]], [*ones, -1.0])
                    self.rows.add_row(-INF, 0.0, [*columns, self.present[g, k]], [*ones, -most])


class _ReachingProgram(_ColocatedProgram):
    """What models lack of the wanted level is minimised."""

    def _add_models(self) -> None:
        for case, terms in self.rates.items():
            spec = self.problem.request.models[self.problem.cases[case].model]
            unit = unit_rps(spec) / self.scale
            need = LEVEL_SCALE
            if spec.cap_at_demand:
                need = min(need, spec.demand_rps / unit)
            short = self.rows.add_columns([1.0], [need])
            self.rows.continuous.add(short)
            columns, rates = [column for column, _ in terms], [rate / unit for _, rate in terms]
            counted = [
                min(rate, need) if column in self.contents else rate
                for (column, _), rate in zip(terms, rates, strict=True)
            ]
            self.rows.add_row(need, INF, [*columns, short], [*counted, 1.0])
            if spec.min_throughput_rps:
                self.rows.add_row(spec.min_throughput_rps / unit, INF, columns, rates)

    def _level(self, values: Sequence[float]) -> float:
        return min(self._levels(values).values())


class _KeepingProgram(_ColocatedProgram):
    """What models lack of their minima is minimised."""

    def _add_models(self) -> None:
        self.lacks: dict[int, int] = {}
        for case, terms in self.rates.items():
            least = self.problem.request.models[self.problem.cases[case].model].min_throughput_rps
            if least:
                self.lacks[case] = self.rows.add_columns([1.0], [1.0])
                self.rows.continuous.add(self.lacks[case])
                columns, rates = [column for column, _ in terms], [rate / least for _, rate in terms]
                self.rows.add_row(1.0, INF, [*columns, self.lacks[case]], [*rates, 1.0])

    def _shortage(self, case: int) -> list[tuple[int, float]]:
        return [(self.lacks[case], 1.0)]

    def wanting(self, values: np.ndarray) -> frozenset[int]:
        return frozenset(
            self.problem.cases[case].model
            for case, column in self.lacks.items()
            if values[column] > LEAST_GAIN
        )

    def _level(self, values: Sequence[float]) -> float:
        return min(self._levels(values).values())


class _RaisingProgram(_ColocatedProgram):
    """The level of the worst-served model is maximised, and with less weight the others."""

    relative_gap = RELATIVE_GAP

    def _begin_with(self, best: ContentPlan) -> None:
        self.require(best.level * (1 - LEAST_GAIN / 10))
        most = RISE * best.level * self.scale or LEVEL_SCALE
        for case, terms in self.rates.items():
            unit = unit_rps(self.problem.request.models[self.problem.cases[case].model]) / self.scale
            column = self.rows.add_columns([-REST_WEIGHT / len(self.rates)], [most])
            self.rows.continuous.add(column)
            columns, rates = [use for use, _ in terms], [rate / unit for _, rate in terms]
            self.rows.add_row(0.0, INF, [*columns, column], [*rates, -1.0])
