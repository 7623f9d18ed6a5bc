"""Plans for an objective of demand samples: the search decides which are held, the planner for minima holds them.

Whatever else the request asks for (co-locations, shares, a spare GPU, few changes) the planner for minima keeps.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

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
    required_samples,
)
from torchsplit_core.planning.sample_plans.price_rows import Pricing, build_pricing
from torchsplit_core.planning.sample_plans.questions import (
    Ask,
    MinimaAnswer,
    PatternQuestions,
    PlannerQuestions,
    SamplesPlanner,
    asks_patterns,
)
from torchsplit_core.planning.sample_plans.sample_levels import Rates
from torchsplit_core.planning.sample_plans.sample_search import (
    LargestShareSearch,
    LeastCostSearch,
    SampleSearch,
)
from torchsplit_core.planning.timing import Stopwatch, partial_deadline
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

Details = dict[str, str | int | float]

SHARE_PART = 0.9
"""Part of the time for the largest share; the rest is for the fewest GPUs that hold the same samples."""

REASON_SHARE = 0.5
"""Part of the time, beyond the limit, for the largest share that an infeasible request could have."""

MINIMA_REPLACED = "min_throughput_rps is not used: the objective's attainment stands for the minima."


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
    tools = _instruments(request, planner, entries)
    costs = [gpu.cost for gpu in list_gpus(request.gpus)]
    penalised = has_penalties(request.objective)
    search = LeastCostSearch(
        entries,
        np.zeros(entries.shape[1]),
        tools.pricing,
        tools.ask,
        deadline,
        required=required,
        step=0.0 if penalised else cost_step(costs),
        dearest=math.inf if penalised else sum(costs),
    )
    with watch.searching():
        search.run()
    details = _details(search)
    if search.best is None:
        proven = math.isinf(search.bound) and tools.exact
        return no_plan(
            request, "infeasible" if proven else "timeout", watch.statistics(details), _notes(request)
        )
    bound = search.bound if tools.exact else None
    return _outcome(request, search.best, bound, watch, details)


def _largest_share(
    request: PlanRequest, planner: SamplesPlanner, deadline: float, watch: Stopwatch
) -> PlanOutcome:
    entries = _entries(request)
    tools = _instruments(request, planner, entries)
    least = np.array([model.min_throughput_rps or 0.0 for model in request.models])
    until = partial_deadline(deadline, SHARE_PART)
    search = LargestShareSearch(entries, least, tools.pricing, tools.ask, until)
    with watch.searching():
        search.run()
        search.settle_cost(deadline - time.perf_counter())
    details = _details(search)
    if search.best is None:
        proven = search.bound < 0 and tools.exact
        return no_plan(
            request, "infeasible" if proven else "timeout", watch.statistics(details), _notes(request)
        )
    bound = search.bound / len(entries) if tools.exact else None
    return _outcome(request, search.best, bound, watch, details)


@dataclass(frozen=True)
class _Instruments:
    """What a search works with. `exact`: its bounds count all ways to run the models."""

    pricing: Pricing | None
    ask: Ask
    exact: bool


def _instruments(request: PlanRequest, planner: SamplesPlanner, entries: Rates) -> _Instruments:
    pricing = build_pricing(request, entries)
    if pricing is None:
        return _Instruments(None, PlannerQuestions(request, planner), build_problem(request).complete)
    ask: Ask = PlannerQuestions(request, planner)
    if asks_patterns(request):
        ask = PatternQuestions(request, pricing.minima_search)
    return _Instruments(pricing, ask, pricing.exact)


def _outcome(
    request: PlanRequest,
    best: MinimaAnswer,
    bound: float | None,
    watch: Stopwatch,
    details: Details,
) -> PlanOutcome:
    """The plan of the best answer as an outcome of the request, with its bound."""
    assert best.outcome is not None
    planned = best.outcome()
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
    return replace(
        outcome,
        status="optimal" if proven and planned.status == "optimal" else "feasible",
        objective=replace(objective, routed=planned.objective.routed),
        warnings=tuple(dict.fromkeys((*_notes(request), *planned.warnings, *outcome.warnings))),
        touched_gpus=planned.touched_gpus,
    )


def _notes(request: PlanRequest) -> tuple[str, ...]:
    replaced = request.objective.attainment and any(model.min_throughput_rps for model in request.models)
    return (MINIMA_REPLACED,) if replaced else ()


def _with_largest_share(request: PlanRequest, planner: SamplesPlanner, outcome: PlanOutcome) -> PlanOutcome:
    """The infeasible outcome with the largest share of samples that the fleet holds."""
    watch = Stopwatch()
    entries, required = _entries(request), required_samples(request)
    tools = _instruments(request, planner, entries)
    deadline = watch.begun + REASON_SHARE * request.solver.time_limit_s
    search = LargestShareSearch(entries, np.zeros(entries.shape[1]), tools.pricing, tools.ask, deadline)
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
