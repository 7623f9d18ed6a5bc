"""Where the time of a job went: its spans as a timeline, and what they add up to."""

from __future__ import annotations

import streamlit as st

from app.charts.runs.spans import span_bars
from app.shell import widgets
from torchsplit_core import jobs
from torchsplit_core.jobs import JobStatus
from torchsplit_core.pictures.numbers import counted, escape_markdown
from torchsplit_core.values import InputFault
from torchsplit_core.workspace.store import Workspace

MOST_BARS = 60
"""Bars of the timeline; of more spans, those that took longest."""


def render(workspace: Workspace, status: JobStatus) -> None:
    """The timeline of a job with its figures; where there is none, how to get one."""
    try:
        tree = jobs.job_spans(workspace, status.id)
    except InputFault as fault:
        st.error(escape_markdown(str(fault)))
        return
    if tree is None:
        if status.state == "running":
            st.caption("No step of it has ended yet.")
        else:
            st.caption(
                "It recorded no spans. Jobs record them where `torchsplit[telemetry]` is installed and "
                "`TORCHSPLIT_TELEMETRY` is not set, or is `file`; then start the work again."
            )
        return
    shown = tree.nodes
    if len(shown) > MOST_BARS:
        longest = {id(node) for node in sorted(shown, key=lambda node: -node.total_ms)[:MOST_BARS]}
        shown = tuple(node for node in shown if id(node) in longest)
        st.caption(f"The {MOST_BARS} longest of {counted(len(tree.nodes), 'span')}.")
    widgets.chart(
        span_bars(shown, dark=widgets.is_dark()),
        f"timeline of {status.title}",
        "timeline",
        key=f"spans-{status.id}",
        alt=f"The spans of {status.title} on a time axis: " + "; ".join(node.label for node in shown[:5]),
    )
    slowest = tree.slowest(1)[0]
    st.caption(
        escape_markdown(
            "Amber: the critical path, the work that the end waited for. "
            f"Most time by itself: {slowest.label}, {slowest.self_ms:,.0f} ms of {tree.wall_ms:,.0f} ms."
        )
    )
    for note in tree.notes:
        st.caption(escape_markdown(f"Note: {note}."))
