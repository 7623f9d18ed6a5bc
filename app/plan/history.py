"""The last states of a scenario: what changed in each and what it reached, one had back, one beside what stands."""

from __future__ import annotations

import html
from collections.abc import Sequence
from datetime import datetime

import streamlit as st

from app.components import saving
from app.format.html import table_html
from app.plan import compare
from app.plan.draft import bar, words
from app.plan.summary import SERVES_NOBODY, SOLVED
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


def show(
    workspace: Workspace, name: str, request: PlanRequest, plan: PlanOutcome | None, draft: Draft | None
) -> None:
    """The tab: all versions, and what can be done with one of them."""
    _other_tabs(workspace, name, request, draft)
    kept = VersionStore(workspace, name)
    found = kept.list()
    if not found:
        st.write(
            f"Here you will see the last {MOST_VERSIONS} versions, each with request and plan. One is stored "
            "whenever a plan is proven or the request is replaced."
        )
        return
    _undo(workspace, name, request, found, draft)
    saving.listed(table(found), "Versions", f"{name}.versions", key="versions")
    chosen = st.selectbox(
        "Version",
        found,
        min(1, len(found) - 1),
        format_func=lambda one: f"v{one.number} · {when(one)} · {what(one)}",
        key=f"version {name}",
    )
    state = kept.load(chosen.number)
    if state is None:
        st.info("This version is no longer stored.")
        return
    asked, outcome = state
    with st.container(horizontal=True):
        if st.button(
            "Open as draft", key="version-draft", help="To look at, to change, to keep or to discard."
        ):
            solved = outcome is not None and outcome.status in SOLVED
            said = f"v{chosen.number} as it was" if solved else ""
            drafts.change(workspace, name, request, asked, plan=outcome if solved else None, said=said)
            st.rerun()
        if st.button(
            "Restore",
            key="version-restore",
            disabled=outcome is None or draft is not None,
            help="Restores request and plan at once; the present state remains as a version.",
        ):
            _restore(workspace, name, request, chosen)
    if outcome is not None and plan is not None and {outcome.status, plan.status} <= set(SOLVED):
        compare.side_by_side(workspace, (f"v{chosen.number}", "now"), (asked, request), (outcome, plan))


def _other_tabs(workspace: Workspace, name: str, request: PlanRequest, draft: Draft | None) -> None:
    """Drafts of other tabs, open or closed: each stays theirs, and a copy of it can be this tab's."""
    for number, one in enumerate(drafts.others(workspace, name, request, draft)):
        told = words.changes_line(one.said, difference(request, one.request))
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(escape_markdown(f"Another tab has a draft: {told}"), width="stretch")
            why = "Discard or keep your own draft first." if draft is not None else None
            if st.button("Open a copy here", key=f"draft-of-{number}", disabled=draft is not None, help=why):
                drafts.take_over(workspace, name, one)
                st.rerun()


def _undo(
    workspace: Workspace, name: str, request: PlanRequest, found: Sequence[Version], draft: Draft | None
) -> None:
    """One step back: to the version before the newest, which stays one."""
    back = next((one for one in found[1:] if one.status), None)
    if back is None:
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        told = "Discard or keep the draft first." if draft is not None else None
        if st.button("Undo", key="version-undo", disabled=draft is not None, help=told):
            _restore(workspace, name, request, back)
        st.markdown(escape_markdown(f"back to v{back.number}: {what(back)}"), width="stretch")


def _restore(workspace: Workspace, name: str, request: PlanRequest, version: Version) -> None:
    """Make request and plan of a version the scenario's again."""
    state = VersionStore(workspace, name).load(version.number)
    if state is None or state[1] is None:
        return
    with frame.telling():
        said = f"v{version.number} again"
        bar.keep_plan(workspace, name, request, StoredDraft(request_hash(request), state[0], state[1], said))
        frame.say(f"This is v{version.number} again; what stood before is a version too.")
        st.rerun()


def table(found: Sequence[Version]) -> str:
    """HTML of all versions, newest first."""
    head = (
        '<th>version</th><th>kept</th><th class="n">worst served, ×</th><th class="n">req/s</th><th class="n">GPUs</th>'
        "<th>plan</th><th>what changed</th>"
    )
    return table_html(head, [_row(one) for one in found])


def _row(one: Version) -> str:
    figures = one.figures
    numbers = (
        (short(figures.least), short(figures.total_rps), short(figures.gpus_used))
        if figures
        else (UNKNOWN, UNKNOWN, UNKNOWN)
    )
    cells = "".join(f'<td class="n">{text}</td>' for text in numbers)
    state = SERVES_NOBODY if figures and not figures.total_rps else STATES.get(one.status, one.status)
    return (
        f'<tr><td class="name">v{one.number}</td><td class="name">{when(one)}</td>{cells}'
        f"<td>{state}</td><td>{html.escape(what(one))}</td></tr>"
    )


def when(one: Version) -> str:
    """The time by the server's clock, where its user mostly sits."""
    return datetime.fromtimestamp(one.kept).strftime("%d %b %H:%M")


def what(one: Version) -> str:
    """What a version changed of the one before, or whose plan it is."""
    told = [one.note] if one.note else []
    return " · ".join([*told, *one.changes]) or ("the first one kept" if one.number == 1 else "planned again")
