"""The versions of a scenario: what changed in each and what it reached; one can be restored or compared."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import streamlit as st

from app.components import saving
from app.format.html import table_html
from app.plans import compare
from app.plans.draft import bar, change_summary
from app.plans.summary import SERVES_NOBODY, SOLVED
from app.session import draft as drafts
from app.session.draft import Draft
from app.shell import frame
from torchsplit_core.pictures.numbers import UNKNOWN, escape_markdown, short
from torchsplit_core.planning.request.difference import difference
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import PlanOutcome, PlanRequest
from torchsplit_core.workspace.drafts import StoredDraft
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.versions import MOST_VERSIONS, Version, VersionStore

STATES = {
    "optimal": "proven optimal",
    "feasible": "not proven",
    "infeasible": "infeasible, proven",
    "timeout": "no plan found in time",
    "": "not planned",
}


def render(
    workspace: Workspace, name: str, request: PlanRequest, plan: PlanOutcome | None, draft: Draft | None
) -> None:
    """The tab: all versions, and the buttons for one of them."""
    _other_tabs(workspace, name, request, draft)
    store = VersionStore(workspace, name)
    versions = store.list()
    if not versions:
        st.write(
            f"Here you will see the last {MOST_VERSIONS} versions, each with request and plan. One is stored "
            "whenever a plan is proven or the request is replaced."
        )
        return
    _undo(workspace, name, request, versions, draft)
    saving.exportable_table(versions_table(versions), "Versions", f"{name}.versions", key="versions")
    chosen = st.selectbox(
        "Version", versions, min(1, len(versions) - 1), key=f"version {name}",
        format_func=lambda version: f"v{version.number} · {format_time(version)} · {describe_version(version)}",
    )  # fmt: skip
    state = store.load(chosen.number)
    if state is None:
        st.info("This version is no longer stored.")
        return
    version_request, outcome = state
    with st.container(horizontal=True):
        about = "To look at, to change, to keep or to discard."
        if st.button("Open as draft", key="version-draft", help=about):
            solved = outcome if outcome is not None and outcome.status in SOLVED else None
            note = f"v{chosen.number} as it was" if solved else ""
            drafts.change(workspace, name, request, version_request, plan=solved, origin=note)
            st.rerun()
        barred = outcome is None or draft is not None
        about = "Restores request and plan at once; the present state remains as a version."
        if st.button("Restore", key="version-restore", disabled=barred, help=about):
            _restore(workspace, name, request, chosen)
    # A version is stored before its plan is explained.
    plans = [planned and replace(planned, explanation=None) for planned in (outcome, plan)]
    if version_request == request and plans[0] == plans[1]:
        only = "This is the only version" if len(versions) == 1 else f"v{chosen.number} is what stands now"
        remedy = (
            "Keep a changed draft, which makes another one"
            if len(versions) == 1
            else "Choose another version"
        )
        st.info(f"{only}: there is nothing to compare it with. {remedy}.")
    elif outcome is not None and plan is not None and {outcome.status, plan.status} <= set(SOLVED):
        titles = (f"v{chosen.number}", "now")
        compare.side_by_side(workspace, titles, (version_request, request), (outcome, plan))


def _other_tabs(workspace: Workspace, name: str, request: PlanRequest, draft: Draft | None) -> None:
    """Drafts of other tabs, open or closed; this tab can take a copy."""
    for number, other in enumerate(drafts.other_drafts(workspace, name, request, draft)):
        summary = change_summary.describe_draft(other.said, difference(request, other.request))
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(escape_markdown(f"Another tab has a draft: {summary}"), width="stretch")
            why = "Discard or keep your own draft first." if draft is not None else None
            if st.button("Open a copy here", key=f"draft-of-{number}", disabled=draft is not None, help=why):
                drafts.take_over(workspace, name, other)
                st.rerun()


def _undo(
    workspace: Workspace, name: str, request: PlanRequest, versions: Sequence[Version], draft: Draft | None
) -> None:
    """The button that restores the version before the newest, which stays a version."""
    back = next((version for version in versions[1:] if version.status), None)
    if back is None:
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        hint = "Discard or keep the draft first." if draft is not None else None
        if st.button("Undo", key="version-undo", disabled=draft is not None, help=hint):
            _restore(workspace, name, request, back)
        st.markdown(escape_markdown(f"back to v{back.number}: {describe_version(back)}"), width="stretch")


def _restore(workspace: Workspace, name: str, request: PlanRequest, version: Version) -> None:
    """Restore the request and plan of a version."""
    state = VersionStore(workspace, name).load(version.number)
    if state is None or state[1] is None:
        return
    with frame.fault_boundary():
        note = f"v{version.number} again"
        bar.store_plan(workspace, name, request, StoredDraft(request_hash(request), state[0], state[1], note))
        frame.notify(f"This is v{version.number} again; what stood before is a version too.")
        st.rerun()


def versions_table(versions: Sequence[Version]) -> str:
    """HTML of all versions, newest first."""
    head = (
        '<th>version</th><th>kept</th><th class="n">worst served, ×</th><th class="n">req/s</th><th class="n">GPUs</th>'
        "<th>plan</th><th>what changed</th>"
    )
    return table_html(head, [_row(version) for version in versions])


def _row(version: Version) -> str:
    figures, numbers = version.figures, (UNKNOWN, UNKNOWN, UNKNOWN)
    if figures:
        numbers = (short(figures.least), short(figures.total_rps), short(figures.gpus_used))
    cells = "".join(f'<td class="n">{text}</td>' for text in numbers)
    state = SERVES_NOBODY if figures and not figures.total_rps else STATES.get(version.status, version.status)
    return (
        f'<tr><td class="name">v{version.number}</td><td class="name">{format_time(version)}</td>{cells}'
        f"<td>{state}</td><td>{html.escape(describe_version(version))}</td></tr>"
    )


def format_time(version: Version) -> str:
    """The time in the server's time zone, which is mostly the user's."""
    return datetime.fromtimestamp(version.kept).strftime("%d %b %H:%M")


def describe_version(version: Version) -> str:
    """What a version changed, or where its plan is from."""
    words = " · ".join(filter(None, (version.note, *version.changes)))
    return words or ("the first one kept" if version.number == 1 else "planned again")
