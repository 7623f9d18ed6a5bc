"""The posterior of one fitted model: predictions, intervals, leave-one-out, likelihood.

The form is linearised at its fitted parameters, so everything is normal given the two variance scales. Because the
scales are uncertain, intervals are those of a Student t with 2 / Var(log v) degrees of freedom, where v is the
predicted variance (Satterthwaite's rule, with the delta method from the scales' posterior to v).

Source of the formulas: Rasmussen & Williams, Gaussian Processes for Machine Learning (2006), sections 2.7 and
5.4.2 (leave-one-out in closed form).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from torchsplit_core.curves.prior import Prior
from torchsplit_core.curves.time_model import Array, log_time, sensitivities

COVERAGE = 0.9
"""Share of new measurements that an interval should contain."""

NOISE_DEGREES_OF_FREEDOM = 4.0
"""Degrees of freedom of the noise's t: occasionally a measurement is off by many times the usual error."""

_UPPER = (1 + COVERAGE) / 2

NOISE_TAIL = float((stdtrit(NOISE_DEGREES_OF_FREEDOM, _UPPER) / stdtrit(np.inf, _UPPER)) ** 2)
"""A normal distribution with this factor times the noise's variance has the noise's 90 % interval."""

MIN_DEGREES_OF_FREEDOM = 3.0
"""Least degrees of freedom of the intervals' t, however few the points."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Median of log t at each point, and half-width of the 90 % interval of a new measurement."""

    median: Array
    half_width: Array


@dataclass(frozen=True, eq=False, slots=True)
class Posterior:
    """A fitted model of n points.

    `centre`: prior mean of the parameters. `scales`: logarithms of the two variance scales. `noise` (n,):
    noise variance of each point, large if its weight is small. `residual` (n,): log t minus the prior mean
    of the linearised form. `inverse` (n, n): inverse of the points' covariance, which includes the form's
    uncertainty. `weighted_residual` (n,): inverse · residual.
    """

    prior: Prior
    points: Array
    parameters: Array
    centre: Array
    scales: Array
    noise: Array
    weights: Array
    slopes: Array
    residual: Array
    inverse: Array
    weighted_residual: Array

    @property
    def new_noise(self) -> float:
        """Variance of the normal distribution that has the 90 % interval of a new measurement's noise."""
        return float(np.exp(self.scales[1])) * self.prior.kernel.noise**2 * NOISE_TAIL

    def process_covariance(self, left: Array, right: Array) -> Array:
        """Prior covariance of the Gaussian process, the part that the form misses."""
        covariance: Array = np.exp(self.scales[0]) * self.prior.kernel.covariance(left, right)
        return covariance

    def scale_information(self) -> tuple[Array, Array]:
        """Gradient (2,) and Fisher information (2, 2) of the log posterior with respect to the log scales."""
        process = self.process_covariance(self.points, self.points)
        through = self.inverse @ process
        diagonal = np.diag(self.inverse)
        gradient = np.array(
            [
                self.weighted_residual @ process @ self.weighted_residual - np.trace(through),
                np.sum(self.weighted_residual**2 * self.noise) - np.sum(diagonal * self.noise),
            ]
        )
        mixed = np.einsum("ij,ji,i->", through, self.inverse, self.noise)
        information = np.array(
            [
                [np.sum(through * through.T), mixed],
                [mixed, np.sum(self.inverse**2 * np.outer(self.noise, self.noise))],
            ]
        )
        certainty = 1 / self.prior.kernel.log_scale_sd**2
        return gradient / 2 - self.scales * certainty, information / 2 + np.eye(2) * certainty

    def predict(self, points: Array) -> Prediction:
        """Predict a new measurement at each of the points (k, 4)."""
        median, variance, degrees_of_freedom = self._moments(points)
        return Prediction(median, np.sqrt(variance) * stdtrit(degrees_of_freedom, _UPPER))

    def leave_one_out(self, log_times: Array) -> Prediction:
        """Predict each point from all others, with the parameters and scales fitted to all points."""
        variance = 1 / np.diag(self.inverse)
        fresh = variance - self.noise + self.new_noise
        _, _, degrees_of_freedom = self._moments(self.points)
        return Prediction(
            log_times - self.weighted_residual * variance,
            np.sqrt(fresh) * stdtrit(degrees_of_freedom, _UPPER),
        )

    def covariance(self, points: Array) -> Array:
        """Posterior covariance (k, k) of log t without noise."""
        slopes = sensitivities(self.parameters, points)
        spread = np.square(self.prior.deviation)
        across = self.process_covariance(points, self.points) + (slopes * spread) @ self.slopes.T
        covariance: Array = (
            self.process_covariance(points, points)
            + (slopes * spread) @ slopes.T
            - across @ self.inverse @ across.T
        )
        return covariance

    def log_likelihood(self) -> float:
        """Log likelihood of the data up to a constant, with the scales' prior and posterior widths (Laplace)."""
        _, determinant = np.linalg.slogdet(self.inverse)
        _, information = self.scale_information()
        width = float(self.prior.kernel.log_scale_sd)
        return float(
            (determinant - self.residual @ self.weighted_residual) / 2
            - np.sum((self.scales / width) ** 2) / 2
            - np.linalg.slogdet(information)[1] / 2
            - 2 * np.log(width)
            + NOISE_DEGREES_OF_FREEDOM / 2 * np.sum(np.log(self.weights) - self.weights + 1)
        )

    def _moments(self, points: Array) -> tuple[Array, Array, Array]:
        """Median, variance and degrees of freedom of a new measurement of log t at points (k, 4)."""
        slopes = sensitivities(self.parameters, points)
        spread = np.square(self.prior.deviation)
        process = self.process_covariance(points, self.points)
        across = process + (slopes * spread) @ self.slopes.T
        gain = across @ self.inverse
        median = (
            log_time(self.parameters, points)
            + slopes @ (self.centre - self.parameters)
            + across @ self.weighted_residual
        )
        prior_variance = float(np.exp(self.scales[0])) * self.prior.kernel.variance
        known = prior_variance + slopes**2 @ spread - np.einsum("ij,ij->i", gain, across)
        variance = np.maximum(known, 0.0) + self.new_noise
        among = gain @ self.process_covariance(self.points, self.points)
        by_process = (
            prior_variance - 2 * np.einsum("ij,ij->i", gain, process) + np.einsum("ij,ij->i", among, gain)
        )
        by_noise = self.new_noise + gain**2 @ self.noise
        shares = np.stack([by_process, by_noise], axis=1) / variance[:, None]
        _, information = self.scale_information()
        of_log_variance = np.einsum("ij,jk,ik->i", shares, np.linalg.inv(information), shares)
        return median, variance, np.maximum(2 / np.maximum(of_log_variance, 1e-9), MIN_DEGREES_OF_FREEDOM)


def half_width_of_noise(posterior: Posterior) -> float:
    """Half-width of the 90 % interval of one measurement's noise, on log t."""
    return float(np.sqrt(posterior.new_noise) * stdtrit(np.inf, _UPPER))
