"""Dropping a model: a .pt2 and a graph file are stored and shown at once, a Python file waits for trust."""

import hashlib
import io
import os
import time
import zipfile
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.models import upload
from benchmarks.graph_memory import write_pt2
from tests.support.app.page import field, press, said
from tests.support.app.values import SOURCE, graph, profile
from torchsplit_core import jobs
from torchsplit_core.files import write_text
from torchsplit_core.isolation import isolation_level
from torchsplit_core.jobs import runner
from torchsplit_core.jobs.job_kinds import (
    PROFILE,
    TRACE,
    ProfileParameters,
    TraceParameters,
    UploadedFile,
    to_stored,
)
from torchsplit_core.values import CLIENT_TEMPLATE, InputFault

pytestmark = pytest.mark.slow

CLIENT = b"""
raise SystemExit("executed")

def helper(): ...
class _Hidden: ...
class Net:
    def get_model(self): ...
client = Net()
"""


@pytest.fixture
def pt2(tmp_path) -> bytes:
    """Two blocks of linear, relu and add, as torch writes them."""
    write_pt2(tmp_path / "chain.pt2", 8)
    return (tmp_path / "chain.pt2").read_bytes()


@pytest.fixture
def started(started, monkeypatch) -> list[tuple[str, Any]]:
    """Each is said to be running."""
    monkeypatch.setattr(upload, "_state", lambda workspace, job: "running")
    return started


def drop(page: AppTest, name: str, data: bytes) -> AppTest:
    """Drop a file on the page; it must not raise."""
    page.file_uploader(key="upload").set_value((name, data, "application/octet-stream")).run(timeout=120)
    assert not page.exception
    return page


def errors(page: AppTest) -> list[str]:
    return [element.value.replace("\\", "") for element in page.error]


def test_a_dropped_pt2_is_stored_read_and_shown_without_a_button(page, workspace, pt2):
    opened = page("models", workspace)
    drop(opened, "chain.pt2", pt2)
    for _ in range(1200):  # a busy machine may take longer than the page waits
        if workspace.artifacts("graph"):
            break
        time.sleep(0.1)
    opened.run()
    assert [node.op for node in workspace.get("graph", "chain.pt2").ops] == ["linear", "relu", "add"] * 2
    assert workspace.get_bytes("upload", "chain.pt2") == pt2
    assert opened.session_state[f"model of {workspace.id}"] == "chain.pt2"
    assert not opened.error


def test_a_file_there_is_taken_once_and_shown_when_its_job_ends(page, workspace, pt2, started, monkeypatch):
    opened = drop(page("models", workspace), "chain.pt2", pt2)
    opened.run()
    opened.run()
    assert started == [(TRACE, TraceParameters("chain.pt2", UploadedFile("chain.pt2")))]
    assert f"model of {workspace.id}" not in opened.session_state
    monkeypatch.setattr(upload, "_state", lambda workspace, job: "done")
    opened.run()
    assert opened.session_state[f"model of {workspace.id}"] == "chain.pt2"


def test_a_file_that_takes_long_shows_progress_and_leads_on_at_its_end(page, workspace, pt2, monkeypatch):
    def start(own, title, name, parameters):
        record = own.add_job(title, name, to_stored(name, parameters))
        process = {"pid": os.getpid(), "born": runner._start_ticks(os.getpid())}
        runner._write(
            own.store, record.id, {"state": "running", "share": 0.3, "message": "reading"} | process
        )
        return record.id

    monkeypatch.setattr(jobs, "start", start)
    monkeypatch.setattr(upload, "_WAIT_S", 0.0)
    opened = drop(page("models", workspace), "chain.pt2", pt2)
    assert "Cancel" in [button.label for button in opened.button]
    (record,) = workspace.job_records()
    runner._write(workspace.store, record.id, {"state": "done", "seconds": 9.0})
    opened.run()
    assert opened.session_state[f"model of {workspace.id}"] == "chain.pt2"


def test_the_same_file_dropped_again_is_shown_and_starts_nothing(page, workspace, pt2, started):
    workspace.put_bytes("upload", "chain.pt2", pt2)
    workspace.put("graph", "chain.pt2", graph())
    opened = drop(page("models", workspace), "chain.pt2", pt2)
    assert not started and opened.session_state[f"model of {workspace.id}"] == "chain.pt2"
    opened = drop(page("models", workspace), "chain.pt2", pt2 + b"\0")
    assert len(started) == 1


def test_a_dropped_file_that_is_no_model_is_one_red_line(page, workspace):
    opened = drop(page("models", workspace), "broken.pt2", b"no zip")
    assert len(errors(opened)) == 1 and "broken.pt2: does not begin as the zip archive" in errors(opened)[0]
    # Neither the file nor a job of it is stored: it would name the workspace.
    assert not workspace.artifacts() and not jobs.statuses(workspace)
    with zipfile.ZipFile(archive := io.BytesIO(), "w") as written:
        written.writestr("a", "b")
    opened = drop(opened, "broken.pt2", archive.getvalue())
    for _ in range(1200):
        if jobs.statuses(workspace)[0].state != "running":
            break
        time.sleep(0.1)
    opened.run()
    assert len(errors(opened)) == 1
    assert "broken.pt2" in errors(opened)[0] and "exported program" in errors(opened)[0]
    assert not workspace.artifacts("graph")
    # The same content would fail again.
    for shown in (opened, page("models", workspace), page("activity", workspace)):
        assert "broken.pt2" in said(shown)
        assert "Try again" not in [element.label for element in shown.button]


@pytest.mark.parametrize(
    ("name", "problem", "remedy"),
    [
        ("net.pt", "ends in .pt, as pickles of torch.save do", "torch.export.save("),
        ("net.pth", "ends in .pth, as pickles of torch.save do", "torch.export.save("),
        ("net.zip", "ends in '.zip', which no model file has", "Drop a .pt2 file"),
        ("net", "has a name without an ending", "Drop a .pt2 file"),
    ],
)
def test_a_file_of_another_kind_is_refused_in_words_and_not_read(name, problem, remedy, page, workspace):
    opened = drop(page("models", workspace), name, b"\x80\x04cos\nabort\n(tR.")
    assert len(errors(opened)) == 1 and problem in errors(opened)[0] and remedy in errors(opened)[0]
    assert not workspace.artifacts() and not jobs.statuses(workspace)


@pytest.mark.parametrize("name", ["empty.pt2", "empty.graph.json"])
def test_an_empty_file_is_one_red_line_and_stores_nothing(name, page, workspace):
    assert len(errors(drop(page("models", workspace), name, b""))) == 1
    assert not workspace.artifacts()


def test_a_dropped_graph_file_is_shown(page, workspace):
    opened = drop(page("models", workspace), "net.graph.json", write_text(graph()).encode())
    assert workspace.get("graph", "net") == graph()
    assert opened.session_state[f"model of {workspace.id}"] == "net"
    opened = drop(page("models", workspace), "p.json", write_text(profile()).encode())
    assert workspace.get("profile", SOURCE) == profile()
    assert "Stored p.json" in opened.success[0].value.replace("\\", "")


def test_a_python_file_waits_for_trust_and_offers_its_names(page, workspace, started):
    opened = drop(page("models", workspace), "net.py", CLIENT)
    assert not workspace.artifacts() and not started
    assert opened.selectbox(key="client-name").options == ["Net", "helper", "client"]
    press(opened, "Trace this file")
    assert ["trusted" in text for text in errors(opened)] == [True]
    assert not workspace.artifacts()
    field(opened, "checkbox", "I trust").check().run()
    press(opened, "Trace this file")
    file = UploadedFile("net.py", hashlib.sha256(CLIENT).hexdigest())
    assert started == [(TRACE, TraceParameters("net.py:Net", file))]


LAYERS = b"""
import torch
from torch import nn
class Block(nn.Module): ...
class Ranker(Block):
    def forward(self, x): ...
"""


def test_the_name_offered_first_is_a_clients_and_never_a_layers():
    client = b"class Base:\n    def get_model(self): ...\nclass Net(Base): ...\nclass Far(away.Client): ...\n"
    assert upload.client_names("net.py", LAYERS + client) == (["Base", "Net"], ["Far"], True)


def test_a_file_without_a_client_says_so_before_it_is_traced_and_shows_one(page, workspace):
    opened = drop(page("models", workspace), "net.py", LAYERS)
    assert "No class in net.py is a client" in opened.warning[0].value.replace("\\", "")
    assert opened.code[0].value.strip() == CLIENT_TEMPLATE.strip()
    assert opened.selectbox(key="client-name").value is None
    assert all(button.disabled for button in opened.button if button.label.endswith("this file"))


@pytest.fixture
def failing(monkeypatch) -> None:
    """Every job that is started has failed at once."""

    def start(own, title, name, parameters):
        record = own.add_job(title, name, to_stored(name, parameters))
        runner._write(own.store, record.id, {"state": "failed", "fault": "net.py:Net: no weights."})
        return record.id

    monkeypatch.setattr(jobs, "start", start)


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("name", ["overview", "models"])
def test_a_failure_is_told_where_it_began_and_the_form_keeps_the_file(name, page, workspace, monkeypatch):
    opened = drop(page(name, workspace), "net.py", CLIENT)
    trust_box(opened).check().run()
    for _ in range(2):  # the second attempt does not bring the first one's failure back
        press(opened, "Trace this file")
        assert errors(opened) == ["Trace net.py:Net failed. net.py:Net: no weights."]
        assert opened.file_uploader(key="upload").value.name == "net.py" and trust_box(opened).value
        assert opened.selectbox(key="client-name").value == "Net"
    again = []
    monkeypatch.setattr(jobs, "resume", lambda own, job: again.append(job) or job)  # type: ignore[func-returns-value]
    opened.button(key="upload-again").click().run()
    assert again == [workspace.job_records()[0].id] and not opened.exception
    assert errors(page(name, workspace)) == ["Trace net.py:Net failed. net.py:Net: no weights."]


@pytest.mark.usefixtures("failing")
def test_a_class_of_layers_that_was_named_gets_the_client_to_copy(page, workspace, monkeypatch):
    fault = "net.py: Layers is an nn.Module, not a client. Add a class."
    write = runner._write
    monkeypatch.setattr(runner, "_write", lambda store, job, data: write(store, job, data | {"fault": fault}))
    opened = drop(page("overview", workspace), "net.py", CLIENT)
    trust_box(opened).check().run()
    assert CLIENT_TEMPLATE.strip() not in [code.value.strip() for code in opened.code[:-1]]
    press(opened, "Trace this file")
    assert "is an nn.Module" in errors(opened)[0] and opened.code[0].value.strip() == CLIENT_TEMPLATE.strip()


@pytest.mark.usefixtures("failing")
def test_a_models_failure_stands_on_its_own_page_alone(page, workspace):
    for source in ("chain.pt2", "net.py:Net"):
        workspace.put("graph", source, graph())
    jobs.start(workspace, "Profile net.py:Net", PROFILE, ProfileParameters(("net.py:Net",)))
    for source, told in (("chain.pt2", 0), ("net.py:Net", 1)):
        workspace.set_setting("model", source)
        assert len(errors(page("model", workspace))) == told
    overview = page("overview", workspace)
    assert any("no weights" in caption.value for caption in overview.caption) and len(errors(overview)) == 1


@pytest.mark.parametrize("text", [b"def broken(:\n", b"x = 1\0", b"(" * 10_000, b"\xff\xfe"])
def test_a_file_that_is_no_python_is_one_red_line(text, page, workspace):
    opened = drop(page("models", workspace), "net.py", text)
    assert len(errors(opened)) == 1 and "valid Python" in errors(opened)[0]


def profiled(trusted: str | None) -> ProfileParameters:
    return ProfileParameters(("chain.pt2",), uploads={"chain.pt2": UploadedFile("chain.pt2", trusted)})


def trust_box(opened: AppTest) -> Any:
    return field(opened, "checkbox", "I trust")


def test_an_upload_is_estimated_or_with_trust_measured(page, workspace, pt2, started):
    workspace.put_bytes("upload", "chain.pt2", pt2)
    workspace.put("graph", "chain.pt2", graph())
    opened = page("models", workspace)
    press(opened, "Profile")
    trust_box(opened).check().run()
    press(opened, "Profile")
    trusted = hashlib.sha256(pt2).hexdigest()
    assert started == [(PROFILE, profiled(None)), (PROFILE, profiled(trusted))]


def test_a_file_that_takes_the_name_of_a_trusted_one_is_not_trusted(page, workspace, pt2, started):
    workspace.put_bytes("upload", "chain.pt2", pt2)
    workspace.put("graph", "chain.pt2", graph())
    opened = page("models", workspace)
    assert f"(isolation: {isolation_level().name})" in trust_box(opened).label
    trust_box(opened).check().run()
    workspace.put_bytes("upload", "chain.pt2", pt2 + b"another")
    opened.run()
    assert not trust_box(opened).value
    press(opened, "Profile")
    assert started == [(PROFILE, profiled(None))]


def test_an_uploaded_python_file_is_executed_again_only_with_trust(page, workspace, started):
    workspace.put_bytes("upload", "net.py", CLIENT)
    workspace.put("graph", "net.py:Net", graph())
    opened = page("models", workspace)
    press(opened, "Trace")
    assert len(errors(opened)) == 1 and "trusted" in errors(opened)[0] and not started
    trust_box(opened).check().run()
    press(opened, "Trace")
    assert [found.file.trusted_sha256 for _, found in started] == [hashlib.sha256(CLIENT).hexdigest()]


def test_a_job_keeps_the_name_of_the_file_but_never_its_path(workspace, pt2):
    from torchsplit_core.jobs.trace import trace_job

    name = "../..//etc/a b.pt2"
    workspace.put_bytes("upload", name, pt2)
    heard = []
    parameters = TraceParameters(name, UploadedFile(name))
    trace_job(workspace, parameters, lambda share, text: heard.append(text))
    assert len(workspace.get("graph", name).ops) == 6
    workspace.put_bytes("upload", name, b"no zip")
    with pytest.raises(InputFault, match=r"^_..__etc_a_b\.pt2: "):
        trace_job(workspace, parameters, lambda share, text: None)
