"""A day served by replicas that follow the trace's load by a threshold, each of which takes its time to start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from torchsplit_core.day_plans.replay.replicas import FirstFit, Replica, best_replica, replicas_by_load
from torchsplit_core.day_plans.replay.server_periods import ServedDay, ServerPeriod, to_grid, within_day
from torchsplit_core.latency_slo.simulation_input import simulated_llm
from torchsplit_core.tables.demand_trace.trace_csv import DAY_S, DemandTrace
from torchsplit_core.transition import ChangeTimes
from torchsplit_core.values import PlanModel, PlanRequest, PoissonArrivals, SimulatedModel
from torchsplit_core.values.day.replay import ThresholdRule


def models_without_replica(request: PlanRequest) -> tuple[str, ...]:
    """The models that the rule cannot serve: no slice of the fleet takes one whole, within its limit of latency."""
    return tuple(model.name for model in request.models if best_replica(request, model) is None)


def rule_day(
    request: PlanRequest, trace: DemandTrace, rule: ThresholdRule, times: ChangeTimes | None = None
) -> ServedDay:
    """The day by the rule; every model of the request has a replica and a column.

    A new replica serves once its slice is made and it has started, and takes its place on a GPU from the decision on;
    one too many takes no more requests from the decision on. GPUs are packed anew at every decision at no cost, and
    there are as many as the replicas need: both favour the rule.
    """
    times = times or ChangeTimes()
    packing = FirstFit()
    replicas = {model.name: best_replica(request, model) for model in request.models}
    chosen = {name: replica for name, replica in replicas.items() if replica is not None}
    counts = {
        name: replicas_by_load(trace.rates[name], replica.rate_rps, rule, trace.step_s)
        for name, replica in chosen.items()
    }
    periods: list[ServerPeriod] = []
    changes: list[tuple[float, float]] = []
    for name, replica in chosen.items():
        start_s = times.seconds("create") + times.seconds("start", (name,))
        scaled = _periods(replica, counts[name], trace.step_s, rule.lag_s, (start_s, times.drain_s))
        periods += scaled[0]
        changes += scaled[1]
    models = {
        (model.name, chosen[model.name].variant): _model(model, chosen[model.name])
        for model in request.models
    }
    return ServedDay(
        "rule", tuple(periods), models, within_day(changes), _gpus(packing, chosen, counts, trace, rule)
    )


def _periods(
    replica: Replica, counts: Sequence[int], step_s: int, lag_s: float, seconds: tuple[float, float]
) -> tuple[list[ServerPeriod], list[tuple[float, float]]]:
    """The replicas' periods, and when changes are under way. The newest replica goes first."""
    server = replica.server()
    running: list[float] = [0.0] * counts[0]
    periods: list[ServerPeriod] = []
    changes: list[tuple[float, float]] = []
    start_s, drain_s = seconds

    def add(begin_s: float, end_s: float) -> None:
        begin, end = to_grid(begin_s), to_grid(min(end_s, float(DAY_S)))
        if server is not None and begin < end:
            periods.append(ServerPeriod(replica.variant, server, begin, end, drain_s))

    for number, (before, count) in enumerate(pairwise(counts), 1):
        moment = number * step_s + lag_s
        if count > before:
            running += [moment + start_s] * (count - before)
            changes.append((moment, moment + start_s))
        for _ in range(before - count):
            add(running.pop(), moment)
        if count < before:
            changes.append((moment, moment + drain_s))
    for begin_s in running:
        add(begin_s, float(DAY_S))
    return periods, changes


def _model(model: PlanModel, replica: Replica) -> SimulatedModel:
    arrivals = PoissonArrivals(model.demand_rps)
    if model.llm is not None:
        return simulated_llm(model, model.llm, arrivals)
    return SimulatedModel(model.name, (replica.stage.name,), arrivals, slo_ms=model.response_limit_ms)


def _gpus(
    packing: FirstFit,
    chosen: Mapping[str, Replica],
    counts: Mapping[str, Sequence[int]],
    trace: DemandTrace,
    rule: ThresholdRule,
) -> tuple[tuple[float, int], ...]:
    steps: list[tuple[float, int]] = []
    for number in range(trace.moments):
        used = packing.gpus([(replica.place, counts[name][number]) for name, replica in chosen.items()])
        moment = number * trace.step_s + rule.lag_s if number else 0.0
        if moment < DAY_S and (not steps or steps[-1][1] != used):
            steps.append((moment, used))
    return tuple(steps)
