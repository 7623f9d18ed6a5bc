"""Whatever rows come in, answers are finite, ordered and never negative."""

import math

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from torchsplit_core.curves import Estimate, Query, Sample, advice, estimate, fit_data, outliers

pytestmark = pytest.mark.slow

SAMPLES = st.lists(
    st.builds(
        Sample,
        model=st.sampled_from(["a", "b"]),
        size=st.sampled_from([0.5, 1, 2, 3, 4, 7, 14, 132]),
        batch_size=st.sampled_from([1, 2, 3, 7, 8, 64, 10**6]),
        processes=st.integers(1, 48),
        throughput_rps=st.one_of(
            st.floats(1e-3, 1e6), st.sampled_from([1e-300, 5e-324, 1e300, 1.7e308, 100.0])
        ),
        latency_ms=st.one_of(st.none(), st.floats(0, 1e9)),
        memory_share=st.one_of(st.none(), st.sampled_from([1e-6, 0.125, 1.0])),
    ),
    min_size=1,
    max_size=8,
)
QUERIES = [
    Query("a", size, batch, processes)
    for size in (1e-3, 1, 3, 200)
    for batch in (1, 100, 10**9)
    for processes in (1, 7)
]


def sound(found: Estimate) -> bool:
    numbers = (found.low_rps, found.throughput_rps, found.high_rps)
    return (
        all(math.isfinite(number) and number >= 0 for number in numbers)
        and found.low_rps <= found.throughput_rps <= found.high_rps
        and (found.latency_ms is None or (math.isfinite(found.latency_ms) and found.latency_ms >= 0))
    )


@settings(max_examples=8, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate))
@given(SAMPLES)
@example([Sample("a", 1, 1, 1, 100.0)])
@example([Sample("a", 1, 1, 1, 100.0)] * 5)
@example([Sample("a", 1, 1, 1, 1e-300), Sample("a", 1, 1, 1, 1.7e308)])
@example([Sample("a", 1, 1, 1, 5e-324, 1e9)])
def test_any_positive_rows_give_sound_answers(samples):
    samples = [*samples, Sample("a", 2, 4, 1, 50.0)]
    own = [Query(row.model, row.size, row.batch_size, row.processes) for row in samples]
    estimated = estimate(samples, own + QUERIES)
    assert all(sound(one) for one in estimated)
    assert all(one.basis == "measured" for one in estimated[: len(own)])
    for one in outliers(samples):
        assert math.isfinite(one.deviation)
        assert 0 <= one.low_rps <= one.expected_rps <= one.high_rps < math.inf
    advised = advice([row for row in samples if row.model == "a"], [1, 7])
    assert all(1 <= one.width_after <= one.width_now * (1 + 1e-9) < math.inf for one in advised.uncertainty)


def test_one_row_alone_is_a_wide_guess():
    one = [Sample("a", 1, 8, 1, 100.0)]
    same, other = estimate(one, [Query("a", 1, 8), Query("a", 7, 256)])
    assert same.throughput_rps == 100.0
    assert other.high_rps / other.low_rps > 2
    assert other.throughput_rps > 50


def test_more_rows_than_are_fitted_still_count(monkeypatch):
    monkeypatch.setattr(fit_data, "MAX_FIT_POINTS", 64)
    rows = [
        Sample("a", size, batch, 1, 1000.0 * batch / (5 + batch / size))
        for size in (1, 7)
        for batch in range(1, 81)
    ]
    (found,) = estimate(rows, [Query("a", 4, 100)])
    assert sound(found)
    assert found.high_rps / found.low_rps < 1.5
    assert "size 4" in found.note
    assert "96 of the distinct" in found.note
