"""One run: what it does, live while it runs, and the buttons that direct it."""

from __future__ import annotations

import shlex
from pathlib import Path

import streamlit as st

from app.components.saving import file_name
from app.runs import panels
from app.runs.status_tables import STATES, describe_last_event, headline
from app.runs.trust_dialog import upload_box
from app.session import runs, trust
from app.session.result_kind import RUN
from app.session.uploads import needs_file, upload_of
from app.shell import frame, navigation, tags
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import TRACE, TraceParameters, UploadedFile
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.training.monitor import RunView, endpoints, event_files, is_requested, send_request
from torchsplit_core.training.stored_runs import is_own, model_of_step
from torchsplit_core.workspace.store import Workspace

REFRESH_S = 1.0


def render(workspace: Workspace, name: str, place: int) -> None:
    """Draw the page; `place` is the run's place among all by age, which gives its colour."""
    with st.container(horizontal=True, vertical_alignment="center"):
        navigation.link("Runs", "All runs", icon=":material/arrow_back:")
        _remove(workspace, name)
        tags.render_field(workspace, RUN, name, key="run-tags")
    view = runs.view(workspace, name)
    goes_on = bool(runs.active_jobs(workspace, name)) or (view is not None and view.alive)
    # While the run goes on, only this fragment redraws.
    st.fragment(_run, run_every=REFRESH_S if goes_on else None)(workspace, name, place, goes_on)


def _run(workspace: Workspace, name: str, place: int, went_on: bool) -> None:
    with frame.fault_boundary():
        working = bool(runs.active_jobs(workspace, name))
        view = runs.view(workspace, name)
        if went_on and not working and not (view is not None and view.alive):
            st.rerun(scope="app")
        if not working and (fault := runs.fault(workspace, name)):
            if fault == jobs.STOPPED_TEXT and is_requested(runs.path_of(workspace, name), "stop"):
                st.info("It was stopped while its processes started.")
            else:
                st.error(escape_markdown(fault))
        if view is None:
            st.info("It starts: its processes load torch and the model." if working else "It has not begun.")
            return
        if working:
            view = runs.current_view(workspace, name, view)
        words, colour = STATES[view.state]
        with st.container(horizontal=True, vertical_alignment="center"):
            st.badge(words, color=colour)
            st.caption(escape_markdown(headline(view)))
        if words := describe_last_event(view):
            st.markdown(words)
        _buttons(workspace, name, view, working)
        panels.render(name, view, place)
        _elsewhere(runs.path_of(workspace, name), view)


def _elsewhere(path: Path, view: RunView) -> None:
    """Say where the run's files lie, and where other tools find its figures."""
    st.caption(f"Folder: `{path}`")
    for address in endpoints(path) if view.alive else ():
        st.caption("Its figures for Prometheus, as long as it goes on:")
        st.code(f"curl {shlex.quote(address)}", language="bash")
    if (folder := event_files(path)) is not None:
        st.caption("Its event files for TensorBoard:")
        st.code(f"tensorboard --logdir {shlex.quote(str(folder))}", language="bash")


def _buttons(workspace: Workspace, name: str, view: RunView, working: bool) -> None:
    """Draw the buttons: checkpoint and stop while the run goes on, resume after it."""
    path = runs.path_of(workspace, name)
    if view.alive or working:
        # The user's own loop has no launcher that could receive a stop.
        with st.container(horizontal=True, vertical_alignment="center"):
            # The next refresh shows the request: a rerun now would scroll the page to its top.
            if st.button("Checkpoint now", key="run-checkpoint"):
                send_request(path, "checkpoint")
            if view.launch is not None and st.button(
                "Stop the run", key="run-stop",
                help="Takes no checkpoint: Resume does the steps since the last one again. Checkpoint now keeps them.",
            ):  # fmt: skip
                runs.stop(workspace, name, view)
            if is_requested(path, "stop"):
                st.caption("It is asked to stop.")
            elif is_requested(path, "checkpoint"):
                st.caption("Asked for: it is taken after the step that is under way.")
        return
    if view.launch is None:
        st.caption("It was started by a loop of your own: go on with it by starting that again.")
        return
    _render_resume(workspace, name, view)
    if view.checkpoints:
        _render_use(workspace, name, view)


def _render_use(workspace: Workspace, name: str, view: RunView) -> None:
    """Bring a step's weights among the workspace's models."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        steps = [checkpoint.step for checkpoint in reversed(view.checkpoints)]
        step = st.selectbox("Weights of step", steps, key=f"run-use-step {steps[0]}", width=180)
        source = model_of_step(name, step)
        with frame.fault_boundary():
            asks_for_file = needs_file(workspace, source)
            stored = upload_of(workspace, source) if asks_for_file else None
            if asks_for_file and stored is None:
                st.caption("To use this model, upload the file that it was trained from.")
                return
            trusted = stored is None or trust.trust_box({stored.name: stored.sha256}, "trust-use")
            if st.button(
                "Use this model", key="run-use", disabled=not trusted, icon=":material/deployed_code:",
                help="It is traced and stands among the Models, to be profiled, planned and served.",
            ):  # fmt: skip
                file = UploadedFile(stored.name, stored.sha256) if stored else None
                jobs.start(workspace, f"Trace {source}", TRACE, TraceParameters(source, file))
                navigation.go("Models")


def _render_resume(workspace: Workspace, name: str, view: RunView) -> None:
    assert view.launch is not None
    done = view.target_steps is not None and view.last_step >= view.target_steps
    with st.container(horizontal=True, vertical_alignment="bottom"):
        steps = st.number_input(
            "To step", view.last_step + 1, 10**9, max(view.last_step + 1, view.target_steps or 0) if not done else
            2 * view.last_step, key=f"run-steps {view.last_step}", width=180,
        )  # fmt: skip
        in_store = is_own(workspace, runs.path_of(workspace, name))
        file, trusted = upload_box(workspace, view.launch.source) if in_store else (None, _trust_folder())
        ready = trusted or (in_store and view.launch.source.startswith("sample:"))
        if st.button("Resume", type="primary", key="run-resume", disabled=not ready):
            with frame.fault_boundary():
                runs.resume(workspace, name, int(steps), file, trust=trusted and not in_store)
                st.rerun(scope="app")


def _trust_folder() -> bool:
    ticked = st.checkbox(
        "This folder is my own: going on executes the model that it names, with my rights",
        key="run-own-folder", disabled=trust.is_refused(),
    )  # fmt: skip
    return ticked and not trust.is_refused()


def _remove(workspace: Workspace, name: str) -> None:
    path = runs.path_of(workspace, name)
    in_store = is_own(workspace, path)
    with st.popover("Remove…"):
        st.write(
            "Its folder goes with its checkpoints; a run that goes on ends."
            if in_store
            else "It is no longer shown here. Its folder stays as it is."
        )
        if st.button("Remove for good" if in_store else "Show it no longer", key="run-remove"):
            runs.remove(workspace, name)
            frame.notify(f"Removed {file_name(name)}.")
            navigation.go("Runs")
