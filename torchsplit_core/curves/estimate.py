"""Estimates throughput and latency of unmeasured rows, with 90 % intervals, and detects outliers.

Each model is fitted once, from its own rows and the prior learnt from the measured library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchsplit_core.curves.fit_data import check_row, log_batch_time
from torchsplit_core.curves.model import ModelCurves, fit_model, requests_per_second
from torchsplit_core.curves.posterior import Prediction
from torchsplit_core.curves.prior import LEARNT_PRIOR, Prior
from torchsplit_core.curves.values import Estimate, Outlier, Query, Sample
from torchsplit_core.values import InputFault, quoted, suggestion

OUTLIER_HALF_WIDTHS = 3.0
"""A row is flagged if it is more than this many half-widths from the value that the other rows predict …"""

OUTLIER_RATIO = 1.1
"""… and off by at least this factor: in very clean data, smaller differences do not matter."""

MIN_POINTS_FOR_OUTLIERS = 4
"""With fewer distinct points of a model, an error cannot be told from the curve's shape."""


def estimate(
    measured: Sequence[Sample], queries: Sequence[Query], prior: Prior = LEARNT_PRIOR
) -> tuple[Estimate, ...]:
    """An estimate for each query, in order.

    Raises InputFault for a query of a model without a measured row that ran, and for invalid rows.
    """
    by_model = group_by_model(measured)
    indices: dict[str, list[int]] = {}
    for index, query in enumerate(queries):
        check_row(query, "query")
        if query.model not in by_model:
            raise InputFault(
                "query",
                f"names model {quoted(query.model)}, of which no row was measured",
                f"{suggestion(query.model, sorted(by_model), 'models')} Or measure one row of it.",
            )
        indices.setdefault(query.model, []).append(index)
    estimates: dict[int, Estimate] = {}
    for model, at in indices.items():
        curves = fit_model(by_model[model], prior)
        estimates.update(zip(at, curves.estimates([queries[index] for index in at]), strict=True))
    return tuple(estimates[index] for index in range(len(queries)))


def outliers(measured: Sequence[Sample], prior: Prior = LEARNT_PRIOR) -> tuple[Outlier, ...]:
    """Rows far from what all other rows of their model predict, by model, farthest first.

    A model with fewer than MIN_POINTS_FOR_OUTLIERS distinct points has none.
    """
    flagged: list[Outlier] = []
    for samples in group_by_model(measured).values():
        if any(sample.throughput_rps > 0 for sample in samples):
            flagged += _model_outliers(fit_model(samples, prior))
    return tuple(flagged)


def group_by_model(measured: Sequence[Sample]) -> dict[str, list[Sample]]:
    """Rows by model, in the order in which models first appear."""
    by_model: dict[str, list[Sample]] = {}
    for sample in measured:
        by_model.setdefault(sample.model, []).append(sample)
    return by_model


def _model_outliers(curves: ModelCurves) -> list[Outlier]:
    if len(curves.points) < MIN_POINTS_FOR_OUTLIERS:
        return []
    others = curves.posterior.leave_one_out(curves.log_times)
    index_of = {tuple(point): index for index, point in enumerate(curves.points.tolist())}
    rows = []
    for sample in curves.samples:
        index = index_of.get(curves.units.point(sample))
        if index is not None:
            flagged = _as_outlier(curves, sample, others, index)
            if flagged is not None:
                rows.append(flagged)
    return sorted(rows, key=lambda outlier: -outlier.deviation)


def _as_outlier(curves: ModelCurves, sample: Sample, others: Prediction, index: int) -> Outlier | None:
    """The row as an outlier, or None if it is not one."""
    expected, width = float(others.median[index]), float(others.half_width[index])
    residual = log_batch_time(sample) - expected
    if abs(residual) < max(OUTLIER_HALF_WIDTHS * width, math.log(OUTLIER_RATIO)):
        return None
    rate = requests_per_second
    return Outlier(
        sample,
        rate(sample, expected),
        rate(sample, expected + width),
        rate(sample, expected - width),
        abs(residual) / width,
    )
