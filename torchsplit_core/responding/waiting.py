"""A plan's models under load: whether a percentile of their responses keeps its limit, and up to which rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchsplit_core.responding.servers import simulation_request
from torchsplit_core.simulation.arrivals import is_random, offered_rps
from torchsplit_core.simulation.capacity import capacity_rps
from torchsplit_core.simulation.chain import Run
from torchsplit_core.simulation.figures import half_width, mean, percentile, without_warmup
from torchsplit_core.simulation.replicate import Prepared, prepare, replications, run_model
from torchsplit_core.values import PlanModel, PlanOutcome, PlanRequest, ResponsePercentiles
from torchsplit_core.values.plan.outcome import ResponseBinding

OTHER_SEED = 1
"""Of the simulation that confirms. What a plan tells is of `simulate` with its defaults, with seed 0."""

RUNS, OTHER_RUNS, WARMUP = 5, 3, 0.1
"""Replications of the two, and the share of the first requests that is left out."""

CLEAR = 3.0
"""A limit that lies so many half-widths of the 95 % interval above the percentile needs no confirmation."""

QUICK_REQUESTS = 40_000
"""In each of QUICK_RUNS replications of a first look, which spares those that fail by far the whole simulation."""
QUICK_RUNS = 2
FAR_ABOVE, FAR_BELOW = 1.1, 0.8
"""Of the limit: no longer run brings what is above the first below it, hardly any what is below the second above."""

BUSY, TOO_BUSY = 0.98, 0.995
"""Shares of what can be served: above the first ten times the requests are simulated, for short runs that begin
with empty queues flatter; from the second on no run of this length tells what comes (random arrivals)."""

SUSTAINED_STEPS = 8
HIGHEST_FACTOR = 4.0
"""Rates are looked for up to so many times the one that is offered."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One model under load. `upper_ms` is the upper end of the 95 % interval of the limited percentile."""

    response_ms: ResponsePercentiles
    upper_ms: float
    bound_by: ResponseBinding


@dataclass(frozen=True, slots=True)
class Judgement:
    """What simulation says of a plan: of each model that holds its figures, and the names of those that do not."""

    waiting: dict[str, Waiting]
    failing: tuple[str, ...]


def limited(request: PlanRequest) -> tuple[PlanModel, ...]:
    """The models with a limit of their response time."""
    return tuple(model for model in request.models if model.max_response_ms is not None)


def offered(model: PlanModel) -> float:
    """Requests/s that arrive on the average; of a trace without a length none that is known, so 0."""
    return offered_rps(model.expected_arrivals) or 0.0


class Judge:
    """Simulates plans of one request; what was simulated once is remembered by the servers it had."""

    def __init__(self, request: PlanRequest) -> None:
        self.request = request
        self.simulated = 0
        self._known: dict[object, Waiting | None] = {}
        self._looked: dict[object, float] = {}
        self._carried: dict[object, float] = {}

    def judgement(self, outcome: PlanOutcome) -> Judgement:
        """Of a plan whose points are those of the request."""
        ready = self._prepared(outcome)
        specs = limited(self.request)
        known = [spec for spec in specs if spec.name in ready]
        failing = [spec.name for spec in specs if spec.name not in ready]
        looks = {spec.name: self._look(spec, ready[spec.name]) for spec in known}
        failing += [name for name, share in looks.items() if share > FAR_ABOVE]
        if failing:
            return Judgement({}, tuple(failing))
        waiting: dict[str, Waiting] = {}
        # The most doubtful come first: where one fails, those far below their limits are spared.
        for spec in sorted(known, key=lambda one: -looks[one.name]):
            if failing and looks[spec.name] < FAR_BELOW:
                break
            found = self._judged(spec, ready[spec.name])
            if found is None:
                failing.append(spec.name)
            else:
                waiting[spec.name] = found
        return Judgement(waiting, tuple(failing))

    def sustained(self, outcome: PlanOutcome) -> dict[str, float]:
        """By model, how many times its rate its own instances carry within the limit; 0 where they carry nothing."""
        ready = self._prepared(outcome)
        return {
            spec.name: self._factor(spec, ready[spec.name]) if spec.name in ready else 0.0
            for spec in limited(self.request)
        }

    def _prepared(self, outcome: PlanOutcome) -> dict[str, Prepared]:
        """By model; those that no slice serves are left out."""
        if not any(gpu.slices for gpu in outcome.gpus):
            return {}
        asked = simulation_request(outcome, self.request)
        return {model.name: prepare(asked, number) for number, model in enumerate(asked.models)}

    def _look(self, spec: PlanModel, one: Prepared) -> float:
        """A first look at the limited percentile, as a share of its limit; 0 where only the whole simulation tells."""
        key = (spec.name, one.number, _servers(one))
        if key not in self._looked:
            self._looked[key] = self._looked_at(spec, one)
        return self._looked[key]

    def _looked_at(self, spec: PlanModel, one: Prepared) -> float:
        drawn = is_random(one.model.arrivals)
        if not _is_trace(spec) and _busy(spec, one) >= (TOO_BUSY if drawn else 1.0):
            return math.inf
        if not drawn:
            return 0.0
        quick = replace(one, requests=min(QUICK_REQUESTS, one.requests), seed=OTHER_SEED)
        self.simulated += QUICK_RUNS * quick.requests
        looked = [_percentile(run_model(quick, k), spec) for k in range(QUICK_RUNS)]
        return mean(looked) / (spec.max_response_ms or math.inf)

    def _judged(self, spec: PlanModel, one: Prepared) -> Waiting | None:
        key = (spec.name, one.number, _servers(one))
        if key not in self._known:
            self._known[key] = self._simulated(spec, one)
        return self._known[key]

    def _simulated(self, spec: PlanModel, one: Prepared) -> Waiting | None:
        """Its figures, None where it does not hold: by the simulation that they are of, and by one of other draws."""
        limit = spec.max_response_ms or 0.0
        runs = [run_model(one, k) for k in range(replications(one, RUNS))]
        self.simulated += len(runs) * one.requests
        found = [_percentile(run, spec) for run in runs]
        upper = _upper(found)
        if upper > limit:
            return None
        clear = _busy(spec, one) <= BUSY and mean(found) + CLEAR * (upper - mean(found)) <= limit
        if is_random(one.model.arrivals) and not clear:
            longer = one.requests * (10 if _busy(spec, one) > BUSY else 1)
            other = replace(one, requests=longer, seed=OTHER_SEED)
            self.simulated += OTHER_RUNS * longer
            if _upper([_percentile(run_model(other, k), spec) for k in range(OTHER_RUNS)]) > limit:
                return None
        told = [
            mean([percentile(without_warmup(run.response_ms, WARMUP), percent) for run in runs])
            for percent in (50, 95, 99)
        ]
        return Waiting(ResponsePercentiles(*told), upper, bound_by(one, runs[0], spec.response_percentile))

    def _factor(self, spec: PlanModel, one: Prepared) -> float:
        key = (spec.name, one.number, _servers(one))
        if key not in self._carried:
            self._carried[key] = self._carries(spec, one)
        return self._carried[key]

    def _carries(self, spec: PlanModel, one: Prepared) -> float:
        """By halves, with the same draws at every rate."""
        quick = one if _is_trace(spec) else replace(one, requests=min(QUICK_REQUESTS, one.requests))
        limit = spec.max_response_ms or 0.0
        high = HIGHEST_FACTOR
        if not _is_trace(spec) and offered(spec):
            high = min(high, TOO_BUSY * capacity_rps(one) / offered(spec))
        low = 0.0
        for _ in range(SUSTAINED_STEPS):
            middle = (low + high) / 2
            self.simulated += quick.requests
            if _percentile(run_model(quick, 0, middle), spec) <= limit:
                low = middle
            else:
                high = middle
        return low


def _is_trace(spec: PlanModel) -> bool:
    return spec.expected_arrivals.kind == "trace"


def _busy(spec: PlanModel, one: Prepared) -> float:
    """The share of what its servers can serve that arrives."""
    return offered(spec) / capacity_rps(one)


def _servers(one: Prepared) -> tuple[object, ...]:
    """All that a simulation of it rests on, beside the request itself."""
    return (
        one.model.transfer_ms,
        tuple(
            tuple((server.max_batch, server.count, tuple(server.batch_ms.items())) for _, server in stage)
            for stage in one.stages
        ),
    )


def _percentile(run: Run, spec: PlanModel) -> float:
    return percentile(without_warmup(run.response_ms, WARMUP), spec.response_percentile)


def _upper(values: Sequence[float]) -> float:
    return mean(values) + (half_width(values) or 0.0)


def bound_by(one: Prepared, run: Run, percent: float) -> ResponseBinding:
    """What most of the responses around a percentile is: waiting, the rest of the batch, or the request alone."""
    order = np.argsort(run.response_ms)
    place = min(len(order) - 1, int(len(order) * percent / 100))
    around = max(1, len(order) // 200)
    near = order[max(0, place - around) : place + around]
    waited = float(run.wait_ms[near].mean())
    alone = sum(one.model.transfer_ms)
    for stage, served in zip(one.stages, run.stages, strict=True):
        least = {entry: min(server.batch_ms.values()) for entry, server in stage}
        times = np.array([least[entry] for entry in served.entries])
        alone += float(np.average(times, weights=served.sizes))
    rest = float(run.response_ms[near].mean()) - waited - alone
    parts: dict[ResponseBinding, float] = {"service": alone, "fill": rest, "rate": waited}
    return max(parts, key=lambda name: parts[name])
