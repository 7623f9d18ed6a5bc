"""Arrivals as a line of text: what is written is read back, and nonsense is one clear message."""

import pytest

from torchsplit_core.values import (
    DeterministicArrivals,
    GammaArrivals,
    InputFault,
    MmppArrivals,
    PoissonArrivals,
    RateState,
    TraceArrivals,
)
from torchsplit_core.values.simulation.arrivals_text import arrivals_text, parse_arrivals


@pytest.mark.parametrize(("arrivals", "text"), [
    (PoissonArrivals(20.0), "poisson"),
    (PoissonArrivals(30.0), "poisson at 30"),
    (DeterministicArrivals(20.0), "deterministic"),
    (GammaArrivals(20.0, 2.0), "gamma:2"),
    (GammaArrivals(5.0, 0.5), "gamma:0.5 at 5"),
    (MmppArrivals((RateState(10.0, 8.0), RateState(60.0, 2.0))), "mmpp:0.5@8,3@2"),
])  # fmt: skip
def test_what_is_written_is_read_back(arrivals, text):
    assert arrivals_text(arrivals, 20.0) == text
    assert parse_arrivals(text, 20.0, "there") == arrivals


def test_nothing_is_an_empty_text_and_a_trace_is_counted():
    assert arrivals_text(None, 20.0) == ""
    assert arrivals_text(TraceArrivals((0.0, 1.0, 1.0)), 20.0) == "trace of 3"


@pytest.mark.parametrize(
    "text",
    ["", "gauss", "gamma", "gamma:x", "poisson:3", "mmpp:1@", "mmpp:2", "poisson at fast", "trace of 3"],
)
def test_what_names_no_kind_is_refused(text):
    with pytest.raises(InputFault, match=r"there: .*gamma:CV"):
        parse_arrivals(text, 20.0, "there")
