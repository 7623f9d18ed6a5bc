"""Spans read back from files of ours and of a collector, their totals, and lines that are no spans."""

import json
from typing import Any

import pytest

from torchsplit_core.telemetry import SpanRecord, SpanTotal, read_spans, summary
from torchsplit_core.values import InputFault

TRACE = "5B8EFFF798038103D269B633813FC60C"


def span(
    name: str = "torchsplit.plan", start: object = "1000000", end: object = "3000000", **more: Any
) -> Any:
    return {
        "traceId": TRACE, "spanId": "eee19b7ec3c1b174", "name": name, "startTimeUnixNano": start,
        "endTimeUnixNano": end, **more,
    }  # fmt: skip


def line(*spans: Any) -> str:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]})


def test_a_line_as_a_collector_writes_it(tmp_path):
    """Integers as numbers or text, no service, a status with a message, an empty parent: all are OTLP JSON."""
    attributes = [
        {"key": "a", "value": {"intValue": 7}},
        {"key": "b", "value": {"intValue": "8"}},
        {"key": "c", "value": {}},
        {"key": "d", "value": {"kvlistValue": {"values": [{"key": "x", "value": {"boolValue": True}}]}}},
    ]
    file = tmp_path / "spans.json"
    file.write_text(
        line(
            span(start=5, end=10, attributes=attributes, parentSpanId="", status={"code": 2, "message": "no"})
        )
        + "\n\n"
    )
    assert read_spans(file) == (
        SpanRecord(
            name="torchsplit.plan", service="", trace_id=TRACE.lower(), span_id="eee19b7ec3c1b174",
            parent_id=None, start_unix_ns=5, end_unix_ns=10,
            attributes=(("a", 7), ("b", 8), ("c", None), ("d", (("x", True),))), error="no",
        ),
    )  # fmt: skip
    assert read_spans(file)[0].attribute("b") == 8
    assert read_spans(file)[0].attribute("absent") is None


def test_a_folder_is_read_whole_in_the_order_of_starts(tmp_path):
    (tmp_path / "a.jsonl").write_text(line(span("late", "30", "40"), span("early", "10", "50")))
    (tmp_path / "b.jsonl").write_text(line(span("inner", "20", "30"), span("outer", "20", "60")) + "\n")
    (tmp_path / "notes.txt").write_text("not spans")
    assert [span.name for span in read_spans(tmp_path)] == ["early", "outer", "inner", "late"]


@pytest.mark.parametrize("bad", [
    "{",
    "[]",
    "7",
    "{}",
    '{"resourceSpans": 3}',
    '{"resourceSpans": [{"scopeSpans": [{"spans": [{}]}]}]}',
    line(span(start="soon")),
    line(span(start="5", end="4")),
    line(span(start="5", end=10**400)),
    line(span(start=-1)),
    line(span(attributes=[{"key": "a", "value": {"doubleValue": 10**400}}])),
    line(span(traceId="xyz")),
    line(span(spanId=12)),
    line(span(attributes=[{"key": "a", "value": {"strangeValue": 1}}])),
    line(span(attributes=[{"key": "a", "value": {"intValue": 1, "boolValue": True}}])),
    "[" * 100_000,
    "\udcff\udcfe",
])  # fmt: skip
def test_a_bad_line_is_named_by_its_number(tmp_path, bad):
    file = tmp_path / "spans.jsonl"
    file.write_bytes(f"{line(span())}\n\n{bad}\n".encode(errors="surrogateescape"))
    with pytest.raises(InputFault, match=r"spans\.jsonl, line 3") as fault:
        read_spans(tmp_path)
    assert len(str(fault.value)) < 600


def test_a_path_that_is_not_there_is_a_fault(tmp_path):
    with pytest.raises(InputFault, match="no such file"):
        read_spans(tmp_path / "absent")


def test_totals_by_name(tmp_path):
    file = tmp_path / "spans.jsonl"
    file.write_text(line(
        span("point", 0, 1_000_000), span("point", 0, 5_000_000, status={"code": 2}),
        span("point", 0, 3_000_000, status={"code": 1}), span("profile", 0, 10_000_000),
    ))  # fmt: skip
    assert summary(read_spans(file)) == (
        SpanTotal("profile", 1, 0, 10.0, 10.0, 10.0),
        SpanTotal("point", 3, 1, 9.0, 3.0, 5.0),
    )
    assert summary(()) == ()
