"""The figures of one model's day on a side, of the replications of its requests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.day_plans.replay.model_run import DayRequests
from torchsplit_core.day_plans.replay.time_sample import HOUR_S, ReplayPiece
from torchsplit_core.simulation.output_statistics import PERCENTILES, half_width, mean
from torchsplit_core.values import PlanModel
from torchsplit_core.values.day.replay import ReplayHour, ReplayModel, ReplayShares, ReplayTimes

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a model's clients are promised, ms; None: nothing. Of an LLM to its first token, and from token to token."""

    max_response_ms: float | None = None
    max_ttft_ms: float | None = None
    max_tpot_ms: float | None = None

    @classmethod
    def of(cls, model: PlanModel) -> ModelLimits:
        """Those of the request; of an LLM those of its tokens."""
        if model.llm is not None:
            return cls(None, model.llm.max_ttft_ms, model.llm.max_tpot_ms)
        return cls(model.response_limit_ms)

    def holds(self, requests: DayRequests) -> Mask | None:
        """Which of the answered requests keep all; None where nothing is promised."""
        if self == ModelLimits():
            return None
        within = np.full(len(requests.response_ms), True)
        for limit, times in (
            (self.max_response_ms, requests.response_ms),
            (self.max_ttft_ms, requests.ttft_ms),
            (self.max_tpot_ms, requests.tpot_ms),
        ):
            if limit is not None and times is not None:
                within &= times <= limit
        return within


def model_figures(
    name: str,
    limits: ModelLimits,
    pieces: Sequence[ReplayPiece],
    changes: Sequence[tuple[float, float]],
    first_s: int,
    runs: Sequence[DayRequests],
) -> ReplayModel:
    """The model's figures: means over the replications, `runs`."""
    cases = [_Case(run, limits, changes, first_s) for run in runs]
    hours = tuple(_hour(hour, pieces, cases) for hour in range(24))
    stable = [hour.stable for hour in hours if hour.stable is not None]
    every = [case.all_arrivals() for case in cases]
    attainment = [case.attainment(*masks) for case, masks in zip(cases, every, strict=True)]
    answered = [masks[0] for masks in every]
    response = [
        case.percentiles(case.run.response_ms, mask) for case, mask in zip(cases, answered, strict=True)
    ]
    first = [case.percentiles(case.run.ttft_ms, mask) for case, mask in zip(cases, answered, strict=True)]
    used = [run.busy_s / run.open_s for run in runs if run.open_s]
    return ReplayModel(
        name,
        limits.max_response_ms,
        arrived_requests=mean([run.arrived for run in runs]),
        served_requests=mean([run.served for run in runs]),
        lost_requests=mean([run.lost for run in runs]),
        waiting_requests=mean([run.waiting for run in runs]),
        simulated_requests=sum(run.simulated for run in runs),
        utilisation=mean(used) if used else None,
        stable=all(stable) if stable else None,
        overloaded_s=math.fsum(
            piece.length_s for piece in pieces if (piece.rate_rps or 0.0) > piece.capacity_rps
        ),
        response_ms=_times(response),
        p95_ci95_ms=_width([times["p95"] for times in response]),
        attainment=ReplayShares(
            _mean(attainment),
            _mean([case.attainment(*case.in_changes()) for case in cases]),
            _mean([case.attainment(*case.outside()) for case in cases]),
        ),
        attainment_ci95=_width(attainment),
        hours=hours,
        ttft_ms=_times(first) if any(run.ttft_ms is not None for run in runs) else None,
        max_ttft_ms=limits.max_ttft_ms,
        max_tpot_ms=limits.max_tpot_ms,
    )


class _Case:
    """One replication: its requests by hour, by changes, and within the limits."""

    def __init__(
        self, run: DayRequests, limits: ModelLimits, changes: Sequence[tuple[float, float]], first_s: int
    ) -> None:
        self.run, self.within = run, limits.holds(run)
        self.hours = _hour_of(run.arrivals_s, first_s)
        self.missing_hours = _hour_of(run.missing_s, first_s)
        self.changing = _in_any(run.arrivals_s, changes)
        self.missing_changing = _in_any(run.missing_s, changes)

    def all_arrivals(self) -> tuple[Mask, Mask]:
        return np.full(len(self.hours), True), np.full(len(self.missing_hours), True)

    def of_hour(self, hour: int) -> tuple[Mask, Mask]:
        return self.hours == hour, self.missing_hours == hour

    def in_changes(self) -> tuple[Mask, Mask]:
        return self.changing, self.missing_changing

    def outside(self) -> tuple[Mask, Mask]:
        return ~self.changing, ~self.missing_changing

    def attainment(self, answered: Mask, missing: Mask) -> float | None:
        """Of the requests that arrived there the share within the limits."""
        if self.within is None:
            return None
        return self._share(float(self.run.weights[answered & self.within].sum()), answered, missing)

    def served_share(self, answered: Mask, missing: Mask) -> float | None:
        return self._share(float(self.run.weights[answered].sum()), answered, missing)

    def _share(self, part: float, answered: Mask, missing: Mask) -> float | None:
        total = float(self.run.weights[answered].sum()) + float(self.run.missing_weights[missing].sum())
        return min(part / total, 1.0) if total > 0 else None

    def percentiles(self, times: Floats | None, answered: Mask) -> dict[str, float | None]:
        """By percentile the least time within which this share of what the requests stand for is answered."""
        figures: dict[str, float | None] = dict.fromkeys(PERCENTILES)
        if times is None:
            return figures
        counted = answered & (self.run.weights > 0)
        values, weights = times[counted], self.run.weights[counted]
        if len(values):
            order = np.argsort(values)
            values, reached = values[order], np.cumsum(weights[order])
            for name, share in PERCENTILES.items():
                place = int(np.searchsorted(reached, float(share) * reached[-1] * (1 - 1e-12)))
                figures[name] = float(values[min(place, len(values) - 1)])
        return figures


def _hour(hour: int, pieces: Sequence[ReplayPiece], cases: Sequence[_Case]) -> ReplayHour:
    mine = [piece for piece in pieces if piece.rate_rps is not None and piece.hour == hour]
    known_s = math.fsum(piece.length_s for piece in mine)
    if not known_s:
        return ReplayHour(hour, 0.0, None, ReplayTimes(), None, None, None, None)
    requests = math.fsum(piece.requests for piece in mine)
    masks = [case.of_hour(hour) for case in cases]
    response = [
        case.percentiles(case.run.response_ms, answered)
        for case, (answered, _) in zip(cases, masks, strict=True)
    ]
    carried = math.fsum(piece.capacity_rps * piece.length_s for piece in mine)
    return ReplayHour(
        hour,
        known_s,
        requests / known_s,
        _times(response),
        _width([times["p95"] for times in response]),
        _mean([case.attainment(*mask) for case, mask in zip(cases, masks, strict=True)]),
        _mean([case.served_share(*mask) for case, mask in zip(cases, masks, strict=True)]),
        requests < carried or not requests,
    )


def _times(figures: Sequence[Mapping[str, float | None]]) -> ReplayTimes:
    return ReplayTimes(**{name: _mean([times[name] for times in figures]) for name in PERCENTILES})


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def _width(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return half_width(known)


def _hour_of(moments_s: Floats, first_s: int) -> NDArray[np.int64]:
    return ((moments_s + first_s) // HOUR_S % 24).astype(np.int64)


def _in_any(moments_s: Floats, changes: Sequence[tuple[float, float]]) -> Mask:
    """Which moments lie in one of these stretches, which are apart and in order."""
    if not changes:
        return np.full(len(moments_s), False)
    begins, ends = np.array(changes).T
    place = np.searchsorted(begins, moments_s, side="right") - 1
    return np.asarray((place >= 0) & (moments_s < ends[np.maximum(place, 0)]), dtype=np.bool_)
