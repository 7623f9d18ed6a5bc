"""The pages of training runs: all of them, or the one of the address."""

from __future__ import annotations

import streamlit as st

from app.runs import page, shelf
from app.session.thing import RUN
from app.shell import address, frame
from app.things import unknown


def show() -> None:
    """The whole page."""
    opened = frame.opened_workspace()
    asked = st.query_params.get(RUN.word)
    if not asked:
        address.settle(opened, {})
        frame.head(opened, "Training runs")
        shelf.show(opened)
        return
    known = RUN.known(opened)
    if asked not in known:
        unknown.show(opened, "run", asked, known, "Run")
        return
    RUN.choose(opened, asked)
    address.settle(opened, {RUN.word: asked})
    frame.head(opened, asked, "Run", asked)
    page.show(opened, asked)
