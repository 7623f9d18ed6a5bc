"""Spans to a collector: what arrives, and that one that is gone or silent holds nothing up."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.support.paths import ROOT
from tests.support.seeds import repeated
from tests.support.telemetry.receiver import receiver
from torchsplit_core import telemetry
from torchsplit_core.isolation import run_limited
from torchsplit_core.telemetry import export, schema
from torchsplit_core.telemetry.settings import ENDPOINT, MODE, TRACES_ENDPOINT

pytestmark = pytest.mark.slow

TARGETS = ROOT / "tests" / "support" / "telemetry" / "targets.py"


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=8) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def closed_port() -> str:
    """A port where nobody listens: bound a moment ago, and let go."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def start(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv(MODE, "otlp")
    monkeypatch.setenv(ENDPOINT, endpoint)
    assert telemetry.configure("test")


def test_a_collector_gets_the_spans(monkeypatch):
    with receiver() as collector:
        start(monkeypatch, collector.endpoint)
        with telemetry.span(schema.PROFILE, model="sample:bert"):
            with telemetry.span(schema.PROFILE_POINT, batch_size=8) as point:
                point.set(p50_ms=2.5)
            with pytest.raises(ValueError, match="too bad"), telemetry.span(schema.PROFILE_NODES):
                raise ValueError("too bad")
        assert telemetry.shutdown()
        profile, point_, nodes = (
            collector.named(name) for name in (schema.PROFILE, schema.PROFILE_POINT, schema.PROFILE_NODES)
        )
        assert set(collector.paths) == {"/v1/traces"}
        assert set(collector.types) == {"application/x-protobuf"}
        assert set(collector.services) == {"test"}
    assert point_.parent_span_id == profile.span_id and point_.trace_id == profile.trace_id
    values = {pair.key: pair.value for pair in point_.attributes}
    assert values["torchsplit.batch_size"].int_value == 8
    assert values["torchsplit.p50_ms"].double_value == 2.5
    assert nodes.status.code == Status.STATUS_CODE_ERROR and "too bad" in nodes.status.message
    assert profile.status.code == Status.STATUS_CODE_UNSET


def test_the_spans_of_an_isolated_child_are_sent_for_it(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
    with receiver() as collector:
        start(monkeypatch, collector.endpoint)
        with telemetry.span(schema.PROFILE), telemetry.handed_on() as (carried, folders):
            answer = run_limited(
                "tests.support.telemetry.targets:measure", {"telemetry": carried}, writable=folders
            )
        assert telemetry.shutdown()
        profile, point = collector.named(schema.PROFILE), collector.named(schema.PROFILE_POINT)
    assert answer == {"environment": []} and "secret" not in str(carried)
    assert collector.endpoint not in str(carried)
    assert point.parent_span_id == profile.span_id and point.trace_id == profile.trace_id


def test_spans_are_delivered_when_the_process_ends_by_itself():
    with receiver() as collector:
        environment = os.environ | {MODE: "on", ENDPOINT: collector.endpoint}
        done = subprocess.run([sys.executable, str(TARGETS), "exits"], env=environment, timeout=60)
        assert done.returncode == 0 and collector.named(schema.PLAN).name == schema.PLAN


def test_a_traces_endpoint_is_taken_as_it_is(monkeypatch):
    with receiver() as collector:
        monkeypatch.setenv(TRACES_ENDPOINT, f"{collector.endpoint}/elsewhere")
        start(monkeypatch, "http://127.0.0.1:1")
        with telemetry.span(schema.PLAN):
            pass
        assert telemetry.shutdown() and collector.paths == ["/elsewhere"]


def test_a_collector_that_is_gone_loses_spans_and_says_so_once(monkeypatch, caplog):
    start(monkeypatch, closed_port())
    with telemetry.span(schema.PLAN):
        pass
    assert not telemetry.shutdown()
    assert [record.name for record in caplog.records] == ["torchsplit.telemetry"]


def test_a_silent_collector_loses_spans(monkeypatch, silent):
    start(monkeypatch, silent)
    with telemetry.span(schema.PLAN):
        pass
    assert not telemetry.shutdown()


def test_the_end_does_not_wait_for_a_request_that_hangs(monkeypatch, silent, caplog):
    """Where the request's own time-out would come too late, the end comes first: its thread still waits."""
    monkeypatch.setattr(export, "REQUEST_TIMEOUT_S", 2.0)
    monkeypatch.setattr(export, "SHUTDOWN_S", 0.2)
    start(monkeypatch, silent)
    with telemetry.span(schema.PLAN):
        pass
    assert not telemetry.shutdown()
    (ending,) = [thread for thread in threading.enumerate() if thread.name == "torchsplit-telemetry-end"]
    assert ending.daemon
    assert "not delivered" in caplog.text
    ending.join()


@repeated("collector", ["closed", "silent"])
def test_a_process_ends_in_spite_of_its_collector(silent, collector):
    endpoint = silent if collector == "silent" else closed_port()
    environment = os.environ | {MODE: "otlp", ENDPOINT: endpoint}
    done = subprocess.run(
        [sys.executable, str(TARGETS), "exits"], env=environment, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "Telemetry: spans could not be delivered" in done.stderr and "Traceback" not in done.stderr


def test_the_bounds_add_up_to_two_seconds():
    """One request may be under way when the last begins; the join bounds both."""
    assert export.SHUTDOWN_S < 2 and export.REQUEST_TIMEOUT_S < export.SHUTDOWN_S
