"""Which page shows the result of a job."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.shell import address, navigation
from torchsplit_core.jobs import job_kinds
from torchsplit_core.workspace.store import JobRecord

_TITLES = {
    job_kinds.TRACE: "Graph",
    job_kinds.PROFILE: "Profile",
    job_kinds.PARTITION: "Partition",
    job_kinds.PLAN: "Plan",
    job_kinds.EXPLAIN: "Plan",
    job_kinds.SWEEP: "Plan",
    job_kinds.DAY: "Plan",
    job_kinds.DAY_CURVE: "Plan",
    job_kinds.HELD_OUT: "Plan",
    job_kinds.DAY_REPLAY: "Plan",
    job_kinds.PLACE: "Place",
    job_kinds.PLACEMENT_FRONTIER: "Place",
    job_kinds.DIVISIONS: "Place",
    job_kinds.STRATEGY: "Train",
    job_kinds.STRATEGY_STUDY: "Train",
    job_kinds.QUICK_START: "Plan",
    job_kinds.EVALUATE: "Evaluation",
    job_kinds.APPLY: "Deploy",
    job_kinds.MEASURE: "Run it",
    job_kinds.RUN_HERE: "Run it",
    job_kinds.TRAIN: "Run",
    job_kinds.TRAIN_ON: "Run",
}
"""The title of the page that shows the results of a kind of job."""


def location_of(record: JobRecord) -> tuple[str, str | None] | None:
    """The title and the thing that show a job's result; None for an unknown kind, or where damage hides the name."""
    title = _TITLES.get(record.name)
    if title is None:
        return None
    if not navigation.PAGE_LINKS[title].about:
        return title, None
    name = _subject(record.parameters)
    return None if name is None else (title, name)


def _subject(parameters: Any) -> str | None:
    """The name that a job works on; a damaged store may have anything as its parameters."""
    if not isinstance(parameters, dict):
        return None
    sources = parameters.get("sources")
    first = sources[0] if isinstance(sources, list) and sources else None
    # A quick start has sources too, but is about the scenario that it makes of them.
    candidates = (parameters.get("request"), parameters.get("name"), parameters.get("source"), first)
    return next((text for text in candidates if isinstance(text, str) and text), None)


def is_shown(place: tuple[str, str | None]) -> bool:
    """Whether the open page already shows that."""
    title, name = place
    page_link = navigation.PAGE_LINKS[title]
    if not page_link.about:
        return st.context.url is not None and st.context.url.partition("?")[0].endswith(
            page_link.file.removesuffix(".py")
        )
    tab = st.query_params.get(address.TAB, "")
    return st.query_params.get(page_link.about) == name and page_link.tab in ("", tab)
