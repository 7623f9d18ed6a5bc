"""Plans for an objective of demand samples: the search decides which are held, the planner for minima holds them.

Whatever else the request asks for (co-locations, shares, a spare GPU, few changes) the planner for minima keeps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from torchsplit_core.planning.outcome.build import no_plan
from torchsplit_core.planning.outcome.figures import unproven_outcome
from torchsplit_core.planning.patterns.least_cost import cost_step
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.objective import (
    build_objective_value,
    goal_of,
    has_penalties,
    least_cost_objective,
    required_samples,
)
from torchsplit_core.planning.sample_plans.held_samples import counted_rates, with_samples
from torchsplit_core.planning.sample_plans.price_rows import Pricing, build_pricing
from torchsplit_core.planning.sample_plans.sample_levels import Rates
from torchsplit_core.planning.sample_plans.sample_search import (
    LargestShareSearch,
    LeastCostSearch,
    MinimaAnswer,
    SampleSearch,
)
from torchsplit_core.planning.timing import Stopwatch
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import (
    Conflict,
    Demand,
    HeldSamples,
    PlanOutcome,
    PlanRequest,
    Progress,
    ignore_progress,
)

SamplesPlanner = Callable[[PlanRequest], PlanOutcome]

Details = dict[str, str | int | float]

MIN_ASK_S = 0.3
"""Least seconds of a question to the planner."""

REASON_SHARE = 0.5
"""Part of the time, beyond the limit, for the largest share that an infeasible request could have."""

MINIMA_REPLACED = "min_throughput_rps is not used: the objective's attainment stands for the minima."


@dataclass
class _Asker:
    """Asks the planner about minima, and remembers the plans by their minima."""

    request: PlanRequest
    planner: SamplesPlanner
    complete: bool
    plans: dict[bytes, PlanOutcome] = field(default_factory=dict)

    def request_of(self, minima: Sequence[float], seconds: float) -> PlanRequest:
        """The request for the least cost of these minima (requests/s, by model)."""
        models = tuple(
            replace(model, min_throughput_rps=rate or None, demand_samples=(), demand_windows=())
            for model, rate in zip(self.request.models, minima, strict=True)
        )
        return replace(
            self.request,
            models=models,
            objective=least_cost_objective(self.request.objective),
            solver=replace(self.request.solver, time_limit_s=seconds),
        )

    def __call__(self, minima: Rates, deadline: float) -> MinimaAnswer:
        """What the planner says of minima until a deadline (time.perf_counter)."""
        seconds = max(MIN_ASK_S, deadline - time.perf_counter())
        outcome = self.planner(self.request_of(minima.tolist(), seconds))
        if outcome.status == "infeasible":
            return MinimaAnswer(math.inf)
        if not outcome.gpus:
            return MinimaAnswer(0.0)
        objective = outcome.objective
        bound = objective.value if objective.proven_levels else objective.bound
        self.plans[minima.tobytes()] = outcome
        rates = np.array(counted_rates(self.request, outcome.gpus, outcome.models))
        self.plans[rates.tobytes()] = outcome
        return MinimaAnswer(bound or 0.0, objective.value, rates)

    def plan_of(self, answer: MinimaAnswer) -> PlanOutcome:
        """The plan of an answer that has one."""
        assert answer.rates is not None
        return self.plans[answer.rates.tobytes()]


def plan_samples(
    request: PlanRequest,
    planner: SamplesPlanner,
    *,
    progress: Progress = ignore_progress,
    reasons: bool = True,
) -> PlanOutcome:
    """The outcome, not verified, of a valid request whose objective reads samples; `planner` plans for minima.

    If no plan holds the required samples, the outcome says how many the fleet holds at most, unless `reasons` is False.
    """
    watch = Stopwatch()
    deadline = watch.begun + request.solver.time_limit_s
    progress(0.05, "Choosing which samples to hold")
    outcome = (_largest_share if goal_of(request).by_share else _least_cost)(
        request, planner, deadline, watch
    )
    if outcome.status == "infeasible" and reasons and request.objective.attainment is not None:
        progress(0.9, "Finding the largest share that the fleet holds")
        outcome = _with_largest_share(request, planner, outcome)
    return outcome


def _details(search: SampleSearch) -> Details:
    return {"method": "samples", "asked": search.asked, "prices": len(search.rows)}


def _entries(request: PlanRequest) -> Rates:
    return np.array([model.demand_samples for model in request.models], dtype=np.float64).T


def _least_cost(
    request: PlanRequest, planner: SamplesPlanner, deadline: float, watch: Stopwatch
) -> PlanOutcome:
    entries, required = _entries(request), required_samples(request)
    assert required is not None
    asker, pricing = _asker_and_pricing(request, planner, entries)
    costs = [gpu.cost for gpu in list_gpus(request.gpus)]
    penalised = has_penalties(request.objective)
    search = LeastCostSearch(
        entries,
        np.zeros(entries.shape[1]),
        pricing,
        asker,
        deadline,
        required=required,
        step=0.0 if penalised else cost_step(costs),
        dearest=math.inf if penalised else sum(costs),
    )
    with watch.searching():
        search.run()
    details = _details(search)
    if search.best is None:
        proven = math.isinf(search.bound) and asker.complete
        return no_plan(
            request, "infeasible" if proven else "timeout", watch.statistics(details), _notes(request)
        )
    bound = search.bound if asker.complete else None
    return _outcome(request, asker, search.best, bound, watch, details)


def _largest_share(
    request: PlanRequest, planner: SamplesPlanner, deadline: float, watch: Stopwatch
) -> PlanOutcome:
    entries = _entries(request)
    asker, pricing = _asker_and_pricing(request, planner, entries)
    least = np.array([model.min_throughput_rps or 0.0 for model in request.models])
    search = LargestShareSearch(entries, least, pricing, asker, deadline)
    with watch.searching():
        search.run()
    details = _details(search)
    if search.best is None:
        proven = search.bound < 0 and asker.complete
        return no_plan(
            request, "infeasible" if proven else "timeout", watch.statistics(details), _notes(request)
        )
    bound = search.bound / len(entries) if asker.complete else None
    return _outcome(request, asker, search.best, bound, watch, details)


def _asker_and_pricing(
    request: PlanRequest, planner: SamplesPlanner, entries: Rates
) -> tuple[_Asker, Pricing | None]:
    pricing = build_pricing(request, entries.max(axis=0).tolist())
    complete = pricing.exact if pricing is not None else build_problem(request).complete
    return _Asker(request, planner, complete), pricing


def _outcome(
    request: PlanRequest,
    asker: _Asker,
    best: MinimaAnswer,
    bound: float | None,
    watch: Stopwatch,
    details: Details,
) -> PlanOutcome:
    """The plan of the best answer as an outcome of the request, with its bound."""
    planned = asker.plan_of(best)
    outcome = unproven_outcome(request, planned.gpus, watch.statistics(details))
    value = outcome.objective.value
    assert value is not None
    proven = bound is not None and (equal(value, bound) or goal_of(request).better((value,), (bound,)))
    objective = build_objective_value(
        request,
        [value],
        (model.normalised for model in outcome.models),
        bound=bound,
        proven=int(proven),
    )
    return with_samples(
        request,
        replace(
            outcome,
            status="optimal" if proven and planned.status == "optimal" else "feasible",
            objective=replace(objective, routed=planned.objective.routed),
            warnings=tuple(dict.fromkeys((*_notes(request), *planned.warnings, *outcome.warnings))),
            touched_gpus=planned.touched_gpus,
        ),
    )


def _notes(request: PlanRequest) -> tuple[str, ...]:
    replaced = request.objective.attainment and any(model.min_throughput_rps for model in request.models)
    return (MINIMA_REPLACED,) if replaced else ()


def _with_largest_share(request: PlanRequest, planner: SamplesPlanner, outcome: PlanOutcome) -> PlanOutcome:
    """The infeasible outcome with the largest share of samples that the fleet holds."""
    watch = Stopwatch()
    entries, required = _entries(request), required_samples(request)
    asker, pricing = _asker_and_pricing(request, planner, entries)
    deadline = watch.begun + REASON_SHARE * request.solver.time_limit_s
    search = LargestShareSearch(entries, np.zeros(entries.shape[1]), pricing, asker, deadline)
    with watch.searching():
        search.run()
    count, held = len(entries), max(search.held, 0)
    bound = min(search.bound, (required or count) - 1)
    most = f"{held:,} ({held / count:.1%})" if held == bound else f"{held:,} to {bound:,}"
    message = (
        f"{required:,} of {count:,} samples ({request.objective.attainment:.4g} of them) cannot be held on this fleet: "
        f"the most is {most}"
    )
    names = tuple(model.name for model in request.models)
    return replace(
        outcome,
        conflicts=(Conflict((Demand("attainment", models=names),), message),),
        samples=HeldSamples(count, held, held / count, required, bound=bound),
    )
