"""Questions about minima: whether a plan meets them, and at what cost.

Whole slices without co-locations and limits on changes are asked of patterns directly, whose search goes on where that
of the question before ended. Everything else is asked of the planner.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from torchsplit_core.planning.outcome.assignment import build_planned_gpus
from torchsplit_core.planning.outcome.figures import unproven_outcome
from torchsplit_core.planning.outcome.held_samples import counted_rates
from torchsplit_core.planning.patterns.feasibility import FeasibilityProblem, PatternPlan
from torchsplit_core.planning.patterns.least_cost import cheapest_plan
from torchsplit_core.planning.patterns.leximin_levels import ENOUGH
from torchsplit_core.planning.patterns.solve import MinimaSearch
from torchsplit_core.planning.request.objective import least_cost_objective
from torchsplit_core.planning.sample_plans.sample_levels import Rates
from torchsplit_core.values import PlanOutcome, PlanRequest, PlanStatistics

SamplesPlanner = Callable[[PlanRequest], PlanOutcome]
"""Plans a request for its minima."""

MIN_ASK_S = 0.3
"""Least seconds of a question to the planner."""

MINIMA = FeasibilityProblem((0.0,))


@dataclass(frozen=True)
class MinimaAnswer:
    """What is known of some minima: a plan gives `rates` at `cost` (None: no plan), and none costs less than `bound`
    (infinite: none exists). `outcome` makes the plan, as the outcome of a request for these minima.
    """

    bound: float
    cost: float | None = None
    rates: Rates | None = None
    outcome: Callable[[], PlanOutcome] | None = None


Ask = Callable[[Rates, float, bool], MinimaAnswer]
"""Asks about minima (requests/s, by model) until a deadline (time.perf_counter); True: also for the least cost."""


def request_of_minima(request: PlanRequest, minima: Rates, seconds: float) -> PlanRequest:
    """The request for the least cost of these minima (requests/s, by model)."""
    models = tuple(
        replace(model, min_throughput_rps=rate or None, demand_samples=(), demand_windows=())
        for model, rate in zip(request.models, minima.tolist(), strict=True)
    )
    return replace(
        request,
        models=models,
        objective=least_cost_objective(request.objective),
        solver=replace(request.solver, time_limit_s=seconds),
    )


def asks_patterns(request: PlanRequest) -> bool:
    """Whether patterns answer for the request, where they apply to it at all."""
    objective = request.objective
    limited = objective.survives or objective.max_touched_gpus is not None
    paid = objective.memory_violation_penalty or objective.separation_weight
    return request.sharing == "exclusive" and not (request.colocations or limited or paid)


@dataclass(frozen=True)
class PlannerQuestions:
    """Asks the planner."""

    request: PlanRequest
    planner: SamplesPlanner

    def __call__(self, minima: Rates, deadline: float, by_cost: bool) -> MinimaAnswer:
        """Ask; the planner looks for the least cost in any case."""
        seconds = max(MIN_ASK_S, deadline - time.perf_counter())
        outcome = self.planner(request_of_minima(self.request, minima, seconds))
        if outcome.status == "infeasible":
            return MinimaAnswer(math.inf)
        if not outcome.gpus:
            return MinimaAnswer(0.0)
        objective = outcome.objective
        bound = objective.value if objective.proven_levels else objective.bound
        rates = np.array(counted_rates(self.request, outcome.gpus, outcome.models))
        return MinimaAnswer(bound or 0.0, objective.value, rates, lambda: outcome)


@dataclass(frozen=True)
class PatternQuestions:
    """Asks patterns."""

    request: PlanRequest
    minima_search: MinimaSearch

    def __call__(self, minima: Rates, deadline: float, by_cost: bool) -> MinimaAnswer:
        """Ask; without `by_cost` any plan will do."""
        search, costs = self.minima_search.search, self.minima_search.costs
        self.minima_search.set_minima(minima)
        if by_cost:
            cheapest = cheapest_plan(search, costs.tolist(), deadline)
            if cheapest.plan is None:
                return MinimaAnswer(math.inf if cheapest.infeasible else 0.0)
            return self._answer(minima, cheapest.plan, cheapest.cost, cheapest.bound)
        decision = search.decide(MINIMA, deadline, prove=False, enough=ENOUGH)
        if decision.verdict == "unknown" and time.perf_counter() < deadline:
            decision = search.decide(MINIMA, deadline, prove=True)
        if decision.plan is None:
            return MinimaAnswer(math.inf if decision.verdict == "none" else 0.0)
        return self._answer(
            minima, decision.plan, float(costs[search.capacity.group_of] @ decision.plan.layouts), 0.0
        )

    def _answer(self, minima: Rates, plan: PatternPlan, cost: float, bound: float) -> MinimaAnswer:
        rates = np.array([pattern.rate for pattern in plan.patterns])
        return MinimaAnswer(bound, cost, rates, lambda: self._outcome(minima, plan))

    def _outcome(self, minima: Rates, plan: PatternPlan) -> PlanOutcome:
        asked = request_of_minima(self.request, minima, self.request.solver.time_limit_s)
        self.minima_search.set_minima(minima)
        gpus = build_planned_gpus(self.request, self.minima_search.assign(plan))
        return replace(
            unproven_outcome(asked, gpus, PlanStatistics(0.0, 0.0, 0.0, "")),
            status="optimal",
            warnings=self.minima_search.problem.warnings,
        )
