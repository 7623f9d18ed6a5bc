"""What is believed of a model before it is measured, learnt from the measured A100 library.

A `Belief` is a normal prior on the parameters of the form and a Gaussian process for what the form misses: on
log t, three Matérn-3/2 kernels (one over the batch, one over batch and size, one over batch, size and
processes; distances in octaves), and noise. Both variances are scaled per model by factors that are fitted
with it; `log_scale_sd` says how much these factors vary.

`WEAK` was chosen by hand, broad enough for any network. `LEARNT` was fitted by benchmarks/curve_accuracy.py, in
two steps: the kernel by a search over steps of √2 for the largest likelihood of the library's rows under `WEAK`'s
parameters, then means and deviations of the parameters over the eleven models by expectation–maximisation. The
script prints them anew beside these, and judges each model by constants fitted without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsplit_core.curves.form import BATCH, COMPUTE, PARAMETERS, PROCESSES, Array


@dataclass(frozen=True, slots=True)
class Kernel:
    """Deviations on log t and reaches in octaves (factors of two)."""

    noise: float
    batch: float
    size: float
    processes: float
    batch_octaves: float
    size_octaves: float
    processes_octaves: float
    log_scale_sd: float

    @property
    def variance(self) -> float:
        """Variance of the three parts together, without noise."""
        return self.batch**2 + self.size**2 + self.processes**2

    def covariance(self, left: Array, right: Array) -> Array:
        """(n, k) covariance of what the form misses, between points (n, 4) and (k, 4)."""
        batch = _matern(_octaves(left, right, BATCH) / self.batch_octaves)
        size = _matern(_octaves(left, right, COMPUTE) / self.size_octaves)
        processes = _matern(_octaves(left, right, PROCESSES) / self.processes_octaves)
        found: Array = batch * (self.batch**2 + size * (self.size**2 + self.processes**2 * processes))
        return found


@dataclass(frozen=True, slots=True)
class Belief:
    """Kernel, and mean and deviation of each parameter in the order of `PARAMETERS`.

    The mean of `log_c` is not used: the fit centres it on the data, so that no unit of time is preferred.
    """

    kernel: Kernel
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __post_init__(self) -> None:
        assert len(self.mean) == len(self.deviation) == len(PARAMETERS)


def _octaves(left: Array, right: Array, column: int) -> Array:
    found: Array = np.abs(np.log2(left[:, column])[:, None] - np.log2(right[:, column]))
    return found


def _matern(distance: Array) -> Array:
    scaled = np.sqrt(3.0) * distance
    found: Array = (1.0 + scaled) * np.exp(-scaled)
    return found


_KERNEL = Kernel(
    noise=0.012,
    batch=0.03,
    size=0.03,
    processes=0.02,
    batch_octaves=1.5,
    size_octaves=1.5,
    processes_octaves=1.5,
    log_scale_sd=1.2,
)

WEAK = Belief(
    _KERNEL,
    mean=(1.0, 0.0, 0.0, -3.0, -0.5, -1.0, 1.8, 0.6, 1.0, 0.05, 0.5),
    deviation=(1.5, 4.0, 1.2, 1.5, 1.0, 1.0, 0.8, 0.5, 0.1, 0.1, 0.5),
)

LEARNT = Belief(
    _KERNEL,
    mean=(0.9, 0.0, -0.1, -3.0, -0.6, -1.0, 1.8, 0.8, 1.02, 0.03, 0.3),
    deviation=(1.2, 4.0, 0.9, 1.4, 0.8, 1.0, 0.8, 0.45, 0.06, 0.05, 0.5),
)
