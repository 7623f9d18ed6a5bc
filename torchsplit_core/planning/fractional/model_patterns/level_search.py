"""Levels decided on few GPUs: is there a plan at a level, for all layouts of the fleet and all options of the models?

A node of the search is a box (level_program.py) with the layouts of the fleet (counts of all GPUs' layouts) that are
still open in it.

1. Prices. At any prices π the models cost Σ_m c_m whatever the layouts are, so one price vector refutes every fleet of
   layouts worth less. The prices are those of the linear program that holds the open layouts worth most; it goes on
   until none is open, which refutes the box, or until it has a solution.
2. Contents. For these layouts whole numbers of slices by content (slice_contents.py), where each model has the least
   share of its quickest option in the box and may use the points of its slowest: where there is none, the layouts are
   closed. A solution in which all tenancies of a model have the share of its longest latency is a plan.
3. Branching. Else a model has a tenancy with less than that share: its options are divided between the two, and the
   solution is in neither part. Where the contents took too long, by the mix of options in the linear program.

Exhausted, the level is refuted. Nodes that could be neither closed nor divided leave it undecided.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement

import numpy as np

from torchsplit_core.planning.fractional.model_patterns.level_bounds import divide, positive_rates
from torchsplit_core.planning.fractional.model_patterns.level_program import LevelProgram, ModelPatterns
from torchsplit_core.planning.fractional.model_patterns.patterns import Box, Vector
from torchsplit_core.planning.fractional.slice_contents import (
    LEVEL_SCALE,
    MAX_CONTENTS,
    ContentPlan,
    ContentProgram,
    Points,
    contents_with,
    list_options,
    list_points,
)
from torchsplit_core.planning.patterns.capacity import Counts, FleetCapacity
from torchsplit_core.planning.tolerance import TOLERANCE
from torchsplit_core.solver.highs import ProgramRejected

MAX_FLEETS = 50_000
"""Layouts of the fleet above which the search does not apply."""

NODE_CONTENTS, NODE_S = 800, 0.5
"""Contents and seconds of a node's program, above which its box is divided by the linear program."""

CONTENT_WAIT = 3
"""Divisions after which contents are tried again where they were too many or took too long."""

FEW_FLEETS = 20
"""Open fleets above which the linear program is solved with divisible layouts first."""

MAX_CLOSED = 3
"""Fleets without contents in a box, after which it is divided."""

LEAF_S = 5.0
"""Seconds of the program of a node that cannot be divided."""

REPAIR_S = 0.5
"""Seconds of a program of contents near a solution that is no plan."""

TRIED = (0.8, 0.9, 0.5)
"""Positions between plan and bound at which levels are tried, as long as none is decided."""

MAX_TRIED = 12
"""Levels tried without any result, after which the search ends."""

TRY_SHARE = 0.5
"""Part of the remaining time for a level."""

CLOSE = 2e-3
"""Relative gap below which the level just above the plan is tried."""

DECIDED = 1e-5
"""Relative distance of plan and bound that is not decided: the solver's tolerance of whole numbers moves levels."""

SHARE_SLACK = 1e-7
"""Least part of a slice that a tenancy lacks."""


@dataclass(frozen=True)
class _Node:
    """A box, the fleets (indices) open in it, and the prices to begin with."""

    box: Box
    open: Counts
    prices: Vector
    wait: int = 0
    """Divisions before contents are tried again."""


@dataclass
class LevelSearch:
    """A search between the level that a plan has `reached`, which its caller raises, and a `bound` that it lowers."""

    patterns: ModelPatterns
    reached: float
    bound: float
    first_bound: float = field(init=False)
    fleets: Counts = field(init=False)
    """GPUs by layout column for each fleet."""
    slices: Counts = field(init=False)
    """Its slices by pool."""
    points: Points = field(init=False)
    least_shares: dict[int, list[float]] = field(init=False)
    repaired: set[tuple[tuple[int, float], ...]] = field(default_factory=set)
    """Least shares by case for which contents were sought."""
    roots: dict[float, _Node] = field(default_factory=dict)
    """By level the whole box with the fleets that prices left open."""

    def __post_init__(self) -> None:
        self.first_bound = self.bound
        self.fleets = _list_fleets(self.patterns.capacity)
        self.slices = self.fleets @ self.patterns.capacity.slices.T
        self.points = list_points(self.patterns.problem)
        self.least_shares = list_options(self.patterns.problem)
        everything = np.arange(len(self.fleets))
        self.roots[0.0] = _Node(self.patterns.whole_box, everything, self.patterns.first_prices())

    def run(self, deadline: float) -> Iterator[ContentPlan]:
        """Plans above the level reached until `deadline` (time.perf_counter); the caller then raises `reached`."""
        tried = 0
        while tried < MAX_TRIED and time.perf_counter() < deadline and self._is_open():
            until = time.perf_counter() + TRY_SHARE * (deadline - time.perf_counter())
            search = _NodeSearch(self, self._level(tried))
            ended = False
            while not ended:
                plan = search.next_plan(until)
                ended = plan is None
                if plan is not None:
                    yield plan
                    if not self._is_open():
                        return
                    if self.reached >= search.level * (1 - TOLERANCE):
                        # What is refuted stays so at a higher level: the search goes on where it is.
                        tried = 0
                        search.raise_to(self._level(tried))
                    elif plan.level >= search.level * (1 - TOLERANCE):
                        # The caller could not lay it out.
                        break
            if ended and search.is_refuted:
                self.bound, tried = min(self.bound, search.level), 0
            else:
                tried += 1

    def _is_open(self) -> bool:
        # Where no level above 0 is possible, halving would not end.
        return self.bound - self.reached > 2 * DECIDED * max(self.reached, CLOSE * self.first_bound)

    def _level(self, tried: int) -> float:
        if self.bound - self.reached <= CLOSE * self.bound:
            return self.reached * (1 + DECIDED)
        return self.reached + TRIED[tried % len(TRIED)] * (self.bound - self.reached)


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
    """The nodes of one level that are not closed yet, depth first."""

    search: LevelSearch
    level: float
    stack: list[_Node] = field(init=False)
    program: LevelProgram = field(init=False)
    left: bool = False
    """Whether a node was neither closed nor divided."""

    def __post_init__(self) -> None:
        # What is refuted at a lower level is refuted here.
        self.stack = [self.search.roots[max(level for level in self.search.roots if level <= self.level)]]
        self.raise_to(self.level)

    @property
    def is_refuted(self) -> bool:
        """Whether no plan reaches the level."""
        return not self.stack and not self.left

    def raise_to(self, level: float) -> None:
        """Go on at a higher level."""
        patterns = self.search.patterns
        self.level, self.program = level, LevelProgram(patterns, positive_rates(patterns.problem, level))

    def next_plan(self, until: float) -> ContentPlan | None:
        """A plan at the level; None where there is no further one, or none in time."""
        while self.stack and time.perf_counter() < until:
            node = self.stack.pop()
            plan = self._look_at(node, until)
            if plan is not None:
                return plan
        return None

    def _look_at(self, node: _Node, until: float) -> ContentPlan | None:
        """A plan in this node; else what is left of it is closed, divided, or back on the stack when time is up."""
        self.program.restrict(node.box)
        closed = 0
        while True:
            if time.perf_counter() > until:
                self.stack.append(node)
                return None
            node, fleet = self._refute(node, until)
            if node.box == self.search.patterns.whole_box:
                self.search.roots[self.level] = node
            if fleet is None:
                if len(node.open):
                    self.stack.append(node)
                return None
            undivided = all(end - first == 1 for first, end in node.box.values())
            contents = _Contents(self, node.box, fleet, undivided) if undivided or not node.wait else None
            status = "unknown"
            if contents is not None:
                status = contents.solve(min(LEAF_S if undivided else NODE_S, until - time.perf_counter()))
            if status == "infeasible":
                node, closed = replace(node, open=node.open[node.open != fleet]), closed + 1
                if not len(node.open):
                    return None
                if undivided or closed < MAX_CLOSED:
                    continue
            division, wait = None, max(0, node.wait - 1)
            if status == "plan" and contents is not None:
                # Its box may hold a better one.
                self.stack.append(node)
                return contents.plan()
            if status == "relaxed" and contents is not None:
                repaired = self._repair(contents.repairs(self.search.least_shares), until)
                division = contents.division(node.box)
            else:
                repaired = self._repair(self._mixed_shares(), until)
                wait = wait if contents is None else CONTENT_WAIT
            division = division or divide(self.search.patterns, node.box, self.program.weights())
            if division is None:
                self.left = True
                return repaired
            model, option = division
            first, end = node.box[model]
            for part in (first, option), (option, end):
                self.stack.append(_Node({**node.box, model: part}, node.open, node.prices, wait))
            return repaired

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

    def _repair(self, shares: Iterable[Mapping[int, float]], until: float) -> ContentPlan | None:
        """The best plan above the level reached with some of these least shares by case."""
        search, problem = self.search, self.search.patterns.problem
        best: ContentPlan | None = None
        for least in shares:
            key = tuple(sorted(least.items()))
            if key in search.repaired or time.perf_counter() > until:
                continue
            search.repaired.add(key)
            reached = search.reached if best is None else best.level
            plan = contents_with(problem, least, reached, search.bound, REPAIR_S)
            if plan is not None and plan.level > reached:
                best = plan
        return best

    def _refute(self, node: _Node, until: float) -> tuple[_Node, int | None]:
        """The node with the fleets that prices leave open, and one for which the linear program has a solution."""
        patterns, program, search = self.search.patterns, self.program, self.search
        prices, fleets, held, near = node.prices, node.open, -1, None
        if len(fleets) > FEW_FLEETS:
            program.release()
            refuted, prices = patterns.refute(program, node.box, prices, until)
            if refuted:
                return replace(node, open=fleets[:0]), None
            # Those near a solution of divisible layouts often have one too.
            near = program.layouts()
        while time.perf_counter() < until:
            cheapest = patterns.cheapest(node.box, prices, program.rates)
            least = sum(pattern.bound for pattern in cheapest.values())
            worth = search.slices[fleets] @ prices.sum(axis=1)
            left = worth * (1 + TOLERANCE) >= least
            fleets, worth = fleets[left], worth[left]
            if not len(fleets):
                break
            improved = program.improve(cheapest)
            if held not in fleets:
                at = (
                    worth.argmax()
                    if near is None
                    else np.abs(search.fleets[fleets] - near).sum(axis=1).argmin()
                )
                held = int(fleets[at])
                program.hold(search.fleets[held])
            elif not improved:
                return replace(node, open=fleets, prices=prices), held
            short = program.solve_held()
            prices = program.prices
            if not short:
                return replace(node, open=fleets, prices=prices), held
        return replace(node, open=fleets, prices=prices), None


class _Contents:
    """The program of contents of a box on one fleet's layouts."""

    def __init__(self, nodes: _NodeSearch, box: Box, fleet: int, undivided: bool) -> None:
        search = nodes.search
        problem, patterns = search.patterns.problem, search.patterns
        self.patterns = patterns
        self.most = MAX_CONTENTS if undivided else NODE_CONTENTS
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
        self.program = ContentProgram(
            problem, points, options, LEVEL_SCALE / nodes.level, relaxed=True, most=self.most
        )
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

    def division(self, box: Box) -> tuple[int, int] | None:
        """The model that lacks most, and the first option of its upper range; None if none can be divided there."""
        best: tuple[float, int, int] | None = None
        for model, (first, end) in box.items():
            case = self.patterns.options[model][first].case
            if case not in self.lacking:
                continue
            longest, share = self.lacking[case]
            parts = {option: _least(self.patterns, model, option) for option in range(first + 1, end)}
            between = [option for option, part in parts.items() if share < part <= longest + SHARE_SLACK]
            if between and (best is None or longest - share > best[0]):
                middle = (longest + share) / 2
                best = longest - share, model, min(between, key=lambda option: abs(parts[option] - middle))
        return None if best is None else best[1:]


def _least(patterns: ModelPatterns, model: int, option: int) -> float:
    return patterns.options[model][option].stages[0].least
