"""Instants of arrival: of every kind as many as asked for, at its rate; of a trace only its gaps count."""

from __future__ import annotations

import numpy as np
import pytest

from torchsplit_core.simulation import simulate_one
from torchsplit_core.simulation.arrivals import arrival_times_ms
from torchsplit_core.values import (
    DeterministicArrivals,
    GammaArrivals,
    MmppArrivals,
    PoissonArrivals,
    RateState,
    Server,
    SimulatedModel,
)
from torchsplit_core.values.simulation.request import Arrivals

COUNT = 20_000


@pytest.mark.parametrize("factor", [1.0, 4.0])
@pytest.mark.parametrize(
    ("arrivals", "error"),
    [
        (DeterministicArrivals(50.0), 1e-12),
        (PoissonArrivals(50.0), 0.05),
        (GammaArrivals(50.0, 2.0), 0.1),
        (MmppArrivals((RateState(80.0, 0.1), RateState(20.0, 0.1))), 0.1),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_the_nth_arrival_is_expected_after_n_gaps(arrivals: Arrivals, error: float, factor: float) -> None:
    times_ms = arrival_times_ms(arrivals, COUNT, np.random.default_rng(3), factor)
    assert len(times_ms) == COUNT and times_ms[0] > 0 and (np.diff(times_ms) >= 0).all()
    assert times_ms[-1] == pytest.approx(COUNT / (50.0 * factor) * 1e3, rel=error)


@pytest.mark.parametrize("bits", [62, 63, 64])
def test_a_trace_has_the_same_responses_wherever_it_begins(bits: int) -> None:
    """Instants are whole ticks, so fine for these batches that counted from 1970 they do not fit in 64 bits."""
    model = SimulatedModel("m", ("s",), PoissonArrivals(1.0))
    server = Server("s", "m", "s", 4, {1: 1.2345679, 4: 2.0})
    times_ms = (0, 1, 1, 2, 5, 6, 7, 8, 8, 30)
    begin_ms = 2**bits // 10**7 - 3
    moved = simulate_one(model, [server], [(begin_ms + time) / 1000 for time in times_ms])
    assert moved == pytest.approx(simulate_one(model, [server], [time / 1000 for time in times_ms]), abs=1e-9)
