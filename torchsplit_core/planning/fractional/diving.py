"""Diving: plans with shared slices, fixed a few slice patterns at a time.

The linear program (restricted_master) says how many slices of each pattern serve best; its prices generate patterns
until none improves it. Then layouts are made whole, and the patterns with the largest numbers are fixed, those of at
least one slice first; the program is solved again for what is missing. Packing gives the tenants found their fairest
shares. If something is still missing, the patterns seen go into one integer program (pattern_selection). The result is
a plan or nothing, without a bound.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping

from torchsplit_core.planning.fractional.packing import equalise_shares
from torchsplit_core.planning.fractional.pattern_selection import PatternSelectionProgram
from torchsplit_core.planning.fractional.restricted_master import (
    ClassKey,
    Layouts,
    MasterSolution,
    PlacedPattern,
    RestrictedMaster,
)
from torchsplit_core.planning.fractional.slice_patterns import PartialPlan, price_slice_patterns
from torchsplit_core.planning.outcome.assignment import AssignedSlice, Assignment, assign_layouts
from torchsplit_core.planning.problem.build import Problem
from torchsplit_core.planning.timing import partial_deadline

MISSING_TOLERANCE = 1e-6
"""Missing parts of all models together above which a dive is abandoned."""

MAX_NEW_PATTERNS = 8
"""Most patterns of a pool that are added at one set of prices."""

PRICING_ROUNDS, LATER_PRICING_ROUNDS = 40, 3
"""Pricing rounds before the layouts are whole, and after each decision."""

DIVE_SHARE = 0.5
"""Part of the time after which a dive is abandoned for the integer program."""

DEMAND_MARGINS = (0.0, 0.03, 0.06, 0.1)
"""Margins on the demands when layouts are chosen, one dive after the other, since rounding loses something."""

MIN_REDUCED_COST = 1e-6
"""Least value above its price for which a pattern is added."""


def is_divable(problem: Problem) -> bool:
    """Whether diving covers what the request asks of a slice: no co-locations, survival or penalties."""
    request = problem.request
    constrained = (
        request.colocations or request.objective.survives or request.objective.memory_violation_penalty
    )
    return not constrained and all(choice.cap_rps >= choice.rate_rps for choice in problem.choices)


def plan_by_diving(
    problem: Problem,
    targets: Mapping[int, float],
    max_cost: float,
    until: float,
    pattern_pool: dict[PlacedPattern, None],
) -> Assignment | None:
    """Slices that give every model in `targets` its requests/s for at most this cost; None if none were found.

    Requires `is_divable`. `until` is of time.perf_counter. Patterns seen are added to `pattern_pool`, with which the
    next dive begins.
    """
    if not targets or not targets.keys() <= {case.model for case in problem.cases}:
        return None
    dives = partial_deadline(until, DIVE_SHARE)
    for margin in DEMAND_MARGINS:
        layout_dive = _Dive(
            problem, {m: rate * (1 + margin) for m, rate in targets.items()}, max_cost, dives, pattern_pool
        )
        layouts = layout_dive.choose_layouts()
        if layouts is None:
            break
        assignment = _Dive(problem, targets, max_cost, dives, pattern_pool).run(layouts)
        fair_assignment = None if assignment is None else equalise_shares(problem, assignment)
        if fair_assignment is not None:
            return fair_assignment
    if not pattern_pool or time.perf_counter() > until:
        return None
    selection = PatternSelectionProgram(problem, targets, pattern_pool, max_cost).solve(
        until - time.perf_counter()
    )
    return None if selection is None else equalise_shares(problem, assign_patterns(problem, *selection))


class _Dive:
    """One dive: the partial plan, the known patterns, and the slices that are fixed."""

    def __init__(
        self,
        problem: Problem,
        targets: Mapping[int, float],
        max_cost: float,
        until: float,
        patterns: dict[PlacedPattern, None],
    ) -> None:
        self.problem, self.partial_plan, self.max_cost = problem, PartialPlan(problem, targets), max_cost
        self.until, self.patterns = until, patterns
        self.slice_classes = self.partial_plan.slice_classes()
        tenants = problem.request.max_tenants_per_slice
        self.max_tenants = len(self.partial_plan.stages) if tenants is None else tenants
        self.decided: Counter[PlacedPattern] = Counter()

    def choose_layouts(self) -> Layouts | None:
        """Whole layouts that serve most of the targets at the least cost; None if they cannot."""
        solution = self._generate_columns(None, PRICING_ROUNDS)
        if solution is None or solution.missing > MISSING_TOLERANCE:
            return None
        return self._restricted_master(None).whole_layouts(
            partial_deadline(self.until, 0.5) - time.perf_counter()
        )

    def run(self, layouts: Layouts) -> Assignment | None:
        """Slices of these layouts with tenants and their patterns' shares; None if something is missing."""
        while self.partial_plan.is_incomplete():
            solution = self._generate_columns(layouts, LATER_PRICING_ROUNDS)
            if solution is None or solution.missing > MISSING_TOLERANCE:
                return None
            self._fix_pattern(solution)
        return assign_patterns(self.problem, layouts, self.decided)

    def _restricted_master(self, layouts: Layouts | None) -> RestrictedMaster:
        slices: Counter[ClassKey] = Counter()
        for placed, times in self.decided.items():
            slices[placed.slice_class] += times
        return RestrictedMaster(
            self.problem,
            self.partial_plan,
            self.slice_classes,
            list(self.patterns),
            slices,
            self.max_cost,
            layouts,
        )

    def _generate_columns(self, layouts: Layouts | None, rounds: int) -> MasterSolution | None:
        """Solve with the patterns that the prices generate; None if there is no solution or no time."""
        solution = None
        for _ in range(rounds):
            solution = self._restricted_master(layouts).solve() if time.perf_counter() < self.until else None
            if solution is None:
                return None
            new = [placed for placed in self._improving_patterns(solution) if placed not in self.patterns]
            if not new:
                break
            self.patterns.update(dict.fromkeys(new))
        return solution

    def _improving_patterns(self, solution: MasterSolution) -> Iterator[PlacedPattern]:
        """Patterns worth more than their slice costs."""
        for key, pool in self.slice_classes.items():
            least = self.partial_plan.least_shares[pool.choices]
            candidates = price_slice_patterns(
                pool, least, self.partial_plan.missing, solution.stage_prices, self.max_tenants
            )
            for _, slice_pattern in zip(range(MAX_NEW_PATTERNS), candidates, strict=False):
                parts = self.partial_plan.contributions(slice_pattern)
                worth = sum(float(solution.stage_prices[row]) * part for row, part in parts.items())
                if worth > solution.slice_prices[key] * (1 + MIN_REDUCED_COST) + MIN_REDUCED_COST:
                    yield PlacedPattern(key, slice_pattern)

    def _fix_pattern(self, solution: MasterSolution) -> None:
        """Fix the whole slices of the most used pattern, or one slice of it."""
        placed = max(solution.counts, key=lambda candidate: solution.counts[candidate])
        times = max(1, int(solution.counts[placed] + MISSING_TOLERANCE))
        self.partial_plan.commit(placed.pattern, times)
        self.decided[placed] += times


def assign_patterns(problem: Problem, layouts: Layouts, patterns: Mapping[PlacedPattern, int]) -> Assignment:
    """The patterns on slices of these layouts."""
    assignment = assign_layouts(problem, layouts)
    free: dict[ClassKey, list[AssignedSlice]] = {}
    for slice_ in assignment.slices:
        free.setdefault((slice_.group, slice_.profile), []).append(slice_)
    for placed, times in patterns.items():
        for slice_ in free[placed.slice_class][:times]:
            slice_.tenants = [(problem.choices[number], share) for number, share in placed.pattern]
        del free[placed.slice_class][:times]
    return assignment
