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

from torchsplit_core.planning.fractional.fill_program import FillProgram, Key, Layouts, Placed, Solved
from torchsplit_core.planning.fractional.fill_search import FillSearch
from torchsplit_core.planning.fractional.fills import Standing, good_fills
from torchsplit_core.planning.fractional.pack import even_out
from torchsplit_core.planning.outcome.assignment import AssignedSlice, Assignment, lay_out
from torchsplit_core.planning.problem.build import Problem
from torchsplit_core.planning.timing import part_of

SHORT = 1e-6
"""Parts of all models together that may be missing before a dive is given up."""

NEW_FILLS = 8
"""Fills of one pool that are added at most for one set of prices."""

ROUNDS, LATER_ROUNDS = 40, 3
"""Times that fills are looked for before the layouts are whole, and after each decision."""

DIVE_PART = 0.5
"""Part of the time after which a dive is given up for the program in whole numbers."""

MORE = (0.0, 0.03, 0.06, 0.1)
"""Parts by which more is wanted when layouts are chosen, one dive after the other: rounding leaves something over."""

GAIN = 1e-6
"""Worth above its price that makes a fill worth adding."""


def can_dive(problem: Problem) -> bool:
    """Whether everything that the request asks of a slice is heeded here: no ties, no survival, no penalties."""
    request = problem.request
    tied = request.colocations or request.objective.survives or request.objective.memory_violation_penalty
    return not tied and all(choice.cap_rps >= choice.rate_rps for choice in problem.choices)


def fill_slices(
    problem: Problem,
    wanted: Mapping[int, float],
    most_cost: float,
    until: float,
    known: dict[Placed, None],
) -> Assignment | None:
    """Slices that give every model in `wanted` its requests/s for at most this cost; None where none were found.

    Only where `can_dive` says so. `until` is of time.perf_counter. The fills met on the way are added to `known`:
    another try begins with them.
    """
    if not wanted or not wanted.keys() <= {case.model for case in problem.cases}:
        return None
    dives = part_of(until, DIVE_PART)
    for more in MORE:
        laid_out = _Dive(
            problem, {m: rate * (1 + more) for m, rate in wanted.items()}, most_cost, dives, known
        )
        layouts = laid_out.layouts()
        if layouts is None:
            break
        found = _Dive(problem, wanted, most_cost, dives, known).run(layouts)
        even = None if found is None else even_out(problem, found)
        if even is not None:
            return even
    if not known or time.perf_counter() > until:
        return None
    answer = FillSearch(problem, wanted, known, most_cost).solve(until - time.perf_counter())
    return None if answer is None else even_out(problem, _assigned(problem, *answer))


class _Dive:
    """One try: what stands, the fills that are known, and how many slices of which are decided."""

    def __init__(
        self,
        problem: Problem,
        wanted: Mapping[int, float],
        most_cost: float,
        until: float,
        fills: dict[Placed, None],
    ) -> None:
        self.problem, self.standing, self.most_cost = problem, Standing(problem, wanted), most_cost
        self.until, self.fills = until, fills
        self.pools = self.standing.pools()
        tenants = problem.request.max_tenants_per_slice
        self.tenants = len(self.standing.stages) if tenants is None else tenants
        self.decided: Counter[Placed] = Counter()

    def layouts(self) -> Layouts | None:
        """Whole layouts on which the most of what is wanted can be had at the least cost; None where it cannot."""
        answer = self._converged(None, ROUNDS)
        if answer is None or answer.short > SHORT:
            return None
        return self._program(None).whole_layouts(part_of(self.until, 0.5) - time.perf_counter())

    def run(self, layouts: Layouts) -> Assignment | None:
        """Slices of these layouts with tenants and the shares of their fills; None where something is missing."""
        while self.standing.open():
            answer = self._converged(layouts, LATER_ROUNDS)
            if answer is None or answer.short > SHORT:
                return None
            self._decide(answer)
        return _assigned(self.problem, layouts, self.decided)

    def _program(self, layouts: Layouts | None) -> FillProgram:
        slices: Counter[Key] = Counter()
        for placed, times in self.decided.items():
            slices[placed.pool] += times
        return FillProgram(
            self.problem, self.standing, self.pools, list(self.fills), slices, self.most_cost, layouts
        )

    def _converged(self, layouts: Layouts | None, rounds: int) -> Solved | None:
        """The program's answer with the fills that its prices ask for; None where there is none, or no time."""
        answer = None
        for _ in range(rounds):
            answer = self._program(layouts).solve() if time.perf_counter() < self.until else None
            if answer is None:
                return None
            new = [placed for placed in self._better(answer) if placed not in self.fills]
            if not new:
                break
            self.fills.update(dict.fromkeys(new))
        return answer

    def _better(self, answer: Solved) -> Iterator[Placed]:
        """Fills that are worth more than their slice costs."""
        for key, pool in self.pools.items():
            least = self.standing.least[pool.choices]
            found = good_fills(pool, least, self.standing.missing, answer.stage_prices, self.tenants)
            for _, fill in zip(range(NEW_FILLS), found, strict=False):
                parts = self.standing.gives(fill)
                worth = sum(float(answer.stage_prices[row]) * part for row, part in parts.items())
                if worth > answer.slice_prices[key] * (1 + GAIN) + GAIN:
                    yield Placed(key, fill)

    def _decide(self, answer: Solved) -> None:
        """The whole slices of the fill that most have, or one of it."""
        placed = max(answer.counts, key=lambda one: answer.counts[one])
        times = max(1, int(answer.counts[placed] + SHORT))
        self.standing.take(placed.fill, times)
        self.decided[placed] += times


def _assigned(problem: Problem, layouts: Layouts, fills: Mapping[Placed, int]) -> Assignment:
    """The fills on slices of these layouts."""
    assignment = lay_out(problem, layouts)
    free: dict[Key, list[AssignedSlice]] = {}
    for slice_ in assignment.slices:
        free.setdefault((slice_.group, slice_.profile), []).append(slice_)
    for placed, times in fills.items():
        for slice_ in free[placed.pool][:times]:
            slice_.tenants = [(problem.choices[number], share) for number, share in placed.fill]
        del free[placed.pool][:times]
    return assignment
