"""Whatever text comes: profiles or a job history, or one InputFault, never anything else."""

import math
from dataclasses import astuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchsplit_core.files import read_text, write_text
from torchsplit_core.tables import decode, read_any, read_profile_csv, write_profile_csv
from torchsplit_core.tables.estimated_table import estimate_table
from torchsplit_core.tables.job_history.hourly_figures import hour_rows
from torchsplit_core.tables.job_history.observed_hours import observed_hours
from torchsplit_core.tables.job_history.read_files import read_history
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


JOB_CELLS = st.sampled_from([
    *("7", "7.batch", "7_[1-4,9%2]", "7_[5-1]", "7+1", "bert-17", "Unknown", "None", "", "0", "1772438400", "9" * 13),
    *("2026-03-02T08:00:00", "2026-03-02 09:30:00Z", "2026-03-29T02:30:00+02:00", "0001-01-01T00:00", "2026-03-02"),
    *("1-02:00:00", "00:10", "RUNNING", "PENDING", "CANCELLED by 7", "COMPLETED", "gres/gpu:a100=2,gres/gpu=2"),
    *("gpu:1", "N/A", "0.5", "87", "2147483632", '"', "|", "\x00", "\ud800"),
]) | st.text(max_size=6)  # fmt: skip
JOB_TABLES = st.builds(
    lambda header, rows: "\n".join([header, *(header_delimiter(header).join(row) for row in rows)]),
    st.sampled_from([
        "JobID|Submit|Start|End|State|AllocTRES|JobName", "JobID,Submit,Start,End,Elapsed",
        "timestamp,gpu,GPUTL,SMACT,FBUSD,hpc_job",
    ]),
    st.lists(st.lists(JOB_CELLS, max_size=8), max_size=5),
)  # fmt: skip


def header_delimiter(header: str) -> str:
    return "|" if "|" in header else ","


@settings(deadline=None, max_examples=300)
@given(st.lists(JOB_TABLES | st.text(), min_size=1, max_size=2), st.booleans())
def test_any_texts_are_a_job_history_or_an_input_fault(texts, skip_bad):
    good = "JobID|Submit|Start|End|AllocTRES|JobName\n1|2026-03-02|2026-03-02|2026-03-03|gres/gpu=1|a\n"
    try:
        files = [("file", text) for text in (good, *texts)]
        history = read_history(files, zone=ZoneInfo("Europe/Berlin"), skip_bad=skip_bad)
        observed = observed_hours(history)
        rows = hour_rows({"a": history.jobs}, history.samples, observed, "gres")
    except InputFault as fault:
        assert fault.problem and fault.remedy
        return
    assert len(rows) == 48
    figures = [value for row in rows for value in astuple(row) if isinstance(value, float)]
    assert all(math.isfinite(value) and value >= 0 for value in figures)


@given(st.binary(max_size=200))
def test_any_bytes_are_text_or_an_input_fault(data):
    try:
        assert isinstance(decode(data), str)
    except InputFault as fault:
        assert "UTF" in fault.problem
