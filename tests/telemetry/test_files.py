"""Spans to files: their shape, their nesting, other processes, kills, and nothing at all when off."""

import base64
import json
import math
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tests.support.paths import ROOT
from torchsplit_core import telemetry, workflow
from torchsplit_core.files import read_file
from torchsplit_core.isolation import run_limited
from torchsplit_core.telemetry import read_spans, schema
from torchsplit_core.telemetry.settings import FOLDER, MODE
from torchsplit_core.values import InputFault

TARGETS = ROOT / "tests" / "support" / "telemetry" / "targets.py"
MEASURE = "tests.support.telemetry.targets:measure"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(MODE, "file")
    assert telemetry.configure("test", folder=tmp_path / "spans")
    return tmp_path / "spans"


def test_off_is_the_default_and_loads_nothing():
    program = (
        "import sys; from torchsplit_core import telemetry\n"
        "assert not telemetry.configure('x')\n"
        "with telemetry.span('torchsplit.plan', gpus=2) as span: span.set(status='optimal')\n"
        "with telemetry.adopt(telemetry.carrier()): pass\n"
        "assert telemetry.span('a') is telemetry.span('b') and telemetry.shutdown()\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    environment = {name: value for name, value in os.environ.items() if name != MODE}
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment).returncode == 0


def test_spans_nest_with_their_attributes(folder):
    with telemetry.span(schema.PROFILE, model="sample:bert", device="cpu") as profile:
        with telemetry.span(schema.PROFILE_POINT, batch_size=4, slice=None) as point:
            point.set(p50_ms=1.25, outcome="ok")
        profile.set(runs=3, from_store=False)
    with telemetry.span(schema.PLAN):
        pass
    profile_, point_, plan = read_spans(folder)
    assert (profile_.name, point_.name, plan.name) == (schema.PROFILE, schema.PROFILE_POINT, schema.PLAN)
    assert profile_.attributes == (
        ("torchsplit.model", "sample:bert"), ("torchsplit.device", "cpu"), ("torchsplit.runs", 3),
        ("torchsplit.from_store", False),
    )  # fmt: skip
    assert dict(point_.attributes) == {
        "torchsplit.batch_size": 4, "torchsplit.p50_ms": 1.25, "torchsplit.outcome": "ok",
    }  # fmt: skip
    assert point_.parent_id == profile_.span_id and point_.trace_id == profile_.trace_id
    assert profile_.parent_id is None and plan.trace_id != profile_.trace_id
    assert profile_.start_unix_ns <= point_.start_unix_ns <= point_.end_unix_ns <= profile_.end_unix_ns
    assert {span.service for span in (profile_, point_, plan)} == {"test"}
    assert {span.error for span in (profile_, point_, plan)} == {None}


def test_a_placement_has_its_span(folder):
    request = read_file(ROOT / "examples" / "placement_request.json")[1]
    workflow.place(request)
    (found,) = read_spans(folder)
    assert found.name == schema.PLACE
    assert dict(found.attributes) == {
        "torchsplit.gpus": 4, "torchsplit.layers": 4, "torchsplit.status": "optimal", "torchsplit.gap": 0.0,
        "torchsplit.segments": 1,
    }  # fmt: skip


def test_a_failure_is_marked_and_goes_on(folder):
    with pytest.raises(InputFault), telemetry.span(schema.PROFILE_POINT):
        raise InputFault("model", "'net' does not run", "Mend it.")
    (failed,) = read_spans(folder)
    assert failed.error is not None and "does not run" in failed.error


def test_every_kind_of_value_comes_back(folder):
    with telemetry.span(schema.PLAN) as plan:
        plan.set(
            flag=True, whole=2**62, real=math.inf, text="ä\n", counts=(1, 2), mixed=[1, "b"], other=Path("x")
        )
        plan.set(nothing=None, none=(), nan=math.nan)
    (found,) = read_spans(folder)
    values = {name.removeprefix(schema.PREFIX): value for name, value in found.attributes}
    assert math.isnan(float(str(values.pop("nan"))))
    assert values == {
        "flag": True, "whole": 2**62, "real": math.inf, "text": "ä\n", "counts": (1, 2), "mixed": ("1", "b"),
        "other": "x", "none": (),
    }  # fmt: skip


def test_the_file_has_the_shape_of_otlp_json(folder):
    """Strictly parsed as the protobuf message that OTLP JSON stands for; ids are hexadecimal there."""
    with telemetry.span(schema.PROFILE), telemetry.span(schema.PROFILE_POINT, batch_size=4, p50_ms=0.5):
        pass
    (file,) = folder.glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == 2
    spans = []
    for line in lines:
        assert set(line) == {"resourceSpans"}
        parsed = TracesData()
        json_format.ParseDict(_ids_in_base64(line), parsed)
        spans += [span for of in parsed.resource_spans for scope in of.scope_spans for span in scope.spans]
        (scope,) = [scope.scope for of in parsed.resource_spans for scope in of.scope_spans]
        assert scope.name == "torchsplit"
    point, profile = spans
    assert point.parent_span_id == profile.span_id and len(point.trace_id) == 16
    assert {pair.key: pair.value for pair in point.attributes}["torchsplit.batch_size"].int_value == 4
    assert isinstance(lines[0]["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["startTimeUnixNano"], str)


def _ids_in_base64(value: Any) -> Any:
    if isinstance(value, list):
        return [_ids_in_base64(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64encode(bytes.fromhex(part)).decode()
        if key in ("traceId", "spanId", "parentSpanId")
        else _ids_in_base64(part)
        for key, part in value.items()
    }


def test_an_isolated_child_carries_on(folder):
    with telemetry.span(schema.PROFILE), telemetry.handed_on() as (carried, folders):
        answer = run_limited(MEASURE, {"telemetry": carried}, writable=folders)
    assert answer == {"environment": []}
    profile, point = read_spans(folder)
    assert (point.name, point.parent_id, point.trace_id) == (
        schema.PROFILE_POINT, profile.span_id, profile.trace_id,
    )  # fmt: skip
    assert point.service == "test" and point.attribute("torchsplit.p50_ms") == 1.5


def test_what_foreign_code_leaves_among_the_spans_of_a_child_harms_nothing(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere.jsonl"
    with telemetry.span(schema.PROFILE), telemetry.handed_on() as (carried, (handed,)):
        forged = [
            {"name": name, "traceId": trace, "spanId": "1" * 16, "startTimeUnixNano": start,
             "endTimeUnixNano": end}
            for name, trace, start, end in (
                ("a span of its own", carried["traceparent"].split("-")[1], "1", "2"),
                (schema.PROFILE_POINT, "2" * 32, "1", "2"),
                (schema.PROFILE_POINT, carried["traceparent"].split("-")[1], "1", str(2**70)),
            )
        ]  # fmt: skip
        request = {"resourceSpans": [{"scopeSpans": [{"spans": forged}]}]}
        Path(handed, "forged.jsonl").write_text(json.dumps(request))
        Path(handed, "broken.jsonl").write_bytes(b"\xff not a span")
        elsewhere.write_text(json.dumps(request))
        Path(handed, "linked.jsonl").symlink_to(elsewhere)
        os.mkfifo(Path(handed, "blocks.jsonl"))
    assert [span.name for span in read_spans(folder)] == [schema.PROFILE]


def test_a_child_of_a_parent_without_telemetry_has_none():
    assert telemetry.carrier() == {}
    assert run_limited(MEASURE, {"telemetry": {}}) == {"environment": []}
    with telemetry.adopt(None), telemetry.span(schema.PLAN) as plan:
        plan.set(gpus=1)
    assert not telemetry.configure("still off")


def test_adopting_where_telemetry_is_on_leaves_it_on(folder):
    with telemetry.span(schema.JOB):
        carried = telemetry.carrier()
    with telemetry.adopt(carried), telemetry.span(schema.TRACE):
        pass
    with telemetry.span(schema.PLAN):
        pass
    job, trace, plan = read_spans(folder)
    assert trace.parent_id == job.span_id and plan.parent_id is None


def test_a_kill_loses_only_the_open_spans(tmp_path):
    done = subprocess.run(
        [sys.executable, str(TARGETS), "killed", str(tmp_path)], env=os.environ | {MODE: "file"}
    )
    assert done.returncode == -signal.SIGKILL
    assert [span.name for span in read_spans(tmp_path)] == [schema.PROFILE_POINT]


def test_the_environment_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv(MODE, "on")
    monkeypatch.setenv(FOLDER, str(tmp_path / "chosen"))
    assert telemetry.configure("test", folder=tmp_path / "given")
    with telemetry.span(schema.PLAN):
        pass
    assert [span.name for span in read_spans(tmp_path / "chosen")] == [schema.PLAN]
    assert not (tmp_path / "given").exists()


def test_a_folder_that_cannot_be_made_is_a_fault(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(MODE, "file")
    with pytest.raises(InputFault, match="TORCHSPLIT_TELEMETRY_FOLDER"):
        telemetry.configure("test", folder=tmp_path / "file" / "below")
    assert telemetry.carrier() == {}


def test_a_full_disk_loses_spans_and_not_the_work(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=0))
    (tmp_path / f"spans-{os.getpid()}-00000000.jsonl").symlink_to("/dev/full")
    monkeypatch.setenv(MODE, "file")
    assert telemetry.configure("test", folder=tmp_path)
    for _ in range(3):
        with telemetry.span(schema.PLAN) as plan:
            plan.set(gpus=1)
    assert [record.name for record in caplog.records] == ["torchsplit.telemetry"]
    assert not telemetry.shutdown()


def test_the_file_of_a_job_has_a_limit_and_the_job_in_it(tmp_path, monkeypatch):
    monkeypatch.setattr("torchsplit_core.telemetry.export.LARGEST_JOB_TRACE_BYTES", 3000)
    path = tmp_path / "job.spans.jsonl"
    assert telemetry.configure_job("test", path)
    with telemetry.span(schema.JOB, job="j"):
        for _ in range(50):
            with telemetry.span(schema.PLAN):
                pass
    assert not telemetry.shutdown()
    spans = read_spans(path)
    assert spans[0].name == schema.JOB and 2 <= len(spans) < 12


@pytest.mark.parametrize(
    ("variables", "written"),
    [
        ({MODE: "off"}, False),
        ({MODE: "file"}, True),
        ({MODE: "file", FOLDER: "elsewhere"}, False),
        ({}, True),
    ],
)
def test_the_environment_says_whether_a_job_has_a_file(tmp_path, monkeypatch, variables, written):
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "job.spans.jsonl"
    telemetry.configure_job("test", path)
    with telemetry.span(schema.JOB):
        pass
    telemetry.shutdown()
    assert (path.exists() and len(read_spans(path)) == 1) == written
    assert (FOLDER in variables) == (tmp_path / "elsewhere").exists()


def test_a_job_goes_on_without_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    assert not telemetry.configure_job("test", tmp_path / "file" / "job.spans.jsonl")
