"""The scenarios of a workspace, each a plan request and its plan under one name: stored, copied, deleted, planned."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import streamlit as st

from app.session import draft
from app.session.result_kind import SCENARIO
from app.session.workspace import read
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import EXPLAIN, PLAN, RequestParameters
from torchsplit_core.pictures.colours import model_colours
from torchsplit_core.planning.request.build import model_name
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest, Profile, quoted
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.drafts import DraftStore
from torchsplit_core.workspace.drafts import Row as DraftRow
from torchsplit_core.workspace.store import Artifact, Workspace
from torchsplit_core.workspace.sweeps import StoredSweep, SweepStore, write_sweep
from torchsplit_core.workspace.versions import Row, VersionStore

LONGEST_NAME = 120
FIRST_PLAN_S, PROOF_S, LOOK_S = 1.5, 0.3, 0.02
"""The longest wait for a first plan and for its proof, and the interval of the looks for them, in seconds."""


def save_as(workspace: Workspace, scenario: str, new: str, *, keep: bool) -> str:
    """Copy a scenario to another name, without `keep` rename it, and choose it; its name.

    Its sweep, drafts, versions and tags go along. Without `keep` the jobs on the scenario end.
    Raises InputFault for a name that is empty, too long or taken.
    """
    new = new.strip()
    if not 1 <= len(new) <= LONGEST_NAME:
        problem = f"has {len(new)} characters, above the most of {LONGEST_NAME}" if new else "is empty"
        raise InputFault("scenario name", problem, "Choose another name.")
    if new == scenario:
        raise InputFault("scenario name", f"{quoted(new)} is the name that it has", "Type another name.")
    if new in SCENARIO.names(workspace):
        problem = f"{quoted(new)} is taken by another scenario"
        raise InputFault("scenario name", problem, "Choose another name.")
    _drop_backup(workspace)
    named_results.copy(workspace, named_results.SCENARIO_KINDS, scenario, new)
    if not keep:
        jobs.end(workspace, SCENARIO.job_kinds, scenario)
    for store_type in (SweepStore, DraftStore, VersionStore):
        store_type(workspace, scenario).copy_to(new)
    if tags := SCENARIO.tags(workspace).get(scenario):
        SCENARIO.tag(workspace, new, tags)
    SCENARIO.choose(workspace, new)
    if not keep:
        remove(workspace, scenario)
    return new


def store_new(workspace: Workspace, wanted: str, request: PlanRequest, plan: PlanOutcome | None) -> str:
    """Store a request and its plan as a scenario, under the wanted name or the next free one, and choose it."""
    name = named_results.free_name(workspace, named_results.SCENARIO_KINDS, wanted)
    workspace.put("plan_request", name, request)
    workspace.put("plan", name, plan)
    SCENARIO.choose(workspace, name)
    return name


@dataclass(frozen=True)
class DeletedScenario:
    """A scenario that this session deleted: its files by kind, its sweep, drafts, versions and tags."""

    name: str
    files: Mapping[str, bytes]
    sweep: StoredSweep | None
    drafts: tuple[DraftRow, ...]
    versions: tuple[Row, ...]
    tags: tuple[str, ...]


def delete(workspace: Workspace, scenario: str) -> None:
    """Forget a scenario as `remove` does, and keep it in this session for `undelete` until the next change."""
    # Its jobs end first, so that `undelete` brings back what they have stored.
    jobs.end(workspace, SCENARIO.job_kinds, scenario)
    stored = [
        kind for kind in named_results.SCENARIO_KINDS if named_results.exists(workspace, kind, scenario)
    ]
    files = {kind: workspace.get_bytes(kind, scenario) for kind in stored}
    sweep, drafts = SweepStore(workspace, scenario).load(), DraftStore(workspace, scenario).rows()
    versions, tags = VersionStore(workspace, scenario).rows(), SCENARIO.tags(workspace).get(scenario, ())
    backup = DeletedScenario(scenario, files, sweep, drafts, versions, tags)
    _forget(workspace, scenario)
    st.session_state[_backup_key(workspace)] = backup


def deleted_name(workspace: Workspace) -> str | None:
    """The name of the scenario that `undelete` would bring back."""
    backup = st.session_state.get(_backup_key(workspace))
    return backup.name if isinstance(backup, DeletedScenario) else None


def undelete(workspace: Workspace) -> str:
    """Bring the deleted scenario back and choose it; its name, a free one where its own was taken meanwhile."""
    backup: DeletedScenario = st.session_state.pop(_backup_key(workspace))
    back = named_results.free_name(workspace, named_results.SCENARIO_KINDS, backup.name)
    for kind, data in backup.files.items():
        workspace.put_bytes(kind, back, data)
    if backup.sweep is not None:
        with workspace.store.connect(write=True) as database:
            write_sweep(database, workspace.id, back, backup.sweep)
    draft.unload(workspace, back)
    DraftStore(workspace, back).restore(backup.drafts)
    VersionStore(workspace, back).restore(backup.versions)
    if backup.tags:
        SCENARIO.tag(workspace, back, backup.tags)
    SCENARIO.choose(workspace, back)
    return back


def _drop_backup(workspace: Workspace) -> None:
    st.session_state.pop(_backup_key(workspace), None)


def _backup_key(workspace: Workspace) -> str:
    return f"deleted scenario of {workspace.id}"


def end_work(workspace: Workspace, scenario: str) -> None:
    """End the jobs that search for or explain a scenario's plan, since another plan replaces it."""
    jobs.end(workspace, (PLAN, EXPLAIN), scenario)
    _drop_backup(workspace)


def remove(workspace: Workspace, scenario: str) -> None:
    """Forget a scenario with its sweep, drafts and versions. Its jobs end, and the address no longer names it."""
    jobs.end(workspace, SCENARIO.job_kinds, scenario)
    _forget(workspace, scenario)


def _forget(workspace: Workspace, scenario: str) -> None:
    SCENARIO.forget(workspace, scenario)
    for store_type in (SweepStore, DraftStore, VersionStore):
        store_type(workspace, scenario).delete()
    draft.unload(workspace, scenario)


def request(workspace: Workspace) -> PlanRequest | None:
    """The current scenario's plan request."""
    scenario = SCENARIO.current(workspace)
    return read(workspace, "plan_request", scenario) if scenario else None


def plan(workspace: Workspace) -> PlanOutcome | None:
    """The current scenario's plan; None before it was planned."""
    scenario = SCENARIO.current(workspace)
    return read(workspace, "plan", scenario) if scenario else None


def request_and_plan(workspace: Workspace) -> tuple[PlanRequest | None, PlanOutcome | None]:
    """The current scenario's plan request and plan."""
    scenario = SCENARIO.current(workspace)
    if scenario is None:
        return None, None
    return read(workspace, "plan_request", scenario), read(workspace, "plan", scenario)


def colours(workspace: Workspace) -> dict[str, str]:
    """A colour for each model, the same on every page: the request's models first, then others of the workspace."""
    plan_request, outcome = request_and_plan(workspace)
    known = [model.name for model in plan_request.models] if plan_request else []
    known += [model.name for model in outcome.models] if outcome else []
    known += sorted(map(short_name, named_results.names(workspace, "profile", "graph")))
    return model_colours(known)


def short_name(source: str) -> str:
    """The model name that a request gives to this source."""
    return model_name(Profile(source, ""))


def start_plan(workspace: Workspace, scenario: str) -> str:
    """Plan the stored request in a job of its own; a search for the same scenario ends first. Its job id."""
    settle_plan(workspace, scenario)
    return jobs.start(workspace, f"Plan {scenario}", PLAN, RequestParameters(scenario))


def settle_plan(workspace: Workspace, scenario: str) -> None:
    """Choose a scenario that was just stored: a search for it ends, and its next plan will be explained."""
    jobs.end(workspace, (PLAN,), scenario)
    _drop_backup(workspace)
    SCENARIO.choose(workspace, scenario)
    request_explanation(workspace)


def await_plan(workspace: Workspace, scenario: str, before: Artifact | None) -> None:
    """Wait up to `FIRST_PLAN_S` for the first plan of a search that has just begun, other than `before`, and up to
    `PROOF_S` for its proof: drawing the page without it and then again with it would take longer."""
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) < FIRST_PLAN_S and jobs.running(workspace, (PLAN,), scenario):
        if waited > PROOF_S and workspace.find("plan", scenario) != before:
            return
        time.sleep(LOOK_S)


def request_explanation(workspace: Workspace) -> None:
    """Have this session's next plan explained without being asked."""
    st.session_state[f"explain next {workspace.id}"] = True


def take_explanation_request(workspace: Workspace) -> bool:
    """Whether `request_explanation` asked for an explanation; the request is then done."""
    return bool(st.session_state.pop(f"explain next {workspace.id}", False))


def start_explain(workspace: Workspace, scenario: str) -> str:
    """Explain the stored plan in a job of its own. Its job id."""
    return jobs.start(workspace, f"Explain {scenario}", EXPLAIN, RequestParameters(scenario))
