"""The scenarios of a workspace: a plan request and its plan, kept under one name, and what is done with them."""

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
"""The most seconds that a first plan is waited for, those that its proof is as well, and between two looks."""


def save_as(workspace: Workspace, scenario: str, new: str, *, keep: bool) -> str:
    """Store a scenario under another name (the old one stays with `keep`) and choose it; its name.

    Its sweep, its drafts, its versions and its tags go along. Without `keep` work on the scenario ends.
    Raises InputFault for a name that is empty, too long or taken.
    """
    new = new.strip()
    if not 1 <= len(new) <= LONGEST_NAME:
        raise InputFault(
            "scenario name",
            f"has {len(new)} characters, above the most of {LONGEST_NAME}" if new else "is empty",
            "Choose another name.",
        )
    if new in SCENARIO.names(workspace):
        raise InputFault(
            "scenario name", f"{quoted(new)} is taken by another scenario", "Choose another name."
        )
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


@dataclass(frozen=True)
class DeletedScenario:
    """A scenario that this session deleted: its files by kind, its sweep as far as it was, its drafts, its versions
    and its tags."""

    name: str
    files: Mapping[str, bytes]
    sweep: StoredSweep | None
    drafts: tuple[DraftRow, ...]
    versions: tuple[Row, ...]
    tags: tuple[str, ...]


def delete(workspace: Workspace, scenario: str) -> None:
    """Forget a scenario as `remove` does, and keep it in this session for `undelete` until the next change."""
    # Its work ends first: what that stores until then comes back too.
    jobs.end(workspace, SCENARIO.job_kinds, scenario)
    files = {
        kind: workspace.get_bytes(kind, scenario)
        for kind in named_results.SCENARIO_KINDS
        if named_results.exists(workspace, kind, scenario)
    }
    backup = DeletedScenario(
        scenario,
        files,
        SweepStore(workspace, scenario).load(),
        DraftStore(workspace, scenario).rows(),
        VersionStore(workspace, scenario).rows(),
        SCENARIO.tags(workspace).get(scenario, ()),
    )
    _forget(workspace, scenario)
    st.session_state[_backup_key(workspace)] = backup


def deleted_name(workspace: Workspace) -> str | None:
    """The name of the scenario that can be had back."""
    backup = st.session_state.get(_backup_key(workspace))
    return backup.name if isinstance(backup, DeletedScenario) else None


def undelete(workspace: Workspace) -> str:
    """Put the deleted scenario back and choose it; its name, another where that was taken meanwhile."""
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
    """End what searches for or explains a scenario's plan: another one takes its place."""
    jobs.end(workspace, (PLAN, EXPLAIN), scenario)
    _drop_backup(workspace)


def remove(workspace: Workspace, scenario: str) -> None:
    """Forget a scenario with its sweep, drafts and versions. Work on it ends, and the address names it no more."""
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
    """The current scenario's plan, None where it has not been planned yet."""
    scenario = SCENARIO.current(workspace)
    return read(workspace, "plan", scenario) if scenario else None


def request_and_plan(workspace: Workspace) -> tuple[PlanRequest | None, PlanOutcome | None]:
    """The current scenario's plan request and plan."""
    scenario = SCENARIO.current(workspace)
    if scenario is None:
        return None, None
    return read(workspace, "plan_request", scenario), read(workspace, "plan", scenario)


def colours(workspace: Workspace) -> dict[str, str]:
    """One colour a model name, the same on every page: the request's models first, then the others profiled here."""
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
    """Look at what was just stored: a search for the same scenario ends, and its plan is to be explained."""
    jobs.end(workspace, (PLAN,), scenario)
    _drop_backup(workspace)
    SCENARIO.choose(workspace, scenario)
    request_explanation(workspace)


def await_plan(workspace: Workspace, scenario: str, before: Artifact | None) -> None:
    """Wait for a first plan of what was just started, another than `before`: to draw the page without it, and then
    once more with it, would take longer. A plan that takes more than `FIRST_PLAN_S` is not waited for, a proof that
    takes more than `PROOF_S` neither."""
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) < FIRST_PLAN_S and jobs.running(workspace, (PLAN,), scenario):
        if waited > PROOF_S and workspace.find("plan", scenario) != before:
            return
        time.sleep(LOOK_S)


def request_explanation(workspace: Workspace) -> None:
    """What this session plans next is explained as soon as it stands: nobody should have to ask."""
    st.session_state[f"explain next {workspace.id}"] = True


def take_explanation_request(workspace: Workspace) -> bool:
    """Whether the plan that stands now is to be explained without being asked; once."""
    return bool(st.session_state.pop(f"explain next {workspace.id}", False))


def start_explain(workspace: Workspace, scenario: str) -> str:
    """Explain the stored plan in a job of its own. Its job id."""
    return jobs.start(workspace, f"Explain {scenario}", EXPLAIN, RequestParameters(scenario))
