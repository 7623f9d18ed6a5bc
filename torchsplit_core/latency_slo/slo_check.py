"""A plan's models under load: whether the limited response percentile keeps its limit, and up to which rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchsplit_core.latency_slo.simulation_input import simulation_request
from torchsplit_core.simulation.arrivals import is_random, offered_rps
from torchsplit_core.simulation.capacity import capacity_rps
from torchsplit_core.simulation.output_statistics import mean, percentile, upper_end, without_warmup
from torchsplit_core.simulation.replication import PreparedModel, prepare_model, replication_count, run_model
from torchsplit_core.simulation.tandem import ReplicationRun
from torchsplit_core.values import PlanModel, PlanOutcome, PlanRequest, ResponsePercentiles
from torchsplit_core.values.plan.outcome import ResponseBinding

OTHER_SEED = 1
"""Seed of the confirming simulation. A plan's figures come from `simulate` with its defaults and seed 0."""

RUNS, OTHER_RUNS, WARMUP = 5, 3, 0.1
"""Replications of the plan's and of the confirming simulation, and the share of first requests dropped as warm-up."""

CLEAR = 3.0
"""A limit this many half-widths of the 95 % interval above the percentile needs no confirmation."""

QUICK_REQUESTS = 40_000
"""Requests in each of QUICK_RUNS short replications, which reject models far above their limit early."""
QUICK_RUNS = 2
FAR_ABOVE, FAR_BELOW = 1.1, 0.8
"""Shares of the limit: a quick percentile above the first always fails the longer runs, one below the second rarely."""

BUSY, TOO_BUSY = 0.98, 0.995
"""Utilizations. Above the first, ten times the requests are simulated, because short runs start with empty queues and
are optimistic; from the second on, no run of this length is conclusive (random arrivals)."""

FULL_S = 0.25
"""Seconds that the long simulation of a model takes. With a time limit below that for every limited model, those that
are clearly within their limit are simulated SHORT_REQUESTS a replication instead."""

SHORT_REQUESTS, SHORT_QUICK_REQUESTS = 10_000, 4_000
CALM = 0.9
"""Utilization up to which a short simulation is enough: it begins with empty queues."""

SUSTAINED_STEPS = 8
HIGHEST_FACTOR = 4.0
"""Sustained rates are searched up to this multiple of the offered rate."""


@dataclass(frozen=True, slots=True)
class CheckedResponse:
    """One model under load. `upper_ms` is the upper end of the 95 % interval of the limited percentile.

    `short`: by the short simulation.
    """

    response_ms: ResponsePercentiles
    upper_ms: float
    bound_by: ResponseBinding
    short: bool = False


@dataclass(frozen=True, slots=True)
class SloResult:
    """Simulation of a plan: figures of each model that keeps its limit, and the names of those that do not.

    `doubtful` are near or above their limit in a quick simulation.
    """

    responses: dict[str, CheckedResponse]
    failing: tuple[str, ...]
    doubtful: tuple[str, ...] = ()


def limited_models(request: PlanRequest) -> tuple[PlanModel, ...]:
    """The models with a response-time limit."""
    return tuple(model for model in request.models if model.max_response_ms is not None)


def offered_by(model: PlanModel) -> float:
    """Mean requests/s that arrive; 0 for a trace without a length, whose rate is unknown."""
    return offered_rps(model.expected_arrivals) or 0.0


class SloChecker:
    """Simulates plans of one request; caches results by the servers of each model.

    `short`: the request's time limit leaves no time for the long simulation of every model.
    """

    def __init__(self, request: PlanRequest) -> None:
        self.request = request
        self.simulated = 0
        self.short = request.solver.time_limit_s < FULL_S * len(limited_models(request))
        self._quick_requests = SHORT_QUICK_REQUESTS if self.short else QUICK_REQUESTS
        self._checked: dict[object, CheckedResponse | None] = {}
        self._quick_shares: dict[object, float] = {}
        self._sustained: dict[object, float] = {}

    def check(self, outcome: PlanOutcome) -> SloResult:
        """Simulate a plan that has the request's own points, and compare each model with its limit."""
        prepared = self._prepare(outcome)
        specs = limited_models(self.request)
        known = [spec for spec in specs if spec.name in prepared]
        failing = [spec.name for spec in specs if spec.name not in prepared]
        quick_shares = {spec.name: self._quick_share(spec, prepared[spec.name]) for spec in known}
        failing += [name for name, share in quick_shares.items() if share > FAR_ABOVE]
        doubtful = tuple(name for name, share in quick_shares.items() if share > FAR_BELOW)
        if failing:
            return SloResult({}, tuple(failing), doubtful)
        responses: dict[str, CheckedResponse] = {}
        # The most doubtful come first: once one fails, those far below their limits are skipped.
        for spec in sorted(known, key=lambda model: -quick_shares[model.name]):
            if failing and quick_shares[spec.name] < FAR_BELOW:
                break
            checked = self._check_model(spec, prepared[spec.name])
            if checked is None:
                failing.append(spec.name)
            else:
                responses[spec.name] = checked
        return SloResult(responses, tuple(failing), doubtful)

    def sustained(self, outcome: PlanOutcome) -> dict[str, float]:
        """By model, the multiple of its offered rate that its instances carry within the limit; 0 for nothing."""
        ready = self._prepare(outcome)
        return {
            spec.name: self._sustained_factor(spec, ready[spec.name]) if spec.name in ready else 0.0
            for spec in limited_models(self.request)
        }

    def _prepare(self, outcome: PlanOutcome) -> dict[str, PreparedModel]:
        """The prepared simulation of each model that has a slice."""
        if not any(gpu.slices for gpu in outcome.gpus):
            return {}
        simulated = simulation_request(outcome, self.request)
        return {model.name: prepare_model(simulated, number) for number, model in enumerate(simulated.models)}

    def _quick_share(self, spec: PlanModel, prepared: PreparedModel) -> float:
        """A quick estimate of percentile / limit; 0 if only the whole simulation can tell."""
        key = (spec.name, prepared.number, _server_key(prepared))
        if key not in self._quick_shares:
            self._quick_shares[key] = self._simulate_quickly(spec, prepared)
        return self._quick_shares[key]

    def _simulate_quickly(self, spec: PlanModel, prepared: PreparedModel) -> float:
        drawn = is_random(prepared.model.arrivals)
        if not _is_trace(spec) and _utilization(spec, prepared) >= (TOO_BUSY if drawn else 1.0):
            return math.inf
        if not drawn:
            return 0.0
        quick = replace(prepared, requests=min(self._quick_requests, prepared.requests), seed=OTHER_SEED)
        self.simulated += QUICK_RUNS * quick.requests
        percentiles = [_percentile(run_model(quick, k), spec) for k in range(QUICK_RUNS)]
        return mean(percentiles) / (spec.max_response_ms or math.inf)

    def _check_model(self, spec: PlanModel, prepared: PreparedModel) -> CheckedResponse | None:
        key = (spec.name, prepared.number, _server_key(prepared))
        if key not in self._checked:
            self._checked[key] = self._simulate_model(spec, prepared)
        return self._checked[key]

    def _simulate_model(self, spec: PlanModel, prepared: PreparedModel) -> CheckedResponse | None:
        """The model's figures; None if it misses its limit in their simulation or in one with other draws."""
        limit = spec.max_response_ms or 0.0
        drawn = is_random(prepared.model.arrivals)
        if self.short and drawn and _utilization(spec, prepared) <= CALM:
            brief = replace(prepared, requests=min(SHORT_REQUESTS, prepared.requests))
            runs = self._runs(brief)
            if _clearly_within(limit, [_percentile(run, spec) for run in runs]):
                return _checked(spec, brief, runs, short=True)
        runs = self._runs(prepared)
        percentiles = [_percentile(run, spec) for run in runs]
        if upper_end(percentiles) > limit:
            return None
        clear = _utilization(spec, prepared) <= BUSY and _clearly_within(limit, percentiles)
        if drawn and not clear:
            longer = prepared.requests * (10 if _utilization(spec, prepared) > BUSY else 1)
            other = replace(prepared, requests=longer, seed=OTHER_SEED)
            self.simulated += OTHER_RUNS * longer
            if upper_end([_percentile(run_model(other, k), spec) for k in range(OTHER_RUNS)]) > limit:
                return None
        return _checked(spec, prepared, runs)

    def _runs(self, prepared: PreparedModel) -> list[ReplicationRun]:
        runs = [run_model(prepared, k) for k in range(replication_count(prepared, RUNS))]
        self.simulated += len(runs) * prepared.requests
        return runs

    def _sustained_factor(self, spec: PlanModel, prepared: PreparedModel) -> float:
        key = (spec.name, prepared.number, _server_key(prepared))
        if key not in self._sustained:
            self._sustained[key] = self._search_factor(spec, prepared)
        return self._sustained[key]

    def _search_factor(self, spec: PlanModel, prepared: PreparedModel) -> float:
        """Find the largest factor by bisection, with the same draws at every rate."""
        quick = (
            prepared
            if _is_trace(spec)
            else replace(prepared, requests=min(self._quick_requests, prepared.requests))
        )
        limit = spec.max_response_ms or 0.0
        high = HIGHEST_FACTOR
        if not _is_trace(spec) and offered_by(spec):
            high = min(high, TOO_BUSY * capacity_rps(prepared) / offered_by(spec))
        low = 0.0
        for _ in range(SUSTAINED_STEPS):
            middle = (low + high) / 2
            self.simulated += quick.requests
            if _percentile(run_model(quick, 0, middle), spec) <= limit:
                low = middle
            else:
                high = middle
        return low


def _clearly_within(limit: float, percentiles: Sequence[float]) -> bool:
    """Whether the limit is so far above the percentile of these replications that it needs no confirmation."""
    centre = mean(percentiles)
    return centre + CLEAR * (upper_end(percentiles) - centre) <= limit


def _checked(
    spec: PlanModel, prepared: PreparedModel, runs: Sequence[ReplicationRun], *, short: bool = False
) -> CheckedResponse:
    response_ms = [
        mean([percentile(without_warmup(run.response_ms, WARMUP), percent) for run in runs])
        for percent in (50, 95, 99)
    ]
    return CheckedResponse(
        ResponsePercentiles(*response_ms),
        upper_end([_percentile(run, spec) for run in runs]),
        bound_by(prepared, runs[0], spec.response_percentile),
        short,
    )


def _is_trace(spec: PlanModel) -> bool:
    return spec.expected_arrivals.kind == "trace"


def _utilization(spec: PlanModel, prepared: PreparedModel) -> float:
    """Offered rate over the capacity of the model's servers."""
    return offered_by(spec) / capacity_rps(prepared)


def _server_key(prepared: PreparedModel) -> tuple[object, ...]:
    """Everything that determines a model's simulation besides the request."""
    return (
        prepared.model.transfer_ms,
        tuple(
            tuple((server.max_batch, server.count, tuple(server.batch_ms.items())) for _, server in stage)
            for stage in prepared.stages
        ),
    )


def _percentile(run: ReplicationRun, spec: PlanModel) -> float:
    return percentile(without_warmup(run.response_ms, WARMUP), spec.response_percentile)


def bound_by(prepared: PreparedModel, run: ReplicationRun, percent: float) -> ResponseBinding:
    """The largest part of responses around a percentile: waiting, the rest of the batch, or the request alone."""
    order = np.argsort(run.response_ms)
    place = min(len(order) - 1, int(len(order) * percent / 100))
    around = max(1, len(order) // 200)
    near = order[max(0, place - around) : place + around]
    waited = float(run.wait_ms[near].mean())
    alone = sum(prepared.model.transfer_ms)
    for stage, served in zip(prepared.stages, run.stages, strict=True):
        least = {entry: min(server.batch_ms.values()) for entry, server in stage}
        times = np.array([least[entry] for entry in served.entries])
        alone += float(np.average(times, weights=served.sizes))
    rest = float(run.response_ms[near].mean()) - waited - alone
    parts: dict[ResponseBinding, float] = {"service": alone, "fill": rest, "rate": waited}
    return max(parts, key=lambda name: parts[name])
