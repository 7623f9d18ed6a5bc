"""Solves the literal program, and computes its value from the allocations and connections chosen."""

from __future__ import annotations

import time
from itertools import pairwise

from torchsplit_core.placement.literal.formulation import (
    BuildTimeout,
    LiteralProgram,
    NoFeasibleAllocation,
    build_program,
)
from torchsplit_core.placement.model.instance import ProblemInstance, SearchResult
from torchsplit_core.solver.highs import ProgramRejected
from torchsplit_core.solver.pyomo_model import ModelSolution, solve
from torchsplit_core.values import InputFault, InternalFault

EQUAL = 1e-6
"""Value and bound within this relative distance are equal, as in the contract."""


def solve_literal(instance: ProblemInstance, *, time_limit_s: float) -> SearchResult:
    """Build the literal program and solve it within the time. Raises InputFault if it is too large to build.

    Statistics: allocations, connections, variables, build_s, solve_s.
    """
    begun = time.perf_counter()
    try:
        built = build_program(instance, begun + time_limit_s)
    except NoFeasibleAllocation:
        return SearchResult(
            0.0, 0.0, True, (), {"allocations": 0, "connections": 0, "build_s": _since(begun)}
        )
    except BuildTimeout:
        return SearchResult(0.0, float("inf"), False, (), {"build_s": _since(begun)})
    build_s = _since(begun)
    try:
        solution = solve(built.model, time_limit_s - build_s)
    except ProgramRejected as refused:
        raise InputFault(
            "solver.method",
            f"throughputs of the literal program reach {refused.largest:.3g}, and HiGHS takes coefficients up to 1e15",
            "Use the method exact, or check the units of bandwidths and throughputs.",
        ) from None
    statistics = {
        "allocations": len(built.allocations),
        "connections": len(built.connections),
        "variables": built.variables,
        "build_s": build_s,
        "solve_s": solution.seconds,
    }
    if solution.status == "infeasible":
        return SearchResult(0.0, 0.0, True, (), statistics)
    most = max(a.throughput for a in built.allocations)
    bound = most if solution.bound is None else min(most, solution.bound)
    if not solution.values:
        return SearchResult(0.0, bound, False, (), statistics)
    value, segments = _read_segments(built, solution)
    proven = solution.status == "optimal" and bound - value <= EQUAL * bound
    return SearchResult(value, value if proven else max(bound, value), proven, segments, statistics)


def _since(begun: float) -> float:
    return time.perf_counter() - begun


def _read_segments(
    built: LiteralProgram, solution: ModelSolution
) -> tuple[float, tuple[tuple[int, tuple[int, ...]], ...]]:
    """The chosen segments in pipeline order, and the least of their and their links' throughputs."""
    choice = built.model.z
    chosen = [index for index in choice if solution.values.get(id(choice[index]), 0.0) > 0.5]
    chosen.sort(key=lambda index: built.allocations[index].start)
    links = {(c.source, c.target): c.throughput for c in built.connections}
    value = min(built.allocations[index].throughput for index in chosen)
    for pair in pairwise(chosen):
        if pair not in links:
            raise InternalFault("The literal program chose neighbours that no link joins.")
        value = min(value, links[pair])
    segments = tuple(
        (built.allocations[index].end - built.allocations[index].start + 1, built.allocations[index].gpus)
        for index in chosen
    )
    return value, segments
