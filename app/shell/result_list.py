"""The page that lists the results of a kind, and the row above the page of one: another, a new one, removal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from app.session.result_kind import ResultKind
from app.shell import navigation
from torchsplit_core import jobs
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.workspace.store import Workspace


@dataclass(frozen=True)
class ResultList:
    """The list page of a kind of requests with outcomes: a card for each, and the form of a new one.

    `title` is that of the page, `result_title` of the page of one. `verb` says what is done with a request: "placed".
    `describe_request` describes a request, `proof` how far its outcome is proven, and `figures` the best that it has,
    empty where it has nothing. `render_new` draws the form of a new one, the `first` or another.
    """

    kind: ResultKind
    title: str
    result_title: str
    icon: str
    introduction: str
    verb: str
    describe_request: Callable[[Any], str]
    figures: Callable[[Any, Any], str]
    proof: Callable[[Any], Sequence[str]]
    render_new: Callable[..., None]

    def render(self, workspace: Workspace) -> None:
        """Draw the page below its heading."""
        known = self.kind.names(workspace)
        self.render_cards(workspace, known)
        if not known:
            self.render_empty(workspace)
            return
        st.header(f"New {self.kind.word}", anchor=False)
        self.render_new(workspace, first=False)

    def render_empty(self, workspace: Workspace) -> None:
        """Draw the page of a workspace that has no such result."""
        st.write(f"{self.introduction} Begin with an example.")
        self.render_new(workspace, first=True)

    def render_cards(self, workspace: Workspace, names: Sequence[str]) -> None:
        """Draw a card for each of these results."""
        for name in names:
            with st.container(border=True, key=f"{self.kind.word}-{name}", gap="xsmall"):
                navigation.link(self.result_title, escape_markdown(name), name, icon=self.icon)
                st.caption(escape_markdown(self.describe(workspace, name)))

    def describe(self, workspace: Workspace, name: str) -> str:
        """Describe the request, and how good its outcome is."""
        stored = self.kind.load(workspace, name)
        problem = self.describe_request(stored.request)
        if stored.outcome is None:
            return f"{problem}: not {self.verb} yet"
        figures, proof = self.figures(stored.request, stored.outcome), self.proof(stored.outcome)[0]
        if not figures:
            return f"{problem}: {proof}"
        return f"{problem}: {figures}, {proof}{'' if stored.is_current else ', of an earlier request'}"

    def render_header(self, workspace: Workspace, name: str, known: Sequence[str]) -> None:
        """Draw the row above the page of a result: switch to another, make a new one, remove this one."""
        word = self.kind.word
        with st.container(horizontal=True, vertical_alignment="center"):
            render_switch(workspace, self.kind, name, known)
            navigation.link(self.title, f"New {word}", icon=":material/add:")
            if st.button("Remove", key=f"{word}-remove", help=f"Forget this {word} and its request."):
                jobs.end(workspace, self.kind.job_kinds, name)
                self.kind.forget(workspace, name)
                st.rerun()


def render_switch(workspace: Workspace, result_kind: ResultKind, name: str, known: Sequence[str]) -> None:
    """Draw the choice among the known results; the one that the user chooses opens at the same tab."""
    word = result_kind.word
    chosen = st.selectbox(
        word.capitalize(), known, known.index(name), key=f"{word}-choice {name} {len(known)}", width=320,
        label_visibility="collapsed",
    )  # fmt: skip
    if chosen != name:
        result_kind.choose(workspace, chosen)
        st.rerun()
