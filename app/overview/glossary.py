"""The page Help: the words of the program, with a search, the guides, and the GPU types."""

from __future__ import annotations

import re

import streamlit as st

from app.format.glossary import DOCS, Word, words
from app.overview import gpu_types
from torchsplit_core.workspace.store import Workspace

GUIDES = {
    "start/your-model.md": "Bring a model of your own",
    "guides/exploring.md": "Explore a graph",
    "guides/measuring.md": "Measure",
    "guides/profiles.md": "Profiles from tables",
    "guides/partitions.md": "Cut a model",
    "guides/what-if.md": "What if",
    "guides/sweeps.md": "Sweeps",
    "reference/evaluation.md": "Evaluation",
    "guides/serving.md": "Serving a plan",
    "guides/deploying.md": "Deploy",
    "guides/placement.md": "Place an LLM",
    "guides/shared-server.md": "A server for several people",
}


def matching(every: tuple[Word, ...], text: str) -> list[Word]:
    """Those with every word of the text, in the title before in the meaning."""
    wanted = text.lower().split()
    found = [
        one
        for one in every
        if all(part in f"{one.title} {one.meaning} {one.shown}".lower() for part in wanted)
    ]
    return sorted(found, key=lambda one: not all(part in one.title.lower() for part in wanted))


def show(workspace: Workspace) -> None:
    """The whole page."""
    del workspace  # The words are the same in all.
    known, guides, types = st.tabs(["Words", "Guides", "GPU types"])
    with known:
        _words()
    with guides:
        name = st.selectbox("Guide", list(GUIDES), format_func=GUIDES.__getitem__, key="help-guide")
        with st.container(border=True):
            st.markdown(_readable((DOCS / name).read_text()))
    with types:
        gpu_types.show()


def _words() -> None:
    every = words()
    text = st.text_input(
        "Search the words",
        key="help-search",
        placeholder="for instance: bound, gap, leximin, share, normalised",
    )
    found = matching(every, text)
    st.caption(f"{len(found)} of {len(every)} words" if text else f"{len(every)} words")
    chapter = ""
    for one in found:
        if one.chapter != chapter and not text:
            st.header(one.chapter, anchor=False)
            chapter = one.chapter
        where = "" if one.shown in ("", "—") else f" :gray[Shown: {_escaped(one.shown)}]"
        st.markdown(f"**{_escaped(one.title)}** — {_escaped(one.meaning)}{where}")


def _escaped(text: str) -> str:
    """Text that has no marks but those of code: a dollar would be a formula."""
    return re.sub(r"([$\[\]~])", r"\\\1", text.replace("\\|", "|"))


def _readable(text: str) -> str:
    """A guide without its title, its pictures, and links to files that the dashboard does not serve."""
    text = text.partition("\n")[2]
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)\n?", "", text)
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)
