"""Simulates a planned day over a day of a trace: the plans of its windows, the one plan, and the threshold rule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from torchsplit_core.day_plans.replay.day_statistics import ModelLimits, model_figures
from torchsplit_core.day_plans.replay.model_day import ModelDay, make_queues, model_day
from torchsplit_core.day_plans.replay.model_run import DayRequests, run_model_day
from torchsplit_core.day_plans.replay.rule_day import models_without_replica, rule_day
from torchsplit_core.day_plans.replay.server_periods import ServedDay, static_day, windows_day
from torchsplit_core.day_plans.replay.time_sample import SETTLING, group_pieces, sample_level
from torchsplit_core.day_plans.replay.trace_day import check_columns
from torchsplit_core.latency_slo.simulation_input import has_known_steps
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.tables.demand_trace.trace_csv import DemandTrace
from torchsplit_core.transition import ChangeTimes
from torchsplit_core.values import (
    DayOutcome,
    DayReplay,
    InputFault,
    PlanOutcome,
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
from torchsplit_core.values.day.replay import SideName
from torchsplit_core.values.limits import check_number, check_whole
from torchsplit_core.values.profile import BASES, Basis

MOST_REQUESTS, AT_MOST_REQUESTS = 9_000_000, 27_000_000
"""Requests that all sides, models and replications together go through one by one, and how many more there may be until
each piece has as many as its servers hold at once: about a minute on a core."""
ENGINE_WORK = 20
"""Times what a request in batches takes to simulate, of one in an engine."""
LEAST_LEVEL, LARGEST_LEVEL = 1e-4, 1e6
MOST_TOGETHER = 60
"""Neighbouring pieces of an hour of which one is simulated: with a trace by the minute one in each hour."""
ENOUGH = 0.8
"""Of what the servers of a stretch hold at once: a sample of fewer requests has a warning."""
LEAST_REQUESTS, LARGEST_REQUESTS = 1_000, 100_000_000
MOST_REPLICATIONS = 100


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """How a day is simulated. `times`: of the rule's replicas (a day's own transitions have theirs). `limits_ms`:
    response times asked for, by model, in place of the request's. `requests_per_model`: of a replication as many times
    the number of models are simulated one by one, shared out by what their servers hold at once; None: a part of
    MOST_REQUESTS, or more where that is too few."""

    rule: ThresholdRule = field(default_factory=ThresholdRule)
    times: ChangeTimes = field(default_factory=ChangeTimes)
    replications: int = 3
    seed: int = 0
    requests_per_model: int | None = None
    limits_ms: dict[str, float] = field(default_factory=dict)
    sides: tuple[SideName, ...] = ("windows", "static", "rule")


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
    sides = [_side(name, request, outcome, trace, settings) for name in settings.sides]
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
        warnings=(*_warnings(request, served, unknown), *_sample_warning(run.lowest_level)),
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
    for name, limit_ms in settings.limits_ms.items():
        check_number(f"--slo {name}", limit_ms, positive=True)
    if settings.rule.target > 1:
        raise InputFault(
            "--rule-target", f"is {settings.rule.target:g}, more than a replica carries", "Give at most 1."
        )


def _side(
    name: SideName, request: PlanRequest, outcome: DayOutcome, trace: DemandTrace, settings: ReplaySettings
) -> ServedDay | ReplaySide:
    if name == "windows":
        return _windows(request, outcome, trace)
    return _static(request, outcome) if name == "static" else _rule(request, trace, settings)


def _windows(request: PlanRequest, outcome: DayOutcome, trace: DemandTrace) -> ServedDay | ReplaySide:
    missing = [window.name for window in outcome.windows if not _has_slices(window.plan)]
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
    if not _has_slices(outcome.static):
        return _nothing("static", "no one plan holds all day")
    return static_day(request, outcome)


def _rule(request: PlanRequest, trace: DemandTrace, settings: ReplaySettings) -> ServedDay | ReplaySide:
    missing = models_without_replica(request)
    if missing:
        return _nothing("rule", f"no slice serves {', '.join(missing)} whole, so there are no replicas")
    return rule_day(request, trace, settings.rule, settings.times)


def _has_slices(plan: PlanOutcome) -> bool:
    return any(gpu.slices for gpu in plan.gpus)


def _nothing(name: SideName, message: str) -> ReplaySide:
    return ReplaySide(name, None, None, None, message=message)


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
        self.work = {name: float(ENGINE_WORK if model.llm else 1) for name, model in self.models.items()}
        self.lowest_level = math.inf

    def side(self, day: ServedDay) -> ReplaySide:
        """A side's figures."""
        parts = {name: model_day(day, name, self.trace) for name in self.models}
        level, together = self._level(parts)
        self.lowest_level = min(self.lowest_level, level)
        models = tuple(
            self._model(day, parts[name], number, (level, together))
            for number, name in enumerate(self.models)
        )
        return ReplaySide(day.name, day.gpu_hours, day.most_gpus, day.transition_s, models)

    def _level(self, parts: Mapping[str, ModelDay]) -> tuple[float, int]:
        """The level of the side's sample, and how many pieces at most have one of them simulated for all: as few as
        let it be 1."""
        pieces = [(piece, self.work[name]) for name, part in parts.items() for piece in part.pieces]
        runs = self.sides * self.settings.replications
        if self.settings.requests_per_model is not None:
            work = self.settings.requests_per_model * sum(self.work.values())
        else:
            # A queue takes what its servers hold at once to find its balance: a sample of less is off.
            needed = (1 + SETTLING) * sum(min(piece.requests, piece.unit) * each for piece, each in pieces)
            work = min(max(MOST_REQUESTS, needed * runs), AT_MOST_REQUESTS) / runs
        together = 1
        while True:
            groups = [
                (group, self.work[name])
                for name, part in parts.items()
                for group in group_pieces(part.pieces, together)
            ]
            level = sample_level(groups, work)
            if together == 1 and math.isinf(level):
                return level, together
            # Those that settle queues are work, too. A level is finite where pieces are left out.
            level = min(max(level / (1 + SETTLING), LEAST_LEVEL), LARGEST_LEVEL)
            if level >= 1 or together >= MOST_TOGETHER:
                return level, together
            together = min(max(together + 1, math.ceil(together / level)), MOST_TOGETHER)

    def _model(self, day: ServedDay, part: ModelDay, number: int, sample: tuple[float, int]) -> ReplayModel:
        name, (level, together) = part.name, sample
        groups = group_pieces(part.pieces, together)
        total = self.sides * len(self.models) * self.settings.replications
        runs: list[DayRequests] = []
        for replication in range(self.settings.replications):
            self.progress(self.done / total, f"{day.name}: simulating {name}")
            seed = (self.settings.seed, number, replication)
            runs.append(run_model_day(groups, level, partial(make_queues, part), seed, self.trace.step_s))
            self.done += 1
        limits = ModelLimits.of(self.models[name])
        if name in self.settings.limits_ms:
            limits = replace(limits, max_response_ms=self.settings.limits_ms[name])
        return model_figures(name, limits, part.pieces, day.changes, self.trace.first_s, runs)


def _arrivals(trace: DemandTrace, name: str) -> float:
    return sum(rate * trace.step_s for rate in trace.rates[name] if rate is not None)


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


def _sample_warning(level: float) -> Iterator[str]:
    if level < ENOUGH:
        yield (
            f"the sample has {level:.2g} × as many requests of each stretch as its servers hold at once: queues have "
            "not found their balance, and responses are off, most near the capacity; more --requests help"
        )


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
