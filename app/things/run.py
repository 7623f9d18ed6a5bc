"""The pages of training runs: all of them, or the one of the address."""

from __future__ import annotations

import streamlit as st

from app.runs import page, shelf
from app.session.thing import RUN
from app.shell import address, frame
from app.things import unknown


def show_all() -> None:
    """The page of all runs; addresses of earlier versions name one here, whose page it then is."""
    opened = frame.opened_workspace()
    asked = st.query_params.get(RUN.word)
    # Whoever opens a run from here leaves an address with its name behind, the library's doing: Back leads to that
    # one, and all runs are what was there.
    if asked and asked != st.session_state.get(shelf.LEFT_FOR):
        show()
        return
    if not asked:
        address.settle(opened, {})
    frame.head(opened, "Training runs")
    shelf.show(opened)


def show() -> None:
    """The page of the run that the address names, of all where it names none."""
    opened = frame.opened_workspace()
    asked = st.query_params.get(RUN.word)
    if not asked:
        show_all()
        return
    known = RUN.known(opened)
    if asked not in known:
        unknown.show(opened, "run", asked, known, "Run")
        return
    RUN.choose(opened, asked)
    address.settle(opened, {RUN.word: asked})
    frame.head(opened, asked, "Run", asked)
    # Its age says its colour, the same as in the table of all.
    page.show(opened, asked, list(reversed(known)).index(asked))
