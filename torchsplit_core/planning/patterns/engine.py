"""Exclusive fair plans by patterns: from a problem to whole counts with their proofs.

It applies where equal GPUs are counted together and the objective pays for nothing but
throughput; elsewhere the program of formulation.py decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from torchsplit_core.planning.patterns.decide import Demands, PatternSearch, Plan, Question
from torchsplit_core.planning.patterns.lift import Lifted, lift
from torchsplit_core.planning.patterns.options import Option, Options, options_of
from torchsplit_core.planning.patterns.supply import Supply, Vector, supply_of
from torchsplit_core.planning.problem.build import Problem
from torchsplit_core.planning.request.objective import goal_of, level_count, must_survive, rungs, unit_rps
from torchsplit_core.values import Progress
from torchsplit_core.values.status import SolveStatus


@dataclass(frozen=True)
class Counted:
    """GPUs by (group, layout) and instances by choice (its index in the problem), with what is proven.

    `profiles` has the whole layout behind every (group, layout) in use.
    `bounds` has a proven bound of each level, `proven` counts levels from the first on.
    """

    status: SolveStatus
    layouts: Mapping[tuple[int, int], int] = field(default_factory=dict)
    profiles: Mapping[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    amounts: Mapping[int, int] = field(default_factory=dict)
    bounds: tuple[float, ...] = ()
    proven: int = 0


def count_patterns(
    problem: Problem, deadline: float, progress: Progress, eased: Mapping[int, float] | None = None
) -> Counted | None:
    """The fairest whole-slice plan found before `deadline`; None where patterns do not apply.

    `eased` multiplies what a level of 1 asks of a model (by its index); bounds then speak of those levels.
    """
    request = problem.request
    if not goal_of(request).fair:
        return None
    search = _search(problem, eased or {})
    if search is None:
        return None
    count = level_count(request)
    lifted = lift(
        search,
        rungs(request.models),
        count,
        deadline,
        lambda part: progress(part, "Raising the worst-served models"),
    )
    if lifted.infeasible:
        return Counted("infeasible")
    if lifted.plan is None:
        return Counted("timeout")
    status: Literal["optimal", "feasible"] = "optimal" if lifted.proven == count else "feasible"
    return _counted(problem, search, lifted, lifted.plan, status)


def serves(problem: Problem, deadline: float) -> bool | None:
    """Whether whole slices can meet every minimum; None where that is not known in time or patterns do not apply."""
    search = _search(problem, {})
    if search is None:
        return None
    verdict = search.decide(Question((0.0,)), deadline, prove=True).verdict
    return None if verdict == "unknown" else verdict == "found"


def _search(problem: Problem, eased: Mapping[int, float]) -> PatternSearch | None:
    """The search for a problem; None where GPUs must be told apart or the objective pays for memory.

    Patterns count slices of equal GPUs together: they do not know what is lost with one.
    """
    request = problem.request
    gamma = request.objective.memory_violation_penalty
    if (
        request.colocations
        or must_survive(request)
        or (gamma and any(choice.excess_gib > 0 for choice in problem.choices))
    ):
        return None
    supply = supply_of(problem)
    options = options_of(problem, supply)
    if options is None or not len(supply.pools):
        return None
    start = 1.0 / np.maximum(supply.most, 1)
    scale = np.array([eased.get(index, 1.0) for index in range(len(request.models))])
    return PatternSearch(supply, options, _demands(problem, supply, options, scale), start)


def _demands(problem: Problem, supply: Supply, options: tuple[Options, ...], scale: Vector) -> Demands:
    models = problem.request.models
    units = np.array([unit_rps(spec) for spec in models]) * scale
    minima = np.array([spec.min_throughput_rps or 0.0 for spec in models])
    caps = np.array([spec.demand_rps if spec.cap_at_demand else float("inf") for spec in models]) / units
    whole = np.array([max((_alone(supply, option) for option in mine.all), default=0.0) for mine in options])
    tiers = np.array([spec.tier for spec in models])
    return Demands(units, minima, caps, np.minimum(caps, whole / units), tiers)


def _alone(supply: Supply, option: Option) -> float:
    """No less than what the option gives with the whole fleet to itself, in each stage."""
    return min(supply.worth(offer.rates) for offer in option.stages)


def _counted(
    problem: Problem,
    search: PatternSearch,
    lifted: Lifted,
    plan: Plan,
    status: Literal["optimal", "feasible"],
) -> Counted:
    amounts: dict[int, int] = {}
    for model, pattern in enumerate(plan.patterns):
        for stage, counts in enumerate(pattern.stages):
            offer = search.options[model].all[pattern.option].stages[stage]
            for pool in np.flatnonzero(counts):
                choice = offer.choices[pool]
                amounts[choice] = amounts.get(choice, 0) + int(counts[pool])
    layouts = {search.supply.columns[c]: int(plan.layouts[c]) for c in np.flatnonzero(plan.layouts)}
    profiles = {key: problem.groups[key[0]].layouts[key[1]].profiles for key in layouts}
    return Counted(status, layouts, profiles, amounts, tuple(lifted.bounds), lifted.proven)
