"""Plans with shared slices from fills (fills.py), decided a few at a time.

The linear program of fill_program.py says how many slices of each fill would serve best; its prices say which further
fills would serve better, until none would. Then the layouts are made whole, and the fills whose number is largest are
decided, those of at least one slice first; the program is solved again for what is still missing. The tenants found
get their fairest shares (pack.py). Where something is missing in the end, the fills met on the way go into one program
in whole numbers (fill_search.py). What comes out is a plan or nothing: it proves nothing.
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
"""Parts of all models together that may be missing before a dive is given up."""

MAX_NEW_PATTERNS = 8
"""Fills of one pool that are added at most for one set of prices."""

PRICING_ROUNDS, LATER_PRICING_ROUNDS = 40, 3
"""Times that fills are looked for before the layouts are whole, and after each decision."""

DIVE_SHARE = 0.5
"""Part of the time after which a dive is given up for the program in whole numbers."""

DEMAND_MARGINS = (0.0, 0.03, 0.06, 0.1)
"""Parts by which more is wanted when layouts are chosen, one dive after the other: rounding leaves something over."""

MIN_REDUCED_COST = 1e-6
"""Worth above its price that makes a fill worth adding."""


def is_divable(problem: Problem) -> bool:
    """Whether everything that the request asks of a slice is heeded here: no ties, no survival, no penalties."""
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
    """Slices that give every model in `targets` its requests/s for at most this cost; None where none were found.

    Only where `is_divable` says so. `until` is of time.perf_counter. The fills met on the way are added to
    `pattern_pool`: another try begins with them.
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
    return None if selection is None else equalise_shares(problem, _assign_patterns(problem, *selection))


class _Dive:
    """One try: what stands, the fills that are known, and how many slices of which are decided."""

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
        """Whole layouts on which the most of what is wanted can be had at the least cost; None where it cannot."""
        solution = self._generate_columns(None, PRICING_ROUNDS)
        if solution is None or solution.missing > MISSING_TOLERANCE:
            return None
        return self._restricted_master(None).whole_layouts(
            partial_deadline(self.until, 0.5) - time.perf_counter()
        )

    def run(self, layouts: Layouts) -> Assignment | None:
        """Slices of these layouts with tenants and the shares of their fills; None where something is missing."""
        while self.partial_plan.is_incomplete():
            solution = self._generate_columns(layouts, LATER_PRICING_ROUNDS)
            if solution is None or solution.missing > MISSING_TOLERANCE:
                return None
            self._fix_pattern(solution)
        return _assign_patterns(self.problem, layouts, self.decided)

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
        """The program's answer with the fills that its prices ask for; None where there is none, or no time."""
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
        """Fills that are worth more than their slice costs."""
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
        """The whole slices of the fill that most have, or one of it."""
        placed = max(solution.counts, key=lambda candidate: solution.counts[candidate])
        times = max(1, int(solution.counts[placed] + MISSING_TOLERANCE))
        self.partial_plan.commit(placed.pattern, times)
        self.decided[placed] += times


def _assign_patterns(problem: Problem, layouts: Layouts, patterns: Mapping[PlacedPattern, int]) -> Assignment:
    """The fills on slices of these layouts."""
    assignment = assign_layouts(problem, layouts)
    free: dict[ClassKey, list[AssignedSlice]] = {}
    for slice_ in assignment.slices:
        free.setdefault((slice_.group, slice_.profile), []).append(slice_)
    for placed, times in patterns.items():
        for slice_ in free[placed.slice_class][:times]:
            slice_.tenants = [(problem.choices[number], share) for number, share in placed.pattern]
        del free[placed.slice_class][:times]
    return assignment
