"""The pages of training runs: all of them, or the one of the address."""

from __future__ import annotations

import streamlit as st

from app.object_pages import unknown_object
from app.runs import list_page, page
from app.session.result_kind import RUN
from app.shell import address, frame


def render_list() -> None:
    """The page of all runs; addresses of earlier versions name one here, whose page it then is."""
    opened = frame.opened_workspace()
    requested = st.query_params.get(RUN.word)
    # Opening a run from here leaves an address with its name in the history, which Streamlit writes. Back leads to it,
    # and must show all runs.
    if requested and requested != st.session_state.get(list_page.OPENED_RUN):
        render()
        return
    if not requested:
        address.set_address(opened, {})
    frame.render_head(opened, "Training runs")
    list_page.render(opened)


def render() -> None:
    """The page of the run that the address names, or of all runs."""
    opened = frame.opened_workspace()
    requested = st.query_params.get(RUN.word)
    if not requested:
        render_list()
        return
    known = RUN.names(opened)
    if requested not in known:
        unknown_object.render(opened, "run", requested, known, "Run")
        return
    RUN.choose(opened, requested)
    address.set_address(opened, {RUN.word: requested})
    frame.render_head(opened, requested, "Run", requested)
    # Its place by age gives its colour, as in the table of all runs.
    page.render(opened, requested, list(reversed(known)).index(requested))
