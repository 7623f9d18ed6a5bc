"""A model file on the Models page: it is stored and read at once, and executed only when the user trusts it."""

from __future__ import annotations

import ast
import hashlib
import re
import time
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, NamedTuple, NoReturn

import streamlit as st

from app.session import dropped_files
from app.session import trust as session_trust
from app.session.result_kind import MODEL
from app.session.uploads import refuse_untrusted
from app.shell import frame, job_panel, navigation, result_location
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import PROFILE, TRACE, ProfileParameters, TraceParameters, UploadedFile
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.values import CLIENT_TEMPLATE, InputFault, quoted
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace

UPLOAD = "upload"
"""The key of the uploader."""
_TAKEN = "taken uploads"
_STARTED = "work on the dropped file"
_AWAITED = "awaited graph"
_FOLLOWED = "followed job"
_WAIT_S, _LOOK_S = 3.0, 0.05
LAYERS = ("nn.", "torch.nn.")
"""A base class that begins so, as it is written, or ends in Module, is one of torch's layers."""
PICKLED = (".pt", ".pth", ".ckpt", ".bin", ".pkl")
"""Endings of files that torch.save or pickle wrote."""
ZIP = b"PK\x03\x04"
PT2_REMEDY = (
    "Save the model by torch.export.save(torch.export.export(model, inputs), 'NAME.pt2') and drop that file."
)
MOST_SOURCE_BYTES = 512 * 2**10
"""A larger Python file is not searched for names: its syntax tree takes some hundred bytes for each of its bytes."""


def import_dropped(workspace: Workspace) -> None:
    """Read a file that was just dropped, before the page is drawn, and open its graph once that is stored.

    Every drop is taken once: the uploader still has the file in later runs of the page.
    """
    file = st.session_state.get(UPLOAD)
    taken: set[str] = st.session_state.setdefault(_TAKEN, set())
    if file is not None and file.file_id not in taken and file.name.endswith((".pt2", ".json")):
        taken.add(file.file_id)
        with frame.fault_boundary():
            if file.name.endswith(".json"):
                _store_contract(workspace, file.name, file.getvalue())
            else:
                _started(workspace, file, start(workspace, file.name, file.getvalue()))
    _open_traced_model(workspace)


def render(workspace: Workspace) -> None:
    """The uploader, and for a Python file the name of its client and the box of trust."""
    if session_trust.is_refused():
        st.warning(session_trust.REFUSED)
    label = "A .pt2 file of torch.export, a .py file with a SplitClient, or a graph file (.graph.json)"
    # Other files are refused by `_refuse`, which says what to do instead.
    file = st.file_uploader(label, key=UPLOAD)
    st.caption(
        "A .pt2 file is read as soon as you drop it, and never executed: its figures are estimated. To measure it, "
        "trust the file beside the model in the list."
    )
    failed = _failed_job(workspace)
    if failed is not None:
        _render_failure(workspace, failed)
    if file is None or file.name.endswith((".pt2", ".json")):
        return
    with frame.fault_boundary():
        if not file.name.endswith(".py"):
            _refuse(file.name)
        offered = client_names(file.name, file.getvalue())
        if offered.searched and not offered.clients:
            text = f"No class in {file.name} is a client: none has get_model(). Add one like this to the file and "
            text += "drop it again, or enter the name of a function or an object that gives a client."
            st.warning(escape_markdown(text))
            st.code(CLIENT_TEMPLATE, language="python")
        elif failed is not None and "nn.Module" in (failed.fault or ""):
            st.code(CLIENT_TEMPLATE, language="python")
        entry = st.selectbox(
            "Name of the SplitClient in the file", [*offered.clients, *offered.others], 0 if offered.clients else None,
            placeholder="Choose or enter a name", accept_new_options=True, key="client-name",
        )  # fmt: skip
        digest = hashlib.sha256(file.getvalue()).hexdigest()
        trust = session_trust.trust_box({file.name: digest}, "trust-upload")
        st.caption(session_trust.describe_trust())
        labels = {TRACE: "Trace this file", PROFILE: "Trace and profile this file"}
        for column, (job, label) in zip(st.columns(2), labels.items(), strict=True):
            if column.button(label, type="primary" if job == TRACE else "secondary", disabled=not entry):
                begun = start(workspace, file.name, file.getvalue(), entry or "", trust=trust, job=job)
                _started(workspace, file, begun)
                st.rerun()


def _refuse(file: str) -> NoReturn:
    """Raise the InputFault for a file by whose name no model is read; its content is not looked at."""
    ending = PurePath(file).suffix
    if ending in PICKLED:
        problem = f"ends in {ending}, as pickles of torch.save do: a pickle can run code when it is read, so none is"
        remedy = f"{PT2_REMEDY} Or drop the .py file that builds the model."
    else:
        problem = (
            f"ends in {quoted(ending)}, which no model file has" if ending else "has a name without an ending"
        )
        remedy = "Drop a .pt2 file of torch.export, a .py file with a SplitClient, or a .graph.json file."
    raise InputFault(file, problem, remedy)


def _render_failure(workspace: Workspace, failed: jobs.JobStatus) -> None:
    """Why the job on the file failed, and a button that tries again."""
    with st.container(horizontal=True, vertical_alignment="center", key="upload-failed"):
        st.error(escape_markdown(f"{failed.title} failed. {failed.fault or 'No reason was given.'}"))
        about = "The same work on the same file, with the same name."
        if not job_panel.is_of_content(failed) and st.button("Try again", key="upload-again", help=about):
            with frame.fault_boundary():
                file = st.session_state[UPLOAD]
                begun = jobs.resume(workspace, failed.id)
                _started(workspace, file, begun)
                record = next(candidate for candidate in workspace.job_records() if candidate.id == begun)
                if (place := result_location.location_of(record)) is not None and place[1] is not None:
                    follow_job(place[1], begun)
                st.rerun()


def failed_job_in_form(workspace: Workspace) -> Sequence[str]:
    """The job whose failure the form itself shows."""
    failed = _failed_job(workspace)
    return () if failed is None else (failed.id,)


def _started(workspace: Workspace, file: Any, job: str | None) -> None:
    st.session_state[_STARTED] = (workspace.id, file.file_id, job)


def _failed_job(workspace: Workspace) -> jobs.JobStatus | None:
    """The job on the file in the form, if it failed."""
    file = st.session_state.get(UPLOAD)
    identity, file_id, job = st.session_state.get(_STARTED, (None, None, None))
    if file is None or (identity, file_id) != (workspace.id, file.file_id):
        return None
    failed = (status for status in jobs.statuses(workspace) if status.id == job and status.state == "failed")
    return next(failed, None)


def start(
    workspace: Workspace, file: str, data: bytes, entry: str = "", *, trust: bool = False, job: str = TRACE
) -> str | None:
    """Store a model file and trace it in a job, whose end opens the tab Graph; the job.

    A file that is traced already starts nothing (None). Raises InputFault for what is clearly no model, and for a
    Python file that is not trusted.
    """
    python = file.endswith(".py")
    trust = trust and not session_trust.is_refused()
    if not data:
        raise InputFault(file, "is empty", "Choose another file.")
    if not python and not data.startswith(ZIP):
        raise InputFault(file, "does not begin as the zip archive that a .pt2 file is", PT2_REMEDY)
    refuse_untrusted(file, trust)
    if python and not re.fullmatch(r"[A-Za-z_]\w*", entry):
        problem = f"cannot define {quoted(entry)}, which is no name in Python"
        raise InputFault(file, problem, "Enter the name of the client's class.")
    source = f"{file}:{entry}" if python else file
    digest = hashlib.sha256(data).hexdigest()
    known = not python and named_results.sha256_of(workspace, "upload", file) == digest
    if known and named_results.exists(workspace, "graph", source):
        st.session_state[_AWAITED] = (None, source)
        return None
    workspace.put_bytes("upload", file, data)
    # A graph under this name may be of another file.
    parameters = job_parameters(job, source, UploadedFile(file, digest if trust else None), again=True)
    verb = "Trace" if job == TRACE else "Profile"
    begun = jobs.start(workspace, f"{verb} {source}", job, parameters)
    st.session_state[_AWAITED] = (begun, source)
    return begun


def follow_job(source: str, job: str | None) -> None:
    """Open the model that a job traces when the job ends."""
    st.session_state[_AWAITED] = (job, source)


def job_parameters(
    job: str, source: str, file: UploadedFile | None = None, *, again: bool = False
) -> TraceParameters | ProfileParameters:
    """The parameters of a trace or profile job for one model; `again` traces what was traced before."""
    if job == TRACE:
        return TraceParameters(source, file)
    return ProfileParameters((source,), uploads={source: file} if file else {}, trace_again=again)


class ClientNames(NamedTuple):
    """Names in a Python file: of classes that are clients, and of objects that may give one.

    `searched` is False for a file that is too large.
    """

    clients: list[str]
    others: list[str]
    searched: bool = True


def client_names(file: str, data: bytes) -> ClientNames:
    """The names at the top level of a Python file that may be its SplitClient's, without classes of layers.

    Executes nothing. Raises InputFault where the file is no Python.
    """
    if len(data) > MOST_SOURCE_BYTES:
        return ClientNames([], [], searched=False)
    try:
        body = ast.parse(data).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line, problem = "", str(error)[:100]
        if isinstance(error, SyntaxError):
            line, problem = f":{error.lineno}" if error.lineno else "", error.msg
        raise InputFault(f"{file}{line}", f"is not valid Python: {problem}", "Mend that line.") from error
    clients: list[str] = []
    others: list[str] = []
    layers: set[str] = set()
    plain_classes: set[str] = set()
    for part in body:
        if isinstance(part, ast.ClassDef):
            bases = [ast.unparse(base) for base in part.bases]
            methods = {inner.name for inner in part.body if isinstance(inner, ast.FunctionDef)}
            if "get_model" in methods or any(base in clients for base in bases):
                clients.append(part.name)
            elif any(base in layers or base.startswith(LAYERS) or base.endswith("Module") for base in bases):
                layers.add(part.name)
            elif all(base in plain_classes or base == "object" for base in bases):
                plain_classes.add(part.name)
            else:
                others.append(part.name)
        elif isinstance(part, ast.FunctionDef):
            others.append(part.name)
        elif isinstance(part, ast.Assign):
            others += [target.id for target in part.targets if isinstance(target, ast.Name)]
    return ClientNames(_public(clients), _public(others))


def _public(names: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


def _store_contract(workspace: Workspace, file: str, data: bytes) -> None:
    """Store a contract file; a graph is opened."""
    artifact = dropped_files.store_dropped(workspace, file, data)
    if artifact.kind == "graph":
        st.session_state[_AWAITED] = (None, artifact.name)
    else:
        st.success(f"Stored {file} as {artifact.kind.replace('_', ' ')} {artifact.name}.")


def _open_traced_model(workspace: Workspace) -> None:
    """Open the awaited graph once it is stored. A small file is waited for, a large one shows its progress."""
    awaited: tuple[str | None, str] | None = st.session_state.get(_AWAITED)
    if awaited is None:
        return
    if UPLOAD not in st.session_state:
        # The user has been on another page since, which linked to the result.
        del st.session_state[_AWAITED]
        return
    job, source = awaited
    if job is not None:
        state = _state(workspace, job)
        if state == "running":
            # The head of this page was drawn before the job began. Drawn again, it follows the job.
            if st.session_state.get(_FOLLOWED) != job:
                st.session_state[_FOLLOWED] = job
                st.rerun()
            return
        if state != "done":
            del st.session_state[_AWAITED]
            st.rerun()  # the notices at the head of the page say why
    del st.session_state[_AWAITED]
    MODEL.choose(workspace, source)
    navigation.go("Graph", source)


def _state(workspace: Workspace, job: str) -> Any:
    """The state of a job, whose end is awaited in its first _WAIT_S seconds."""
    deadline = time.monotonic() + _WAIT_S
    with st.spinner("Reading the file"):
        while True:
            status = jobs.status(workspace, job)
            if status.state != "running" or status.seconds > _WAIT_S or time.monotonic() > deadline:
                return status.state
            time.sleep(_LOOK_S)
