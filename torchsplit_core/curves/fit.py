"""Fit the form and a Gaussian process for what it misses to one model's points, robust against outliers.

log t(x) = form(θ, x) + z(x) + e:  θ has a normal prior, z is a Gaussian process, e is noise with the tails of a
Student t of four degrees of freedom, by the expectation–maximisation weights of its normal scale mixture. One
iteration: Gauss–Newton steps with Levenberg's damping on θ; the form linearised there; a Fisher-scoring step of the
two variance scales (of z and of e, each with a log-normal prior) on the marginal likelihood; new weights. Exact
data drive both scales down until only the form is left; few or contradictory points leave them wide.

Source of the formulas: Rasmussen & Williams, Gaussian Processes for Machine Learning (2006), sections 2.7 (a
parametric mean with a prior), 5.4.1 (gradient of the marginal likelihood).
"""

from __future__ import annotations

import numpy as np

from torchsplit_core.curves.posterior import NOISE_DEGREES_OF_FREEDOM, Posterior
from torchsplit_core.curves.prior import Prior
from torchsplit_core.curves.time_model import SCALE, Array, log_time, sensitivities

_MAX_ITERATIONS = 30
_TOLERANCE = 0.02
_LONGEST_STEP = 1.5
_LOG_SCALES = (-9.0, 25.0)
"""Bounds of the log scales. Exact data reach the lower one, which keeps the covariance well conditioned."""

_GAIN_TO_STOP = 1e-5


def fit_points(points: Array, log_times: Array, repeats: Array, prior: Prior) -> Posterior:
    """Fit points (n, 4; columns as in `time_model`) with log t (n,), each the median of `repeats` (n,) measurements.

    n is at least 1; the work grows with n³.
    """
    problem = _FitProblem(points, log_times, repeats, prior)
    scales, weights = np.zeros(2), np.ones(len(points))
    parameters = problem.initial_parameters()
    for _ in range(_MAX_ITERATIONS):
        noise = problem.noise(scales, weights)
        parameters, _ = problem.descend(parameters, problem.covariance(scales, noise), steps=4)
        posterior = problem.linearise(parameters, scales, noise, weights)
        gradient, information = posterior.scale_information()
        step = np.clip(np.linalg.solve(information, gradient), -1.0, 1.0)
        new_weights = problem.new_weights(posterior)
        if max(np.abs(step).max(), np.abs(new_weights - weights).max()) < _TOLERANCE:
            break
        scales = np.clip(scales + step, *_LOG_SCALES)
        weights = new_weights
    return posterior


class _FitProblem:
    """The data of one fit and the steps on them."""

    def __init__(self, points: Array, log_times: Array, repeats: Array, prior: Prior) -> None:
        self.points, self.log_times, self.repeats, self.prior = points, log_times, repeats, prior
        self.kernel_matrix = prior.kernel.covariance(points, points)
        self.spread = np.square(prior.deviation)
        self.centre = np.array(prior.mean)
        self.centre[SCALE] = 0.0
        top = int(np.argmax(log_times))
        self.centre[SCALE] = log_times[top] - float(log_time(self.centre, points[top : top + 1])[0])

    def noise(self, scales: Array, weights: Array) -> Array:
        """Variance of each point's noise."""
        variance: Array = np.exp(scales[1]) * self.prior.kernel.noise**2 / (weights * self.repeats)
        return variance

    def covariance(self, scales: Array, noise: Array) -> Array:
        """Covariance of the data around the form."""
        covariance: Array = np.exp(scales[0]) * self.kernel_matrix + np.diag(noise)
        return covariance

    def initial_parameters(self) -> Array:
        """The better result of two starts: with the shortest time as the floor, and with a low floor."""
        low = self.centre.copy()
        low[0] -= 1.0
        floor = self.centre.copy()
        floor[0] = np.clip(self.log_times.min() - self.centre[SCALE], -2.0, 6.0)
        wide = np.ones(2)
        covariance = self.covariance(wide, self.noise(wide, np.ones(len(self.points))))
        ends = [self.descend(start, covariance, steps=12) for start in (floor, low)]
        return min(ends, key=lambda end: end[1])[0]

    def descend(self, parameters: Array, covariance: Array, steps: int) -> tuple[Array, float]:
        """Gauss–Newton towards the largest posterior; returns the final parameters and minus log posterior."""
        inverse = np.linalg.inv(covariance)

        def misfit(candidate: Array) -> float:
            residual = self.log_times - log_time(candidate, self.points)
            return (
                float(residual @ inverse @ residual + np.sum((candidate - self.centre) ** 2 / self.spread))
                / 2
            )

        damping, now = 1e-3, misfit(parameters)
        for _ in range(steps):
            slopes = sensitivities(parameters, self.points)
            residual = self.log_times - log_time(parameters, self.points)
            curvature = slopes.T @ inverse @ slopes + np.diag(1 / self.spread)
            gradient = slopes.T @ (inverse @ residual) - (parameters - self.centre) / self.spread
            for _ in range(8):
                damped = curvature + damping * np.diag(np.diag(curvature))
                step = np.clip(np.linalg.solve(damped, gradient), -_LONGEST_STEP, _LONGEST_STEP)
                after = misfit(parameters + step)
                if after <= now:
                    break
                damping = max(damping, 1e-6) * 5
            else:
                return parameters, now
            parameters, gain, now = parameters + step, now - after, after
            damping /= 5
            if gain < _GAIN_TO_STOP:
                break
        return parameters, now

    def linearise(self, parameters: Array, scales: Array, noise: Array, weights: Array) -> Posterior:
        """The posterior, with the form linearised at `parameters`."""
        slopes = sensitivities(parameters, self.points)
        marginal = self.covariance(scales, noise) + (slopes * self.spread) @ slopes.T
        inverse: Array = np.linalg.inv(marginal).astype(np.float64)
        residual = self.log_times - log_time(parameters, self.points) - slopes @ (self.centre - parameters)
        return Posterior(
            prior=self.prior,
            points=self.points,
            parameters=parameters,
            centre=self.centre,
            scales=scales,
            noise=noise,
            weights=weights,
            slopes=slopes,
            residual=residual,
            inverse=inverse,
            weighted_residual=inverse @ residual,
        )

    def new_weights(self, posterior: Posterior) -> Array:
        """Expected precisions of the noise's normal mixture, given each point's distance from the fit."""
        usual = np.exp(posterior.scales[1]) * self.prior.kernel.noise**2 / self.repeats
        noise = posterior.noise
        squared = (noise * posterior.weighted_residual) ** 2 + noise - noise**2 * np.diag(posterior.inverse)
        weights: Array = (NOISE_DEGREES_OF_FREEDOM + 1) / (NOISE_DEGREES_OF_FREEDOM + squared / usual)
        return weights
