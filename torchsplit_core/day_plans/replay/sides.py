"""Simulates a planned day over a day of a trace: the plans of its windows, the one plan, and the threshold rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from torchsplit_core.day_plans.replay.day_statistics import ModelLimits, model_figures
from torchsplit_core.day_plans.replay.model_day import ModelDay, make_queues, model_day
from torchsplit_core.day_plans.replay.model_run import DayRequests, run_model_day
from torchsplit_core.day_plans.replay.rule_day import models_without_replica, rule_day
from torchsplit_core.day_plans.replay.server_periods import ServedDay, static_day, windows_day
from torchsplit_core.day_plans.replay.time_sample import request_level
from torchsplit_core.day_plans.replay.trace_day import check_columns
from torchsplit_core.latency_slo.simulation_input import has_known_steps
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.tables.demand_trace.trace_csv import DemandTrace
from torchsplit_core.transition import ChangeTimes
from torchsplit_core.values import (
    DayOutcome,
    DayReplay,
    InputFault,
    PlanRequest,
    PoissonArrivals,
    Progress,
    ReplayedTrace,
    ReplayModel,
    ReplaySide,
    ThresholdRule,
    ignore_progress,
    tenants_on,
)
from torchsplit_core.values.limits import check_number, check_whole
from torchsplit_core.values.profile import BASES, Basis

MOST_REQUESTS = 9_000_000
"""Requests that all sides, models and replications together go through one by one: about half a minute on a core."""
ENGINE_COST = 20
"""Times what a request in batches takes to simulate, of one in an engine."""
LEAST_REQUESTS, LARGEST_REQUESTS = 1_000, 100_000_000
MOST_REPLICATIONS = 100


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """How a day is simulated. `times`: of the rule's replicas (a day's own transitions have theirs). `limits_ms`:
    response times asked for, by model, in place of the request's. `requests_per_model`: most of a replication that are
    simulated one by one, where models that need fewer leave theirs to others; None: a part of MOST_REQUESTS."""

    rule: ThresholdRule = field(default_factory=ThresholdRule)
    times: ChangeTimes = field(default_factory=ChangeTimes)
    replications: int = 3
    seed: int = 0
    requests_per_model: int | None = None
    limits_ms: dict[str, float] = field(default_factory=dict)


def replay_day(
    request: PlanRequest,
    outcome: DayOutcome,
    trace: DemandTrace,
    settings: ReplaySettings | None = None,
    progress: Progress = ignore_progress,
) -> DayReplay:
    """The sides of the day over a trace of one day, whose columns are the request's models.

    LLMs of the request need their engines as points. Raises InputFault for a day of another request, a trace without
    a column for each model, settings out of range, and where no side can be simulated.
    """
    settings = settings or ReplaySettings()
    _check(request, outcome, trace, settings)
    unknown = _without_steps(request, outcome)
    if len(unknown) == len(request.models):
        raise InputFault(
            "the day",
            "has only LLMs of which measured points alone are known, which stand for a simulation",
            "Give the LLMs their config to simulate them.",
        )
    sides = [
        _windows(request, outcome, trace),
        _static(request, outcome),
        _rule(request, trace, settings),
    ]
    served = [side for side in sides if isinstance(side, ServedDay)]
    names = [model.name for model in request.models if model.name not in unknown]
    run = _Replay(request, trace, settings, names, len(served), progress)
    simulated = [run.side(side) if isinstance(side, ServedDay) else side for side in sides]
    if not served:
        reasons = "; ".join(side.message or "" for side in simulated)
        raise InputFault("the day", f"has no side to simulate: {reasons}", "Plan a day that has plans.")
    return DayReplay(
        tuple(simulated),
        _described(trace, names),
        settings.rule,
        settings.replications,
        settings.seed,
        _simulated_share(simulated, settings.replications),
        _weakest_basis(outcome),
        warnings=tuple(_warnings(request, served, unknown)),
        request_sha256=request_hash(request),
    )


def _check(request: PlanRequest, outcome: DayOutcome, trace: DemandTrace, settings: ReplaySettings) -> None:
    if outcome.request_sha256 not in (None, request_hash(request)):
        raise InputFault(
            "--request", "is not the request that this day answers", "Pass the day's own request."
        )
    check_columns(request, trace)
    check_whole("--replications", settings.replications, least=1, most=MOST_REPLICATIONS)
    if settings.requests_per_model is not None:
        check_whole("--requests", settings.requests_per_model, least=LEAST_REQUESTS, most=LARGEST_REQUESTS)
    check_whole("--seed", settings.seed)
    check_number("--rule-target", settings.rule.target, positive=True)
    if settings.rule.target > 1:
        raise InputFault(
            "--rule-target", f"is {settings.rule.target:g}, more than a replica carries", "Give at most 1."
        )


def _windows(request: PlanRequest, outcome: DayOutcome, trace: DemandTrace) -> ServedDay | ReplaySide:
    missing = [window.name for window in outcome.windows if not window.plan.gpus]
    refused = [
        window.name
        for window in outcome.windows
        if window.transition is not None and window.transition.status == "infeasible"
    ]
    if missing or refused:
        what = "plan for" if missing else "transition from"
        return _nothing("windows", f"the day has no {what} {', '.join(missing or refused)}")
    return windows_day(request, outcome, trace.first_s)


def _static(request: PlanRequest, outcome: DayOutcome) -> ServedDay | ReplaySide:
    if not outcome.static.gpus:
        return _nothing("static", "no one plan holds all day")
    return static_day(request, outcome)


def _rule(request: PlanRequest, trace: DemandTrace, settings: ReplaySettings) -> ServedDay | ReplaySide:
    missing = models_without_replica(request)
    if missing:
        return _nothing("rule", f"no slice serves {', '.join(missing)} whole, so there are no replicas")
    return rule_day(request, trace, settings.rule, settings.times)


def _nothing(name: str, message: str) -> ReplaySide:
    return ReplaySide(name, None, None, None, message=message)  # type: ignore[arg-type]


class _Replay:
    """Runs the sides one after the other, model by model, with the same draws."""

    def __init__(
        self,
        request: PlanRequest,
        trace: DemandTrace,
        settings: ReplaySettings,
        names: Sequence[str],
        sides: int,
        progress: Progress,
    ) -> None:
        self.request, self.trace, self.settings = request, trace, settings
        self.models = {model.name: model for model in request.models if model.name in names}
        self.progress, self.sides, self.done = progress, sides, 0
        requests = {name: _arrivals(trace, name) for name in self.models}
        costs = {name: ENGINE_COST if model.llm else 1 for name, model in self.models.items()}
        share = MOST_REQUESTS / max(1, sides * settings.replications)
        if settings.requests_per_model is not None:
            share = sum(cost * settings.requests_per_model for cost in costs.values())
        self.most = _shared_out(requests, costs, share)

    def side(self, day: ServedDay) -> ReplaySide:
        """A side's figures."""
        models = tuple(self._model(day, number, name) for number, name in enumerate(self.models))
        return ReplaySide(day.name, day.gpu_hours, day.most_gpus, day.transition_s, models)

    def _model(self, day: ServedDay, number: int, name: str) -> ReplayModel:
        part = model_day(day, name, self.trace)
        level = max(1.0, request_level(part.pieces, self.most[name]))
        runs: list[DayRequests] = []
        for replication in range(self.settings.replications):
            total = self.sides * len(self.models) * self.settings.replications
            self.progress(self.done / total, f"{day.name}: simulating {name}")
            runs.append(self._run(part, level, (self.settings.seed, number, replication)))
            self.done += 1
        limits = ModelLimits.of(self.models[name])
        if name in self.settings.limits_ms:
            limits = replace(limits, max_response_ms=self.settings.limits_ms[name])
        return model_figures(name, limits, part.pieces, day.changes, self.trace.first_s, runs)

    def _run(self, part: ModelDay, level: float, seed: tuple[int, int, int]) -> DayRequests:
        return run_model_day(
            part.pieces, level, lambda axis, rng: make_queues(part, axis, rng), seed, self.trace.step_s
        )


def _arrivals(trace: DemandTrace, name: str) -> float:
    return sum(rate * trace.step_s for rate in trace.rates[name] if rate is not None)


def _shared_out(requests: dict[str, float], costs: dict[str, int], most: float) -> dict[str, float]:
    """The most requests of each model: equal parts of the work, and what one does not need is left to the others."""
    left, shares = most, {}
    order = sorted(requests, key=lambda name: requests[name] * costs[name])
    for place, name in enumerate(order):
        work = min(1.05 * requests[name] * costs[name] + 1, left / (len(order) - place))
        # All of them or a sample: the drawn number may be a little above the expected one.
        shares[name] = work / costs[name]
        left -= work
    return shares


def _simulated_share(sides: Sequence[ReplaySide], replications: int) -> float | None:
    """Of all requests, in the side with the fewest."""
    shares = []
    for side in sides:
        arrived = sum(model.arrived_requests for model in side.models)
        if arrived:
            simulated = sum(model.simulated_requests for model in side.models) / replications
            shares.append(min(1.0, simulated / arrived))
    return min(shares, default=None)


def _described(trace: DemandTrace, names: Sequence[str]) -> ReplayedTrace:
    columns = [trace.rates[name] for name in names]
    holes = sum(rate is None for rates in columns for rate in rates)
    return ReplayedTrace(trace.first_s, trace.step_s, holes, sum(_arrivals(trace, name) for name in names))


def _without_steps(request: PlanRequest, outcome: DayOutcome) -> set[str]:
    """LLMs of which measured points alone are known."""
    plans = [*(window.plan for window in outcome.windows), outcome.static]
    return {
        tenant.model for plan in plans for *_, tenant in tenants_on(plan.gpus) if not has_known_steps(tenant)
    }


def _weakest_basis(outcome: DayOutcome) -> Basis | None:
    plans = [*(window.plan for window in outcome.windows), outcome.static]
    known = {model.basis for plan in plans for model in plan.models if model.basis is not None}
    return max(known, key=BASES.index, default=None)


def _warnings(request: PlanRequest, sides: Sequence[ServedDay], unknown: set[str]) -> Iterator[str]:
    for name in sorted(unknown):
        yield f"{name}: left out, since only measured points of its engines are known"
    for side in sides:
        yield from side.warnings
    fronted = {model.name for side in sides for model in side.models.values() if model.front_ms > 0}
    if fronted:
        yield f"{', '.join(sorted(fronted))}: the front is left out: times are of the queues and servers alone"
    shaped = [m.name for m in request.models if not isinstance(m.expected_arrivals, PoissonArrivals)]
    if shaped:
        yield f"{', '.join(shaped)}: arrivals are Poisson at the trace's rates here, not of the request's form"
