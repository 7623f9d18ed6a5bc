"""TTFT and TPOT of one engine over the rate of its requests."""

from __future__ import annotations

import math

from torchsplit_core.simulation.continuous.largest_rate import LoadedEngine, TokenLimits, loaded_engine
from torchsplit_core.simulation.continuous.steady_state import ClosedForm
from torchsplit_core.sizing.engine_row import REQUESTS_A_SEQUENCE, SizingRow, request_draws
from torchsplit_core.sizing.request import SizingRequest

SHARES = (0.05, 0.2, 0.4, 0.6, 0.75, 0.87, 0.95, 1.0)
"""Of the largest rate of the curve."""
BEYOND = 1.25
"""How far it goes beyond the rate within the limits, if the engine completes so many requests."""


def load_curve(request: SizingRequest, row: SizingRow) -> tuple[LoadedEngine, ...]:
    """The engine of a simulated row at rising rates, up to somewhat beyond its largest; no point above its capacity."""
    assert row.engine is not None
    draws = request_draws(request)
    full = ClosedForm(row.engine, draws.lengths).within(None, None)
    assert full is not None
    draws = request_draws(request, math.ceil(REQUESTS_A_SEQUENCE * full.sequences))
    last = min(BEYOND * row.rate_rps if row.rate_rps else full.rate_rps, full.rate_rps)
    limits = TokenLimits(percentile=request.limits.percentile)
    points = (loaded_engine(row.engine, draws, limits, share * last) for share in SHARES)
    return tuple(point for point in points if not math.isinf(point.ttft_ms))
