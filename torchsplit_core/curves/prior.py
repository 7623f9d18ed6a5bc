"""The prior of a model before it is measured, learnt from the measured A100 library.

A `Prior` is a normal prior on the parameters of the form and a Gaussian process for what the form misses: on
log t, two Matérn-3/2 kernels (one over the batch alone, one over batch, size and processes; distances in
octaves), and noise. Both variances are scaled by factors fitted per model; `log_scale_sd` is the standard deviation of
their logarithms.

`WEAK_PRIOR` was chosen by hand, broad enough for any network. `LEARNT_PRIOR` was fitted by
benchmarks/curve_accuracy.py, in two steps: noise, amplitudes and the length scale over batches by a search in steps of
√2 for the largest likelihood of the library's rows under `WEAK_PRIOR`'s parameters (the length scales over sizes and
processes were chosen by hand, for intervals with the right coverage there); then means and deviations of s/c, β, γ, δ
and η over the eleven models by expectation–maximisation. The other parameters keep `WEAK_PRIOR`'s values, because
eleven models are too few to learn them. The script prints the fitted constants beside these, and tests each model with
constants fitted without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsplit_core.curves.time_model import BATCH, COMPUTE, PARAMETERS, PROCESSES, Array


@dataclass(frozen=True, slots=True)
class CovarianceKernel:
    """Standard deviations on log t and length scales in octaves (factors of two)."""

    noise: float
    batch: float
    row: float
    batch_octaves: float
    size_octaves: float
    processes_octaves: float
    log_scale_sd: float

    @property
    def variance(self) -> float:
        """Variance of the sum of both kernels, without noise."""
        return self.batch**2 + self.row**2

    def covariance(self, left: Array, right: Array) -> Array:
        """Covariance (n, k) of what the form misses, between points (n, 4) and (k, 4)."""
        batch = _matern(_octave_distance(left, right, BATCH) / self.batch_octaves)
        size = _matern(_octave_distance(left, right, COMPUTE) / self.size_octaves)
        processes = _matern(_octave_distance(left, right, PROCESSES) / self.processes_octaves)
        covariance: Array = batch * (self.batch**2 + self.row**2 * size * processes)
        return covariance


@dataclass(frozen=True, slots=True)
class Prior:
    """Kernel, and mean and standard deviation of each parameter in the order of `PARAMETERS`.

    The mean of `log_c` is not used: the fit centres it on the data, so that the unit of time has no effect.
    """

    kernel: CovarianceKernel
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __post_init__(self) -> None:
        assert len(self.mean) == len(self.deviation) == len(PARAMETERS)


def _octave_distance(left: Array, right: Array, column: int) -> Array:
    octaves: Array = np.abs(np.log2(left[:, column])[:, None] - np.log2(right[:, column]))
    return octaves


def _matern(distance: Array) -> Array:
    scaled = np.sqrt(3.0) * distance
    correlation: Array = (1.0 + scaled) * np.exp(-scaled)
    return correlation


_KERNEL = CovarianceKernel(
    noise=0.016,
    batch=0.036,
    row=0.054,
    batch_octaves=2.8,
    size_octaves=2.4,
    processes_octaves=4.0,
    log_scale_sd=0.99,
)

WEAK_PRIOR = Prior(
    _KERNEL,
    mean=(1.0, 0.0, 0.0, -3.0, -0.5, -1.0, 1.8, 0.6, 1.0, 0.05, 0.4),
    deviation=(1.2, 4.0, 1.0, 1.5, 1.0, 1.0, 0.8, 0.5, 0.05, 0.05, 0.3),
)

LEARNT_PRIOR = Prior(
    _KERNEL,
    mean=(1.0, 0.0, 0.0, -2.96, -0.57, -1.0, 1.8, 0.83, 1.02, 0.027, 0.4),
    deviation=(1.2, 4.0, 1.0, 0.98, 0.64, 1.0, 0.8, 0.46, 0.032, 0.031, 0.3),
)
