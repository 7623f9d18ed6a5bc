"""One model's fitted curves, and their predictions for a slice, a batch size and a number of processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchsplit_core.curves.fit import fit_points
from torchsplit_core.curves.fit_data import SliceUnits, check_row, fit_arrays, log_batch_time
from torchsplit_core.curves.posterior import Posterior, half_width_of_noise
from torchsplit_core.curves.prior import LEARNT_PRIOR, Prior
from torchsplit_core.curves.values import Estimate, Query, Sample
from torchsplit_core.values import InputFault, quoted

LARGEST_LOG = 600.0
"""exp of this is finite; logarithms beyond it are clipped."""


@dataclass(frozen=True, slots=True)
class Band:
    """Time of one batch in ms and its 90 % interval, one entry for each batch size."""

    batch_sizes: tuple[int, ...]
    time_ms: tuple[float, ...]
    low_ms: tuple[float, ...]
    high_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BatchTime:
    """Time of one batch in ms, the half-width of its 90 % interval on the logarithm, and the latency to report."""

    time_ms: float
    half_width: float
    latency_ms: float


@dataclass(frozen=True, slots=True)
class FitError:
    """Relative leave-one-out errors of the throughput: each row is predicted from all other rows."""

    rows: int
    median: float
    p90: float


class ModelCurves:
    """The result of `fit_model`: immutable, fitted once per model, queried any number of times."""

    def __init__(self, samples: Sequence[Sample], prior: Prior) -> None:
        self.model = samples[0].model
        self.samples = tuple(sample for sample in samples if sample.throughput_rps > 0)
        self.out_of_memory = tuple(sample for sample in samples if sample.throughput_rps == 0)
        self.units = SliceUnits(samples)
        self.points, self.log_times, self.repeats = fit_arrays(self.samples, self.units)
        self.posterior: Posterior = fit_points(self.points, self.log_times, self.repeats, prior)
        distinct = {self.units.point(sample) for sample in self.samples}
        self.thinned = len(distinct) - len(self.points)
        self._log_latency_ratio = _log_latency_ratio(self.samples)
        self._measured: dict[tuple[float, int, int], list[Sample]] = {}
        for sample in self.samples:
            self._measured.setdefault((sample.size, sample.batch_size, sample.processes), []).append(sample)

    def time_ms(self, size: float, batch_size: int, processes: int = 1) -> float:
        """Predicted time of one batch in ms, even if it was measured."""
        query = Query(self.model, size, batch_size, processes)
        check_row(query, "curve")
        return _exp(float(self.posterior.predict(self.units.points([query])).median[0]))

    def times(self, queries: Sequence[Query]) -> tuple[BatchTime, ...]:
        """Predicted times, also for sizes and bandwidths beyond one GPU of the measured type: shares may exceed 1."""
        if not queries:
            return ()
        prediction = self.posterior.predict(self.units.points(queries))
        return tuple(
            BatchTime(_exp(median), width, _exp(median + self._log_latency_ratio))
            for median, width in zip(prediction.median.tolist(), prediction.half_width.tolist(), strict=True)
        )

    def band(self, size: float, batch_sizes: Sequence[int], processes: int = 1) -> Band:
        """Predicted times for several batch sizes, with the interval of a new measurement."""
        queries = [Query(self.model, size, batch, processes) for batch in batch_sizes]
        for query in queries:
            check_row(query, "curve")
        prediction = self.posterior.predict(self.units.points(queries))
        return Band(
            tuple(batch_sizes),
            tuple(_exp(float(value)) for value in prediction.median),
            tuple(_exp(float(value)) for value in prediction.median - prediction.half_width),
            tuple(_exp(float(value)) for value in prediction.median + prediction.half_width),
        )

    def leave_one_out(self) -> FitError:
        """The error of predicting each measured (size, batch, processes) from all others."""
        prediction = self.posterior.leave_one_out(self.log_times)
        errors = np.abs(np.expm1(np.clip(self.log_times - prediction.median, -LARGEST_LOG, LARGEST_LOG)))
        return FitError(len(errors), float(np.median(errors)), float(np.quantile(errors, 0.9)))

    def rules_out(self, query: Query) -> bool:
        """Whether a row with no smaller slice, no larger batch and no more processes ran out of memory."""
        return any(
            query.size <= failed.size
            and query.batch_size >= failed.batch_size
            and query.processes >= failed.processes
            for failed in self.out_of_memory
        )

    def estimates(self, queries: Sequence[Query]) -> tuple[Estimate, ...]:
        """An estimate for each query, in order; the queries must be of this model and checked."""
        if not queries:
            return ()
        prediction = self.posterior.predict(self.units.points(queries))
        noise = half_width_of_noise(self.posterior)
        estimates = []
        for query, median, width in zip(queries, prediction.median, prediction.half_width, strict=True):
            rows = self._measured.get((query.size, query.batch_size, query.processes))
            if rows:
                estimates.append(self._measured_estimate(rows, noise))
            elif self.rules_out(query):
                note = "a measured row that ran out of memory rules it out"
                estimates.append(Estimate(0.0, None, 0.0, 0.0, "out_of_memory", note))
            else:
                estimates.append(self._estimate(query, float(median), float(width)))
        return tuple(estimates)

    def _estimate(self, query: Query, log_time: float, half_width: float) -> Estimate:
        return Estimate(
            requests_per_second(query, log_time),
            _exp(log_time + self._log_latency_ratio),
            requests_per_second(query, log_time + half_width),
            requests_per_second(query, log_time - half_width),
            "estimated",
            self._note(query),
        )

    def _note(self, query: Query) -> str:
        """A note if the query's size was not measured, or if the fit omitted rows."""
        notes = []
        sizes = {sample.size for sample in self.samples}
        if query.size not in sizes:
            known = ", ".join(f"{size:g}" for size in sorted(sizes))
            notes.append(f"no row of size {query.size:g} was measured, only of {known}")
        if self.thinned:
            notes.append(f"{self.thinned} of the distinct measured rows were left out of the fit")
        return "; ".join(notes)

    def _measured_estimate(self, rows: Sequence[Sample], noise_half_width: float) -> Estimate:
        """The measured value, the median of repeated rows. The interval is the fit's noise at that point."""
        rate = _median([row.throughput_rps for row in rows])
        latencies = [row.latency_ms for row in rows if row.latency_ms is not None]
        if latencies:
            latency = _median(latencies)
        else:
            log_time = float(np.median([log_batch_time(row) for row in rows]))
            latency = _exp(log_time + self._log_latency_ratio)
        at = np.flatnonzero((self.points == self.units.point(rows[0])).all(axis=1))
        trust = float(self.posterior.weights[at[0]] * self.repeats[at[0]]) if len(at) else 1.0
        spread = math.exp(min(noise_half_width / math.sqrt(min(trust, 1.0)), LARGEST_LOG))
        high = max(rate, min(rate * spread, _exp(LARGEST_LOG)))
        return Estimate(rate, latency, rate / spread, high, "measured")


def fit_model(samples: Sequence[Sample], prior: Prior = LEARNT_PRIOR) -> ModelCurves:
    """Fit the rows of one model, including out-of-memory rows; takes a few milliseconds for tens of rows.

    Raises InputFault for invalid rows, and if no row of the model ran.
    """
    for sample in samples:
        check_row(sample, "measured")
    if not any(sample.throughput_rps > 0 for sample in samples):
        problem = "are missing"
        if samples:
            problem = f"of {quoted(samples[0].model)} all ran out of memory"
        raise InputFault("measured rows", problem, "Measure one row that fits in memory.")
    return ModelCurves(samples, prior)


def requests_per_second(row: Sample | Query, log_time_ms: float) -> float:
    """Throughput of a slice whose processes each take exp(log_time_ms) for the row's batch."""
    return _exp(math.log(1000.0 * row.processes) + math.log(row.batch_size) - log_time_ms)


def _log_latency_ratio(samples: Sequence[Sample]) -> float:
    """log of the median ratio of measured latency to batch time if most rows lie on one side of 1, otherwise 0.

    A file may contain p95 latencies; mere scatter around the batch time gives 0.
    """
    logs = [
        math.log(sample.latency_ms) - log_batch_time(sample)
        for sample in samples
        if sample.latency_ms is not None and sample.latency_ms > 0
    ]
    if not logs:
        return 0.0
    low, middle, high = np.quantile(logs, [0.1, 0.5, 0.9])
    return float(middle) if low > 0 or high < 0 else 0.0


def _exp(value: float) -> float:
    return math.exp(min(max(value, -LARGEST_LOG), LARGEST_LOG))


def _median(values: Sequence[float]) -> float:
    """Median of one or more finite values; halves them before adding, so that the largest floats do not overflow."""
    ordered = sorted(values)
    lower, upper = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return lower if lower == upper else lower / 2 + upper / 2
