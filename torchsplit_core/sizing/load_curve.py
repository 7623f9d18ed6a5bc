"""TTFT and TPOT of one engine over the rate of its requests."""

from __future__ import annotations

import math

from torchsplit_core.simulation.continuous.engine_model import prepare_engine_model
from torchsplit_core.simulation.continuous.largest_rate import LoadedEngines, closed_form, loaded_engines
from torchsplit_core.sizing.engine_row import SizingRow, request_count, simulation_request
from torchsplit_core.sizing.request import SizingRequest

SHARES = (0.05, 0.2, 0.4, 0.6, 0.75, 0.87, 0.95, 1.0)
"""Of the largest rate of the curve."""
BEYOND = 1.25
"""How far it goes beyond the rate within the limits, if the engine completes so many requests."""


def load_curve(request: SizingRequest, row: SizingRow) -> tuple[LoadedEngines, ...]:
    """The engine of a simulated row at rising rates, to somewhat beyond its largest; no point above its capacity."""
    assert row.engine is not None
    simulation = simulation_request(request, row.engine, 1.0, 1)
    full = closed_form(prepare_engine_model(simulation, 0)).within(None, None)
    assert full is not None
    simulation = simulation_request(request, row.engine, 1.0, request_count(request, full.sequences))
    last = min(BEYOND * row.rate_rps if row.rate_rps else full.rate_rps, full.rate_rps)
    points = (loaded_engines(simulation, share * last, request.limits.percentile) for share in SHARES)
    return tuple(point for point in points if not math.isinf(point.ttft_ms))
