"""How a device's speed varies, from the rounds of its points: within a round, and from round to round.

A batch of one size is the same work each time. Its times in a round, in segments of a tenth of a second, show how slow
the slow periods are and how long they last; the means of rounds, separated by other work and other points, show how the
speed differs between minutes. Both are of this host in the minutes of the measurement.

Within rounds: log times = mean of the round + a process of covariance σ² exp(-lag / τ) + the segment's own error (the
spread of its runs). σ and τ by restricted maximum likelihood over all rounds (Patterson and Thompson, Biometrika 58,
1971), which the unknown means do not bias. The drift follows from the means of rounds in the same way. Loads no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.profiling.measuring.rounds import MAX_STOLEN_SHARE, SEGMENT_S
from torchsplit_core.values.profile import Pace

Segment = Sequence[float]
"""When it began (Unix s), mean ms of its runs, standard error of that mean's logarithm."""
RoundSegments = Sequence[Segment]

LEAST_CV = 1e-3
"""A smaller coefficient of variation counts as constant speed: no simulation is that precise."""
SIGMAS = (0.0, *np.geomspace(3e-4, 1.0, 44).tolist())
MIN_SEGMENTS = 2
LONGEST_S = 30.0
MAX_SEGMENTS = 60
"""Most segments of a round; in a longer one neighbours are averaged."""
BETWEEN_RUNS_SD = 0.04
"""Standard deviation of log(mean ms of a run's batches / the profile's) that the rounds of a point cannot show, because
they are of one minute: pages, caches and neighbours differ from process to process and from hour to hour. The root mean
square of eight runs of three models on a virtual machine of two cores, none of them in `benchmarks/p95_coverage.py`,
was 0.042."""
VARIANCE_FLOOR = 1e-8
"""Variance added to every time, of a hundredth of a per cent, so that equal times have a likelihood."""
QUANTILE = NormalDist().inv_cdf(0.95)


def rounds_of(content: Mapping[str, Any], *, measuring_child_only: bool) -> list[RoundSegments]:
    """The rounds of a stored point, without disturbed ones if two were quiet.

    `measuring_child_only` leaves out those of the process whose resident memory was measured.
    """
    rounds = [*content.get("course", ()), *(() if measuring_child_only else content.get("held_course", ()))]
    quiet = [segments for stolen_share, segments in rounds if stolen_share <= MAX_STOLEN_SHARE]
    return quiet if len(quiet) > 1 else [segments for _, segments in rounds]


def fit_pace(points: Sequence[Sequence[RoundSegments]]) -> Pace | None:
    """The pace of a device from the rounds of its points; None if they do not determine it, or the speed is constant.

    A point's rounds are all of the same work. `cv` and `seconds` are of the periods within a run; `drift_cv` is of the
    speed of a run, in another minute and process, around the mean of the rounds: from the rounds and `BETWEEN_RUNS_SD`.
    """
    rounds_by_point = [
        [_coarsened(timing_round) for timing_round in point if timing_round] for point in points
    ]
    rounds_by_point = [point for point in rounds_by_point if len(point) > 1]
    if not rounds_by_point:
        return None
    sigma, seconds = _fit_within_rounds([timing_round for point in rounds_by_point for timing_round in point])
    drift = _drift(
        [
            [_weighted_mean(timing_round, sigma, seconds) for timing_round in point]
            for point in rounds_by_point
        ]
    )
    if max(sigma, drift) < LEAST_CV:
        return None
    return Pace(_cv(sigma), seconds, _cv(math.hypot(drift, BETWEEN_RUNS_SD)))


def _cv(sigma: float) -> float:
    """Of a log-normal whose logarithm has standard deviation sigma."""
    return math.sqrt(math.expm1(sigma * sigma))


def _drift(points: Sequence[Sequence[tuple[float, float, float]]]) -> float:
    """σ of a normal with the 90 % interval of a run's mean speed around the profile's.

    `points`: (s, mean, variance) of their rounds, which share one drift of covariance σ² exp(-lag / τ). Few rounds do
    not determine σ and τ: the interval is that of the mixture over a grid of both, even in log σ and log τ, weighted by
    their restricted likelihood.
    """
    rows = np.array([timing_round for point in points for timing_round in point])
    point_index = np.array([number for number, point in enumerate(points) for _ in point])
    membership = (point_index[:, None] == np.arange(len(points))[None, :]).astype(float)
    # The profile's figure of a point is the mean of its rounds.
    means = membership / membership.sum(axis=0)
    lags = np.abs(rows[:, 0][:, None] - rows[:, 0][None, :])
    span = max(float(lags.max()), SEGMENT_S)
    weights, variances = [], []
    for seconds in (span / 4, span / 2, span, 2 * span):
        for sigma in SIGMAS[1:]:
            covariance = sigma * sigma * np.exp(-lags / seconds) + np.diag(rows[:, 2] + VARIANCE_FLOOR)
            weights.append(_restricted_log_likelihood(covariance, membership, rows[:, 1]))
            mean_variance = float(np.mean(np.einsum("ik,ij,jk->k", means, covariance, means)))
            variances.append(sigma * sigma + mean_variance)
    posterior = np.exp(np.array(weights) - max(weights))
    return _equivalent_normal_sigma(posterior / posterior.sum(), np.sqrt(variances))


def _restricted_log_likelihood(
    covariance: NDArray[np.float64], means: NDArray[np.float64], values: NDArray[np.float64]
) -> float:
    """The logarithm of the restricted likelihood of values with an unknown mean for each column of `means`."""
    factor = np.linalg.cholesky(covariance)
    whitened = np.linalg.solve(factor, np.column_stack([means, values]))
    whitened_means, whitened_values = whitened[:, :-1], whitened[:, -1]
    gram = whitened_means.T @ whitened_means
    residual = whitened_values - whitened_means @ np.linalg.solve(gram, whitened_means.T @ whitened_values)
    logs = 2 * float(np.log(np.diag(factor)).sum()) + float(np.linalg.slogdet(gram)[1])
    return -(logs + float(residual @ residual)) / 2


def _equivalent_normal_sigma(shares: NDArray[np.float64], sigmas: NDArray[np.float64]) -> float:
    """The σ of a normal whose 95 % quantile is that of a mixture of normals around 0."""
    from scipy.special import ndtr

    low, high = 0.0, QUANTILE * float(sigmas.max())
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if float(shares @ ndtr(middle / sigmas)) < 0.95 else (low, middle)
    return high / QUANTILE


def _coarsened(timing_round: RoundSegments) -> NDArray[np.float64]:
    """Rows of (s, log ms, variance), at most MAX_SEGMENTS of them."""
    rows = np.array([[at, math.log(ms), error * error] for at, ms, error in timing_round])
    group_size = -(-len(rows) // MAX_SEGMENTS)
    if group_size == 1:
        return rows
    groups = [rows[first : first + group_size] for first in range(0, len(rows), group_size)]
    return np.array([[g[:, 0].mean(), g[:, 1].mean(), g[:, 2].mean() / len(g)] for g in groups])


def _fit_within_rounds(rounds: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """σ and τ of the greatest restricted likelihood on a grid; (0, the shortest τ) if no round has two segments."""
    usable = [timing_round for timing_round in rounds if len(timing_round) >= MIN_SEGMENTS]
    spans = [float(timing_round[-1, 0] - timing_round[0, 0]) for timing_round in usable]
    longest = min(LONGEST_S, max(spans, default=SEGMENT_S))
    times = [SEGMENT_S * 2**k for k in range(1 + max(0, int(math.log2(longest / SEGMENT_S))))]
    if not usable:
        return 0.0, times[0]
    candidates = [
        (sum(_log_likelihood(timing_round, sigma, seconds) for timing_round in usable), sigma, seconds)
        for seconds in times
        for sigma in SIGMAS
    ]
    _, sigma, seconds = max(candidates)
    return sigma, seconds


def _covariance(timing_round: NDArray[np.float64], sigma: float, seconds: float) -> NDArray[np.float64]:
    lags = np.abs(timing_round[:, 0][:, None] - timing_round[:, 0][None, :])
    covariance: NDArray[np.float64] = sigma * sigma * np.exp(-lags / seconds) + np.diag(
        timing_round[:, 2] + VARIANCE_FLOOR
    )
    return covariance


def _log_likelihood(timing_round: NDArray[np.float64], sigma: float, seconds: float) -> float:
    return _restricted_log_likelihood(
        _covariance(timing_round, sigma, seconds), np.ones((len(timing_round), 1)), timing_round[:, 1]
    )


def _weighted_mean(
    timing_round: NDArray[np.float64], sigma: float, seconds: float
) -> tuple[float, float, float]:
    """The middle of a round (s), its mean and the variance of that."""
    inverse = np.linalg.inv(_covariance(timing_round, sigma, seconds))
    weight = float(inverse.sum())
    return (
        float(timing_round[:, 0].mean()),
        float(inverse.sum(axis=0) @ timing_round[:, 1]) / weight,
        1 / weight,
    )
