"""The parametric form: the time of one batch on a slice shared by some processes.

    t = (A^p + U^p)^(1/p)
    A = a · P^η                                                  launching, which does not depend on the slice
    U = s·b·P^ε + w·P^γ·R(ω) + c·b·P^δ·R(β)                      the work on the slice
    R(x) = (1 − x)/g + x/m                                       a share x is bound by memory bandwidth

b: batch size; P: processes on the slice; g: compute, in slices; m: memory bandwidth, in eighths of the GPU's.
With p → ∞ and one slice this is max(a, w + c·b); with p = 4 and β = ω = 0 it is the slice curve
(a^4 + (s·b + (w + c·b)/g)^4)^(1/4). The memory share separates 3g from 4g, which have the same four memory
slots of an A100 (NVIDIA MIG User Guide), and explains why 3g is faster than three times 1g.

Several processes launch concurrently (η near 0) and share the slice (δ near 1); the fixed part w, work that
does not fill the slice, overlaps (γ between 0 and 1), and so does work that no slice speeds up (ε).
Everything is fitted on log t, so a change of the unit of time changes only `log_c`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

PARAMETERS = (
    "log_a_over_c",
    "log_c",
    "log_w_over_c",
    "log_s_over_c",
    "logit_beta",
    "logit_omega",
    "log_p_minus_1",
    "gamma",
    "delta",
    "eta",
    "epsilon",
)
SCALE = PARAMETERS.index("log_c")
"""Index of the parameter that depends on the unit of time."""

COMPUTE, MEMORY, BATCH, PROCESSES = range(4)
"""Columns of a table of points: compute slices, memory eighths, batch size, processes; all above 0."""

_STEP = 1e-4


def log_time(parameters: Array, points: Array) -> Array:
    """log t of each point (n, 4), in the unit of the parameters' `log_c`; parameters (…, 11) give (…, n)."""
    compute, memory, batch, processes = points.T
    log_a, log_c, log_w, log_s, beta, omega, log_p, gamma, delta, eta, epsilon = np.moveaxis(
        np.asarray(parameters)[..., None], -2, 0
    )
    log_processes = np.log(processes)
    log_batch = np.log(batch)
    log_work = np.logaddexp(
        np.logaddexp(
            log_s + log_batch + epsilon * log_processes,
            log_w + gamma * log_processes + _log_rate(omega, compute, memory),
        ),
        log_batch + delta * log_processes + _log_rate(beta, compute, memory),
    )
    log_floor = log_a + eta * log_processes
    power = 1.0 + np.exp(log_p)
    log_times: Array = log_c + np.logaddexp(power * log_floor, power * log_work) / power
    return log_times


def sensitivities(parameters: Array, points: Array) -> Array:
    """Derivatives of log t with respect to the parameters, (n, 11), by central differences in one evaluation."""
    steps = np.eye(len(PARAMETERS)) * _STEP
    both = log_time(np.concatenate([parameters + steps, parameters - steps]), points)
    ahead, behind = np.split(both, 2)
    derivatives: Array = ((ahead - behind) / (2 * _STEP)).T
    return derivatives


def _log_rate(logit_share: Array, compute: Array, memory: Array) -> Array:
    """log((1 − x)/g + x/m) with x = 1/(1 + exp(−logit))."""
    log_rate: Array = np.logaddexp(
        -np.logaddexp(0.0, logit_share) - np.log(compute),
        -np.logaddexp(0.0, -logit_share) - np.log(memory),
    )
    return log_rate
