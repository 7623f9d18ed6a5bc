"""Whatever text comes: profiles or one InputFault, never anything else."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchsplit_core.files import read_text, write_text
from torchsplit_core.tables import decode, read_any, read_profile_csv, write_profile_csv
from torchsplit_core.tables.estimated_table import estimate_table
from torchsplit_core.values import InputFault, ProfileRow

pytestmark = pytest.mark.slow

HEADERS = [
    "model,compute_slices,batch_size,processes,throughput_rps,latency_ms",
    "model;mig;bs;qps;latency;memory_gib",
    "Model,Batch,Concurrency,Instance Group,Throughput (infer/sec),p95 Latency (ms)",
    "Concurrency,Inferences/Second,p50 latency,p95 latency",
    "model\tprofile\tbatch_size\tthroughput_rps\ttimed_runs\ttimed_p50_ms\tmemory_parts_basis\tfailure_reason",
]
CELLS = st.sampled_from([
    *("", "m", "1", "7", "8", "3g.40gb", "1:GPU", "100", "0", "-1", "nan", "inf", "1e999", "1,5", "1.5"),
    *('"', '"x', "=1", "٣", "²", "1e-320", "out_of_memory", "measured", "\x00", "\ud800", "x" * 300),
]) | st.text(max_size=8)  # fmt: skip
TABLES = st.builds(
    lambda header, rows, delimiter, end: end.join([header, *(delimiter.join(row) for row in rows)]),
    st.sampled_from(HEADERS),
    st.lists(st.lists(CELLS, max_size=9), max_size=6),
    st.sampled_from([",", ";", "\t"]),
    st.sampled_from(["\n", "\r\n", "\r"]),
)


def finite(row: ProfileRow) -> bool:
    return math.isfinite(row.throughput_rps) and math.isfinite(row.latency_ms) and row.throughput_rps > 0


@settings(deadline=None, max_examples=400)
@given(TABLES | st.text(), st.booleans())
def test_any_text_is_profiles_or_an_input_fault(text, skip_bad):
    try:
        imported = read_any(text, model="given", batch_size=2, skip_bad=skip_bad)
    except InputFault as fault:
        assert fault.problem and fault.remedy
        return
    for profile in imported.profiles:
        assert profile.rows or profile.failures
        assert all(finite(row) for row in profile.rows)
        assert read_text(write_text(profile))[1] == profile


@settings(deadline=None, max_examples=200)
@given(TABLES)
def test_what_was_read_is_read_again_from_what_is_written(text):
    try:
        imported = read_profile_csv(text, skip_bad=True)
    except InputFault as fault:
        assert fault.problem
        return
    again = read_profile_csv(write_profile_csv(imported.profiles))
    assert [(item.source, item.rows) for item in again.profiles] == [
        (item.source, item.rows) for item in imported.profiles
    ]


@settings(deadline=None, max_examples=100)
@given(TABLES, TABLES, st.booleans())
def test_estimates_of_any_two_texts(measured, query, skip_bad):
    try:
        table = estimate_table(measured, query, skip_bad=skip_bad)
    except InputFault as fault:
        assert fault.problem and fault.remedy
        return
    assert all(found.low_rps <= found.throughput_rps <= found.high_rps for found in table.estimates)


@given(st.binary(max_size=200))
def test_any_bytes_are_text_or_an_input_fault(data):
    try:
        assert isinstance(decode(data), str)
    except InputFault as fault:
        assert "UTF" in fault.problem
