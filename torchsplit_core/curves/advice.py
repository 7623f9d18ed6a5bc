"""How uncertain each slice size of a model is, and which further measurement reduces that most.

The amount by which a measurement narrows the intervals does not depend on its result, only on where it is made: it
follows from the posterior covariance of the requested rows with the measured one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from torchsplit_core.curves.model import LARGEST_LOG, ModelCurves, fit_model
from torchsplit_core.curves.prior import LEARNT_PRIOR, Prior
from torchsplit_core.curves.time_model import Array
from torchsplit_core.curves.values import Advice, Query, Sample, SizeUncertainty
from torchsplit_core.values import InputFault, quoted


def advice(measured: Sequence[Sample], sizes: Sequence[float], belief: Prior = LEARNT_PRIOR) -> Advice:
    """Uncertainty of each size of one model, and the measurement that narrows the widest most.

    Batch sizes are the measured ones; for each size, those that should fit in its memory, in proportion to batches
    that fitted on other slices, and always the smallest. Candidates are single-process rows that no out-of-memory row
    rules out; a size without any is omitted. Raises InputFault for rows of several models, for a model without a row
    that ran, and if `sizes` is empty.
    """
    models = sorted({sample.model for sample in measured})
    if len(models) != 1:
        raise InputFault(
            "measured rows",
            f"are of {len(models)} models ({', '.join(models)})" if models else "are missing",
            "Give the rows of one model.",
        )
    if not sizes:
        raise InputFault("sizes", "are empty", "Give at least one slice size.")
    curves = fit_model(measured, belief)
    grid = [query for size in sizes for query in _grid(curves, size)]
    if not grid:
        raise InputFault(
            "sizes",
            f"{quoted(list(sizes))} leave no batch that fits in memory, by the measured rows",
            "Measure a smaller batch.",
        )
    now = curves.posterior.predict(curves.units.points(grid)).half_width
    after = now[:, None] * _shrinkage(curves, grid)
    return _best_measurement(curves.model, sizes, grid, now, after)


def _grid(curves: ModelCurves, size: float) -> list[Query]:
    """Single-process rows of a size whose batch should fit, judged by rows of other slices."""
    memory = curves.units.point(Query(curves.model, size, 1))[1]
    batches = sorted({sample.batch_size for sample in curves.samples})
    held = max(
        sample.batch_size * min(1.0, memory / curves.units.point(sample)[1]) for sample in curves.samples
    )
    rows = [Query(curves.model, size, batch) for batch in batches if batch <= max(held, batches[0])]
    return [row for row in rows if not curves.rules_out(row)]


def _shrinkage(curves: ModelCurves, grid: Sequence[Query]) -> Array:
    """Array (k, k): half-width of row i once row j is measured, as a share of its present half-width."""
    covariance = curves.posterior.covariance(curves.units.points(grid))
    noise = curves.posterior.new_noise
    variance = np.maximum(np.diag(covariance), 0.0)
    left = np.maximum(variance[:, None] - covariance**2 / (variance + noise), 0.0)
    shrinkage: Array = np.sqrt((left + noise) / (variance + noise)[:, None])
    return shrinkage


def _best_measurement(
    model: str, sizes: Sequence[float], grid: Sequence[Query], now: Array, after: Array
) -> Advice:
    """The candidate that narrows the widest size most; among equals, the one best for all sizes."""
    rows_of = {size: [index for index, row in enumerate(grid) if row.size == size] for size in sizes}
    sizes = [size for size in sizes if rows_of[size]]
    mean_now = {size: float(now[rows_of[size]].mean()) for size in sizes}
    mean_after = {size: after[rows_of[size]].mean(axis=0) for size in sizes}
    widest = max(sizes, key=lambda size: mean_now[size])
    everywhere = sum(mean_after.values())
    chosen = min(range(len(grid)), key=lambda index: (mean_after[widest][index], everywhere[index]))
    uncertainty = tuple(
        SizeUncertainty(size, _ratio(mean_now[size]), _ratio(float(mean_after[size][chosen])))
        for size in sizes
    )
    return Advice(model, grid[chosen].size, grid[chosen].batch_size, uncertainty)


def _ratio(half_width: float) -> float:
    """high / low of an interval of that half-width on the logarithm."""
    return math.exp(min(2.0 * half_width, LARGEST_LOG))
