"""Levels decided on few GPUs: is there a plan at a level, for all layouts of the fleet and all options of the models?

A node of the search is a box (level_program.py) with the layouts of the fleet (counts of all GPUs' layouts) that are
still open in it.

1. Prices. At any prices π the models cost Σ_m c_m whatever the layouts are, so one price vector refutes every fleet of
   layouts worth less. Those met before come first (price_pool.py); they also take options at the ends of a model's
   range out of the box. New prices are those of the linear program that holds open layouts; it goes on until none is
   open, which refutes the box, or until it has a solution.
2. Branching by prices. Where the prices met refute a part of the box for these layouts, it is divided there.
3. Contents. Else, for these layouts, whole numbers of slices by content (slice_contents.py), where each model has the
   least share of its quickest option in the box and may use the points of its slowest: where there is none, the layouts
   are closed. A solution in which all tenancies of a model have the share of its longest latency is a plan. Else a
   model has a tenancy with less than that share: its options are divided between the two, and the solution is in
   neither part. Where the box is too wide for contents, or they took too long, it is divided by prices.

Exhausted, the level is refuted. Nodes that could be neither closed nor divided leave it undecided.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement

import numpy as np

from torchsplit_core.planning.fractional.model_patterns.level_bounds import positive_rates
from torchsplit_core.planning.fractional.model_patterns.level_program import LevelProgram, ModelPatterns
from torchsplit_core.planning.fractional.model_patterns.patterns import Box, Vector
from torchsplit_core.planning.fractional.model_patterns.plan_search import PlanSearch
from torchsplit_core.planning.fractional.model_patterns.price_pool import BoxDivision, PricePool
from torchsplit_core.planning.fractional.slice_contents import (
    LEVEL_SCALE,
    MAX_CONTENTS,
    MEMORY_STEP,
    ContentPlan,
    ContentProgram,
    Points,
    list_options,
    list_points,
)
from torchsplit_core.planning.patterns.capacity import Counts, FleetCapacity
from torchsplit_core.planning.tolerance import TOLERANCE
from torchsplit_core.solver.highs import ProgramRejected

MAX_FLEETS = 50_000
"""Layouts of the fleet above which the search does not apply."""

NODE_CONTENTS, NODE_S = 800, 0.5
"""Contents and seconds of a node's program, above which its box is divided by prices."""

WIDE, NARROW = 1e6, 100
"""Combinations of the models' options in a box: above the first, contents leave nearly all open; up to the second, they
count memory exactly."""

FEW_FLEETS = 20
"""Open fleets above which the linear program is solved with divisible layouts first."""

DRAWN = 4
"""Latencies drawn from a solution of the linear program by their parts there, beside the likely ones."""

MAX_CLOSED = 10
"""Fleets without contents in a box, after which it is divided."""

COLUMNS = 2
"""A model's cheapest patterns, of different options, that are added to the linear program at a time."""

LEAF_S = 5.0
"""Seconds of the program of a node that cannot be divided."""

FIRST_STEP = 0.1
"""Part of what is between plan and bound by which levels fall at first."""

QUICK, SLOW = 0.05, 0.15
"""Parts of the remaining time that a level takes, below which steps grow by half and above which they are halved."""

TRY_SHARE = 0.5
"""Part of the remaining time for a level; then one above is tried where nodes are left."""

MAX_UNDECIDED = 12
"""Levels without any result after which the search ends."""

CLOSE = 2e-3
"""Relative gap below which the level just above the plan is tried."""

DECIDED = 1e-5
"""Relative distance of plan and bound that is not decided: the solver's tolerance of whole numbers moves levels."""

SHARE_SLACK = 1e-7
"""Least part of a slice that a tenancy lacks."""


@dataclass(frozen=True)
class _Node:
    """A part of all options, what prices leave of it, and the fleets (indices) open there at a level."""

    part: Box
    box: Box
    open: Counts
    level: float
    refuted: float
    """The lowest level known to be refuted in the part."""
    prices: Vector | None = None
    """Those that nearly refuted it there."""

    @property
    def size(self) -> float:
        """Combinations of the models' options."""
        return math.prod(float(end - first) for first, end in self.box.values())

    def divided(self, division: BoxDivision) -> tuple[_Node, _Node]:
        """Its two parts."""
        model, option = division.model, division.option

        def lower(box: Box) -> Box:
            return {**box, model: (box[model][0], option)}

        def upper(box: Box) -> Box:
            return {**box, model: (option, box[model][1])}

        return (
            replace(self, part=lower(self.part), box=lower(self.box)),
            replace(self, part=upper(self.part), box=upper(self.box)),
        )


@dataclass
class LevelSearch:
    """A search between the level that a plan has `reached`, which its caller raises, and a `bound` that it lowers."""

    patterns: ModelPatterns
    reached: float
    bound: float
    known: ContentPlan | None = None
    """The plan that has reached it, if contents cover it."""
    first_bound: float = field(init=False)
    fleets: Counts = field(init=False)
    """GPUs by layout column for each fleet."""
    slices: Counts = field(init=False)
    """Its slices by pool."""
    points: Points = field(init=False)
    least_shares: dict[int, list[float]] = field(init=False)
    pool: PricePool | None = None
    nodes: list[_Node] = field(init=False)
    """Those that all options are divided into."""
    plans: PlanSearch = field(init=False)
    draw: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        self.first_bound = self.bound
        self.fleets = _list_fleets(self.patterns.capacity)
        self.slices = self.fleets @ self.patterns.capacity.slices.T
        self.points = list_points(self.patterns.problem)
        self.least_shares = list_options(self.patterns.problem)
        box = self.patterns.whole_box
        self.nodes = [_Node(box, box, np.arange(len(self.fleets)), 0.0, self.bound)]
        self.plans = PlanSearch(self.patterns.problem, self, self.known)

    def run(self, deadline: float) -> Generator[ContentPlan, None, None]:
        """Plans above the level reached until `deadline` (time.perf_counter); the caller then raises `reached`, and
        closes what it does not exhaust: a thread seeks plans as long."""
        with self.plans.begun(deadline):
            yield from self._run(deadline)
        # What was still sought when the search ended.
        while (plan := self.plans.better()) is not None:
            yield plan

    def _run(self, deadline: float) -> Iterator[ContentPlan]:
        step, undecided = FIRST_STEP * (self.bound - self.reached), 0
        while undecided < MAX_UNDECIDED and time.perf_counter() < deadline and self._is_open():
            begun = time.perf_counter()
            search = _NodeSearch(self, self._level(step, undecided))
            while (plan := search.next_plan(begun + TRY_SHARE * (deadline - begun))) is not None:
                yield plan
                self.plans.start_from(plan)
                if self.reached >= search.level * (1 - TOLERANCE) and self._is_open():
                    # What is refuted stays so at a higher level: the search goes on where it is.
                    search.raise_to(self._level(step, 0))
                elif not self._is_open() or plan.level >= search.level * (1 - TOLERANCE):
                    # Decided, or the caller could not lay it out.
                    break
            self.nodes = search.closed + search.stack
            bound = max(node.refuted for node in self.nodes)
            undecided = 0 if bound < self.bound else undecided + 1
            self.bound = min(self.bound, bound)
            taken = (time.perf_counter() - begun) / (deadline - begun)
            if taken < QUICK:
                step *= 1.5
            elif taken > SLOW:
                step /= 2

    def _is_open(self) -> bool:
        # Where no level above 0 is possible, steps would not end.
        return self.bound - self.reached > 2 * DECIDED * max(self.reached, CLOSE * self.first_bound)

    def _level(self, step: float, undecided: int) -> float:
        """A step below the bound, at most half way to the plan; less where levels were left undecided."""
        between = self.bound - self.reached
        if between <= CLOSE * self.bound:
            return self.reached * (1 + DECIDED)
        return float(self.bound - min(step, between / 2) / 2**undecided)


def has_few_fleets(patterns: ModelPatterns) -> bool:
    """Whether the layouts of the fleet are few enough, and no GPUs are taken together.

    Requires that contents cover the request (`is_known`).
    """
    capacity = patterns.capacity
    if len(capacity.at_most) or not patterns.is_complete:
        return False
    columns = np.bincount(capacity.group_of, minlength=len(capacity.gpus)).tolist()
    counts = zip(capacity.gpus.tolist(), columns, strict=True)
    return math.prod(math.comb(n + k - 1, n) for n, k in counts) <= MAX_FLEETS


def _list_fleets(capacity: FleetCapacity) -> Counts:
    """Every multiset of layouts that gives each GPU one."""
    width = len(capacity.columns)
    fleets = np.zeros((1, width), dtype=np.int64)
    for group, gpus in enumerate(capacity.gpus.tolist()):
        columns = np.flatnonzero(capacity.group_of == group).tolist()
        if columns:
            counts = np.array(
                [np.bincount(c, minlength=width) for c in combinations_with_replacement(columns, gpus)]
            )
            fleets = (fleets[:, None, :] + counts[None]).reshape(-1, width)
    return fleets


@dataclass
class _NodeSearch:
    """The nodes that are not refuted at one level, depth first."""

    search: LevelSearch
    level: float
    stack: list[_Node] = field(init=False)
    closed: list[_Node] = field(init=False)
    """Those refuted, and those that could be neither closed nor divided."""
    program: LevelProgram = field(init=False)
    pool: PricePool = field(init=False)

    def __post_init__(self) -> None:
        search, patterns = self.search, self.search.patterns
        self.closed = [node for node in search.nodes if node.refuted <= self.level]
        everything = np.arange(len(search.fleets))
        self.stack = [
            node if node.level <= self.level else replace(node, box=node.part, open=everything)
            for node in search.nodes
            if node.refuted > self.level
        ]
        rates = positive_rates(patterns.problem, self.level)
        if search.pool is None:
            search.pool = PricePool(patterns, rates, search.slices)
        self.pool = search.pool
        self.raise_to(self.level)

    def raise_to(self, level: float) -> None:
        """Ask for this level; nodes refuted at a lower one stay so."""
        patterns = self.search.patterns
        rates = positive_rates(patterns.problem, level)
        self.level, self.program = level, LevelProgram(patterns, rates)
        self.pool.adapt(rates)

    def next_plan(self, until: float) -> ContentPlan | None:
        """A plan at the level; None where there is no further one, or none in time."""
        while self.stack and time.perf_counter() < until:
            plan = self._look_at(self.stack.pop(), until) or self.search.plans.better()
            if plan is not None:
                return plan
        return None

    def _look_at(self, node: _Node, until: float) -> ContentPlan | None:
        """A plan in this node; else it is closed, divided, or back on the stack when time is up."""
        closed = 0
        while True:
            node, fleet = self._refute(node, until, divisible=not closed)
            if not len(node.open):
                prices = self.pool.nearest(node.box)
                self.closed.append(replace(node, refuted=self.level, prices=prices))
                return None
            if fleet is None:
                self.stack.append(node)
                return None
            division, undivided = self.pool.divide(node.box, fleet), node.size == 1
            contents, status = None, "unknown"
            if node.size <= WIDE and (division is None or not division.refutes):
                contents = _Contents(self, node, fleet)
                status = contents.solve(min(LEAF_S if undivided else NODE_S, until - time.perf_counter()))
            if status == "infeasible":
                node, closed = replace(node, open=node.open[node.open != fleet]), closed + 1
                if undivided or closed < MAX_CLOSED or not len(node.open):
                    continue
            if status == "plan" and contents is not None:
                # Its box may hold a better one.
                self.stack.append(node)
                return contents.plan()
            self.search.plans.repair(self._mixed_shares())
            if status == "relaxed" and contents is not None:
                self.search.plans.repair(contents.repairs(self.search.least_shares))
                division = contents.division(node.box) or division
            if division is None:
                self.closed.append(node)
            else:
                lower, upper = node.divided(division)
                parts = self.program.weights().get(division.model, {})
                below = sum(part for option, part in parts.items() if option < division.option)
                # The part that the linear program has more of comes first: it may have a plan.
                self.stack += (upper, lower) if 2 * below > sum(parts.values()) else (lower, upper)
            return None

    def _mixed_shares(self) -> Iterator[dict[int, float]]:
        """By case the least share of the option that most of a model has in the linear program, and of the quickest."""
        patterns, weights = self.search.patterns, self.program.weights()
        if len(weights) < len(patterns.options):
            return
        for by_weight in (True, False):
            least = {}
            for model, parts in weights.items():
                option = max(parts, key=parts.__getitem__) if by_weight else min(parts)
                least[patterns.options[model][option].case] = _least(patterns, model, option)
            yield least
        for _ in range(DRAWN):
            drawn = (
                patterns.options[model][self.search.draw.choices(list(parts), list(parts.values()))[0]]
                for model, parts in weights.items()
            )
            yield {option.case: option.stages[0].least for option in drawn}

    def _refute(self, node: _Node, until: float, *, divisible: bool) -> tuple[_Node, int | None]:
        """What prices leave of the node, and a fleet for which the linear program has a solution; None without any, or
        when time is up. `divisible`: layouts are divisible first, where many fleets are open."""
        known, node, near, fleet = node.prices, self._shrunk(node), None, -1
        if known is not None and len(node.open):
            self.pool.add(node.box, known)
            node = replace(self._shrunk(node), prices=None)
        if divisible and len(node.open) > FEW_FLEETS:
            node, solved = self._generate(node, None, until)
            # Those near a solution of divisible layouts often have one too.
            near = self.program.layouts() if solved else None
            node = self._shrunk(node)
        while len(node.open) and time.perf_counter() < until:
            if fleet not in node.open:
                fleet = self._likely(node, near)
            node, solved = self._generate(node, fleet, until)
            shrunk = self._shrunk(node)
            if solved and shrunk.box == node.box and fleet in shrunk.open:
                return shrunk, fleet
            node = shrunk
        return node, None

    def _shrunk(self, node: _Node) -> _Node:
        box, fleets = self.pool.shrink(node.box, node.open)
        return replace(node, box=box, open=fleets, level=self.level)

    def _likely(self, node: _Node, near: Vector | None) -> int:
        """An open fleet that may have a solution."""
        if near is None:
            return self.pool.likely(node.box, node.open)
        distances = np.abs(self.search.fleets[node.open] - near).sum(axis=1)
        return int(node.open[distances.argmin()])

    def _generate(self, node: _Node, fleet: int | None, until: float) -> tuple[_Node, bool]:
        """The node with the fleets that prices leave open, and whether the linear program has a solution.

        It has the layouts of a fleet, or divisible ones, and goes on until it has a solution or these are closed.
        """
        program, pool = self.program, self.pool
        program.restrict(node.box)
        if fleet is None:
            program.release()
        else:
            program.hold(self.search.fleets[fleet])
        priced = None
        while time.perf_counter() < until:
            solved = bool(program.columns) and not program.solve()
            if solved and priced is not None:
                return node, True
            priced = pool.add(node.box, program.prices)
            node = replace(node, open=pool.last_open(node.box, node.open))
            if not len(node.open) or (fleet is not None and fleet not in node.open):
                return node, False
            if not program.improve(pool.cheapest(priced, node.box, COLUMNS)) or solved:
                return node, True
        return node, False


class _Contents:
    """The program of contents of a box on one fleet's layouts."""

    def __init__(self, nodes: _NodeSearch, node: _Node, fleet: int) -> None:
        search, box = nodes.search, node.box
        problem, patterns = search.patterns.problem, search.patterns
        self.patterns = patterns
        self.most = MAX_CONTENTS if node.size == 1 else NODE_CONTENTS
        self.least: dict[int, float] = {}
        """By choice the least share of its own latency."""
        offered = [pool for row, pool in enumerate(patterns.capacity.pools) if search.slices[fleet, row]]
        points: Points = {pool: {} for pool in offered}
        options: dict[int, list[float]] = {}
        for model, (first, end) in box.items():
            case, quickest = patterns.options[model][first].case, _least(patterns, model, first)
            usable = {int(n) for n in patterns.options[model][end - 1].stages[0].choices}
            longest = max(
                least
                for by_case in search.points.values()
                for least, _, n in by_case.get(case, ())
                if n in usable
            )
            options[case] = [quickest]
            for pool in offered:
                for least, rate, n in search.points.get(pool, {}).get(case, ()):
                    if least <= longest + SHARE_SLACK:
                        self.least[n] = least
                        points[pool].setdefault(case, []).append((min(least, quickest), rate, n))
        scale = LEVEL_SCALE / nodes.level
        for step in (0.0, MEMORY_STEP) if node.size <= NARROW else (MEMORY_STEP,):
            self.program = ContentProgram(
                problem, points, options, scale, relaxed=True, most=self.most, memory_step=step
            )
            if len(self.program.contents) <= self.most:
                break
        layouts = dict(zip(patterns.capacity.columns, search.fleets[fleet].tolist(), strict=True))
        self.program.ask(nodes.level, layouts)
        self.values: list[float] = []
        self.crowded = False
        """Whether the tenants of a slice need more than its memory."""
        self.shares: dict[int, tuple[float, float]] = {}
        """By case the longest latency in use and the least share."""
        self.lacking: dict[int, tuple[float, float]] = {}
        """Those whose least share is less."""

    def solve(self, seconds: float) -> str:
        """plan, infeasible (proven), relaxed (a solution that is no plan), or unknown."""
        if len(self.program.contents) > self.most:
            return "unknown"
        try:
            solution = self.program.rows.solve(seconds, first=True, sub_programs=False)
        except ProgramRejected:
            return "unknown"
        if not len(solution.values):
            return solution.status
        self.values = solution.values.tolist()
        problem, shares = self.patterns.problem, self.shares
        for placed in self.program.read(self.values).patterns:
            pattern = placed.pattern
            size = problem.slice_memory_gib(*placed.slice_class)
            needs = [
                0.0 if problem.choices[c].needs_own_slice else problem.choices[c].memory_gib
                for c, _ in pattern
            ]
            self.crowded |= sum(needs) > size * (1 + TOLERANCE)
            spare = max(0.0, 1 - sum(share for _, share in pattern)) / len(pattern)
            for choice, share in pattern:
                case = problem.choices[choice].case
                longest, least = shares.get(case, (0.0, 1.0))
                shares[case] = max(longest, self.least[choice]), min(least, share + spare)
        self.lacking = {case: item for case, item in shares.items() if item[1] < item[0] - SHARE_SLACK}
        return "relaxed" if self.lacking or self.crowded else "plan"

    def plan(self) -> ContentPlan:
        """The plan of the last solution."""
        return self.program.read(self.values)

    def repairs(self, least_shares: Mapping[int, list[float]]) -> Iterator[dict[int, float]]:
        """By case the least share, where that of its longest latency is lacking the next one at or below the share it
        has, or the one half way between; nothing where none is lacking."""
        for part in (0.0, 0.5) if self.lacking else ():
            least = {case: longest for case, (longest, _) in self.shares.items()}
            for case, (longest, share) in self.lacking.items():
                wanted = share + part * (longest - share)
                parts = least_shares[case]
                least[case] = max((p for p in parts if p <= wanted + SHARE_SLACK), default=parts[0])
            yield least

    def division(self, box: Box) -> BoxDivision | None:
        """Of the model that lacks most; None if none can be divided there."""
        best: tuple[float, BoxDivision] | None = None
        for model, (first, end) in box.items():
            case = self.patterns.options[model][first].case
            if case not in self.lacking:
                continue
            longest, share = self.lacking[case]
            parts = {option: _least(self.patterns, model, option) for option in range(first + 1, end)}
            between = [option for option, part in parts.items() if share < part <= longest + SHARE_SLACK]
            if between and (best is None or longest - share > best[0]):
                middle = (longest + share) / 2
                option = min(between, key=lambda number: abs(parts[number] - middle))
                best = longest - share, BoxDivision(model, option)
        return None if best is None else best[1]


def _least(patterns: ModelPatterns, model: int, option: int) -> float:
    return patterns.options[model][option].stages[0].least
