"""Demand samples drawn around the demands of a request: lognormal, tied by a Gaussian copula."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from torchsplit_core.planning.request.demand_windows import MOST_SAMPLES
from torchsplit_core.values import InputFault, PlanRequest
from torchsplit_core.values.limits import check_number, check_whole

MOST_CV = 10.0
"""Of a larger coefficient of variation nearly all samples are nearly 0."""


def drawn_samples(
    request: PlanRequest, count: int, correlation: float, cv: float, seed: int = 0
) -> PlanRequest:
    """The request with `count` samples drawn for every model: of mean `demand_rps` and coefficient of variation `cv`.

    Each sample is exp(s·g − s²/2) times the mean, s² = ln(1 + cv²), and the g of two models are normal with this
    correlation. Equal arguments give equal samples. Raises InputFault for a correlation that so many models cannot have
    pair by pair.
    """
    models = len(request.models)
    check_whole("--draw", count, least=1, most=MOST_SAMPLES)
    check_number("--correlation", correlation, signed=True)
    check_number("--cv", cv)
    if cv > MOST_CV:
        raise InputFault(
            "--cv", f"is {cv:g}, above {MOST_CV:g}", "Give the standard deviation over the mean."
        )
    least = -1.0 / (models - 1) if models > 1 else -1.0
    if not least <= correlation <= 1:
        raise InputFault(
            "--correlation",
            f"is {correlation:g}, and {models} models can be correlated pair by pair from {least:.4g} to 1",
            "Give a figure in that range.",
        )
    generator = np.random.default_rng(seed)
    matrix = np.full((models, models), correlation)
    np.fill_diagonal(matrix, 1.0)
    values, vectors = np.linalg.eigh(matrix)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    spread = float(np.sqrt(np.log1p(cv * cv)))
    factors = np.exp(spread * (generator.standard_normal((count, models)) @ root.T) - spread * spread / 2)
    return replace(
        request,
        models=tuple(
            replace(
                model,
                demand_samples=tuple(
                    float(f"{model.demand_rps * factor:.6g}") for factor in factors[:, number].tolist()
                ),
            )
            for number, model in enumerate(request.models)
        ),
    )
