"""The page Help: the words of the program, with a search, the guides, and the GPU types."""

from __future__ import annotations

import re

import streamlit as st

from app.format.glossary import DOCS, GlossaryEntry, read_entries
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
    "guides/llm-serving.md": "Serving LLMs",
    "guides/shared-server.md": "A server for several people",
}


def search_entries(entries: tuple[GlossaryEntry, ...], text: str) -> list[GlossaryEntry]:
    """The entries with every word of the text; those with them in the title come first."""
    wanted = text.lower().split()
    texts = {entry: f"{entry.title} {entry.meaning} {entry.shown}".lower() for entry in entries}
    matches = [entry for entry in entries if all(part in texts[entry] for part in wanted)]
    return sorted(matches, key=lambda entry: not all(part in entry.title.lower() for part in wanted))


def render(workspace: Workspace) -> None:
    """The whole page."""
    del workspace  # The words are the same in all.
    known, guides, types = st.tabs(["Words", "Guides", "GPU types"])
    with known:
        _words()
    with guides:
        name = st.selectbox("Guide", list(GUIDES), format_func=GUIDES.__getitem__, key="help-guide")
        with st.container(border=True):
            st.markdown(_guide_markdown((DOCS / name).read_text()))
    with types:
        gpu_types.render()


def _words() -> None:
    entries = read_entries()
    hint = "for instance: bound, gap, leximin, share, normalised"
    text = st.text_input("Search the words", key="help-search", placeholder=hint)
    matches = search_entries(entries, text)
    st.caption(f"{len(matches)} of {len(entries)} words" if text else f"{len(entries)} words")
    chapter = ""
    for entry in matches:
        if entry.chapter != chapter and not text:
            st.header(entry.chapter, anchor=False)
            chapter = entry.chapter
        where = "" if entry.shown in ("", "—") else f" :gray[Shown: {_escape(entry.shown)}]"
        st.markdown(f"**{_escape(entry.title)}** — {_escape(entry.meaning)}{where}")


def _escape(text: str) -> str:
    """Text whose only Markdown is code: a dollar would begin a formula."""
    return re.sub(r"([$\[\]~])", r"\\\1", text.replace("\\|", "|"))


def _guide_markdown(text: str) -> str:
    """A guide without its title, its pictures, and links to files that the dashboard does not serve."""
    text = text.partition("\n")[2]
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)\n?", "", text)
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)
