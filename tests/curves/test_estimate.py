"""Estimates: shapes recovered, measured rows kept, out-of-memory rules, faults."""

import math
import subprocess
import sys

import pytest

from torchsplit_core.curves import Query, Sample, estimate, fit_model
from torchsplit_core.values import InputFault

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def batch_curve(batch: float, floor: float = 5.0, fixed: float = 1.0, each: float = 0.4) -> float:
    """max(a, w + c·b) in ms."""
    return max(floor, fixed + each * batch)


def slice_curve(size: float, batch: float) -> float:
    """(a^4 + (s·b + (w + c·b)/g)^4)^(1/4) in ms."""
    return float((5.0**4 + (0.05 * batch + (2.0 + 1.5 * batch) / size) ** 4) ** 0.25)


def sample(
    size: float, batch: int, time_ms: float, processes: int = 1, latency: float | None = None
) -> Sample:
    return Sample("net", size, batch, processes, 1000.0 * processes * batch / time_ms, latency)


@pytest.mark.parametrize("left_out", [2, 4, 16, 64, 128])
def test_an_exact_batch_curve_is_recovered(left_out):
    rows = [sample(7, batch, batch_curve(batch)) for batch in BATCHES if batch != left_out]
    (found,) = estimate(rows, [Query("net", 7, left_out)])
    truth = 1000.0 * left_out / batch_curve(left_out)
    assert found.throughput_rps == pytest.approx(truth, rel=0.03)
    assert found.low_rps <= truth <= found.high_rps
    assert found.basis == "estimated"


def test_an_exact_slice_curve_is_recovered():
    rows = [sample(size, batch, slice_curve(size, batch)) for size in (1, 3, 7) for batch in BATCHES]
    queries = [Query("net", size, batch) for size in (2, 4) for batch in BATCHES]
    for query, found in zip(queries, estimate(rows, queries), strict=True):
        truth = 1000.0 * query.batch_size / slice_curve(query.size, query.batch_size)
        assert found.throughput_rps == pytest.approx(truth, rel=0.015)
        assert 0.995 * found.low_rps <= truth <= 1.005 * found.high_rps
        assert found.high_rps / found.low_rps < 1.1


def test_the_unit_of_time_changes_nothing():
    rows = [sample(1, batch, slice_curve(1, batch)) for batch in BATCHES]
    slow = [sample(1, batch, 1e6 * slice_curve(1, batch)) for batch in BATCHES]
    queries = [Query("net", 7, batch) for batch in BATCHES]
    for fast_one, slow_one in zip(estimate(rows, queries), estimate(slow, queries), strict=True):
        assert slow_one.throughput_rps * 1e6 == pytest.approx(fast_one.throughput_rps, rel=1e-4)


def test_a_measured_row_keeps_its_own_value():
    rows = [sample(1, batch, 1.1 * slice_curve(1, batch), latency=7.0) for batch in BATCHES]
    (found,) = estimate(rows, [Query("net", 1, 16)])
    assert found.basis == "measured"
    assert found.throughput_rps == rows[4].throughput_rps
    assert found.latency_ms == 7.0
    assert found.low_rps < found.throughput_rps < found.high_rps


def test_latencies_that_lie_above_the_batch_time_scale_the_estimate():
    rows = [sample(1, batch, slice_curve(1, batch), latency=1.3 * slice_curve(1, batch)) for batch in BATCHES]
    (found,) = estimate(rows[:5] + rows[6:], [Query("net", 1, 32)])
    assert found.latency_ms == pytest.approx(1.3 * slice_curve(1, 32), rel=0.02)


@pytest.mark.parametrize(("query", "ruled_out"), [
    (Query("net", 1, 64), True), (Query("net", 1, 32, 2), True), (Query("net", 1, 16), False),
    (Query("net", 2, 64), False), (Query("net", 0.5, 32), True),
])  # fmt: skip
def test_out_of_memory_rows_rule_out_what_needs_more(query, ruled_out):
    rows = [sample(1, batch, slice_curve(1, batch)) for batch in (1, 2, 4, 8)]
    rows.append(Sample("net", 1, 32, 1, 0.0, 0.0))
    (found,) = estimate(rows, [query])
    if ruled_out:
        assert (found.throughput_rps, found.low_rps, found.high_rps) == (0.0, 0.0, 0.0)
        assert (found.basis, found.latency_ms) == ("out_of_memory", None)
    else:
        assert found.basis == "estimated"
        assert found.throughput_rps > 0


def test_more_contradictory_points_make_wider_intervals():
    clean = [sample(1, batch, slice_curve(1, batch)) for batch in BATCHES]
    noisy = [
        sample(1, batch, slice_curve(1, batch) * math.exp(0.2 * (-1) ** place))
        for place, batch in enumerate(BATCHES)
    ]
    query = [Query("net", 1, 24)]
    widths = [
        found.high_rps / found.low_rps
        for rows in (clean, noisy, clean[:2])
        for found in estimate(rows, query)
    ]
    assert widths[0] < 1.1
    assert widths[1] > 1.5
    assert widths[2] > 1.5


def test_sms_and_memory_shares_are_sizes_too():
    rows = [sample(14.0 * size, batch, slice_curve(size, batch)) for size in (1, 7) for batch in BATCHES]
    queries = [Query("net", 28.0, 32, memory_share=0.25), Query("net", 56.0, 32, memory_share=0.5)]
    for query, found in zip(queries, estimate(rows, queries), strict=True):
        truth = 32000.0 / slice_curve(query.size / 14, 32)
        assert found.throughput_rps == pytest.approx(truth, rel=0.05)


def test_times_along_a_curve_grow():
    curves = fit_model(
        [sample(size, batch, slice_curve(size, batch)) for size in (1, 7) for batch in BATCHES]
    )
    band = curves.band(3, BATCHES)
    assert list(band.time_ms) == sorted(band.time_ms)
    assert all(
        low < middle < high for low, middle, high in zip(band.low_ms, band.time_ms, band.high_ms, strict=True)
    )
    assert curves.time_ms(7, 256) < curves.time_ms(4, 256) < curves.time_ms(1, 256)
    assert curves.leave_one_out().median < 0.02


@pytest.mark.parametrize(("rows", "queries", "said"), [
    ([sample(1, 1, 5.0)], [Query("other", 1, 1)], "net"),
    ([sample(1, 1, 5.0)], [Query("net", 0, 1)], "size"),
    ([sample(1, 1, 5.0)], [Query("net", 1, 0)], "batch"),
    ([sample(1, 1, 5.0)], [Query("net", 1, 1, 0)], "process"),
    ([sample(1, 1, 5.0)], [Query("net", 1, 1, 1, 1.5)], "memory_share"),
    ([Sample("net", 1, 1, 1, math.nan)], [Query("net", 1, 1)], "throughput"),
    ([Sample("net", 1, 1, 1, 0.0)], [Query("net", 1, 1)], "ran"),
    ([Sample("net", 1, 1, 1, 5.0, -1.0)], [Query("net", 1, 1)], "latency"),
])  # fmt: skip
def test_faults_say_what_is_wrong(rows, queries, said):
    with pytest.raises(InputFault, match=said):
        estimate(rows, queries)


def test_no_queries_no_answers():
    assert estimate([], []) == ()


@pytest.mark.slow
def test_the_room_loads_neither_torch_nor_a_solver():
    program = (
        "import sys, torchsplit_core.curves; sys.exit(bool({'torch', 'pyomo', 'highspy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
