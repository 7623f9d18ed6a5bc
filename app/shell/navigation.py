"""The pages by the thing they are about, the menu at the side, and the links between pages.

A link carries its whole address (workspace, thing, tab), so that the opened page adds nothing to it: each step is one
entry of the browser's history, and Back returns to the page before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import streamlit as st

from app.components.presses import watch_presses
from app.components.skip import skip_link
from app.session import workspace as workspaces
from app.session.result_kind import MODEL, PLACEMENT, RESULT_KINDS, RUN, SCENARIO, TRAINING
from app.shell import address
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace

PAGES_FOLDER = Path(__file__).resolve().parents[2] / "pages"
PROFILE_TAB = "profile-tab"
"""The key of the profile views, by which another page opens one of them."""


@dataclass(frozen=True, slots=True)
class PageLink:
    """Where a title leads: the file of the page, the kind of thing it is about, the tab it opens."""

    file: str
    about: str = ""
    tab: str = ""


PAGE_LINKS: Mapping[str, PageLink] = {
    "Overview": PageLink("overview.py"),
    "Models": PageLink("models.py"),
    "Graph": PageLink("model.py", MODEL.word),
    "Profile": PageLink("model.py", MODEL.word, "profile"),
    "Partition": PageLink("model.py", MODEL.word, "cuts"),
    "Plan": PageLink("plan.py", SCENARIO.word),
    "Present": PageLink("present.py", SCENARIO.word),
    "Run it": PageLink("plan.py", SCENARIO.word, "run-it"),
    "Deploy": PageLink("plan.py", SCENARIO.word, "deploy"),
    "Placements": PageLink("placements.py"),
    "New placement": PageLink("placements.py", tab="placements"),
    "Place": PageLink("placement.py", PLACEMENT.word),
    "Trainings": PageLink("trainings.py"),
    "Train": PageLink("training.py", TRAINING.word),
    "Runs": PageLink("runs.py"),
    "Run": PageLink("run.py", RUN.word),
    "Evaluation": PageLink("evaluation.py"),
    "Activity": PageLink("activity.py"),
    "Workspace": PageLink("workspace.py"),
    "Host": PageLink("host.py"),
    "Help": PageLink("help.py"),
}
OLD_PAGES = ("graph.py", "profile.py", "partition.py", "deploy.py", "place.py")
"""Pages under the addresses of earlier versions, which show the same content."""
PATHS = (
    "",
    *dict.fromkeys(Path(file).stem for file in (*(entry.file for entry in PAGE_LINKS.values()), *OLD_PAGES)),
)
"""The paths of all pages below the address of the dashboard; the first page has two."""
BARE_PAGES = ("present",)
"""Paths of pages that fill the window, without the menu and the bar."""
TITLES = {"Graph": "Model", "Place": "Placement", "Train": "Training"}
"""Titles of pages, where they differ from the first link to their file."""


def menu(workspace: Workspace) -> Any:
    """Draw the menu and return the page to run."""
    # By file: several links may lead to the tabs of one page.
    titles: dict[str, str] = {}
    for title, page_link in PAGE_LINKS.items():
        titles.setdefault(page_link.file, TITLES.get(title, title))
    pages = [_page(file, title) for file, title in titles.items()]
    pages += [_page(file, Path(file).stem.capitalize()) for file in OLD_PAGES]
    chosen = st.navigation(pages, position="hidden")
    if chosen.url_path in BARE_PAGES:
        return chosen
    with st.sidebar, st.container(key="menu", gap="xxsmall"):
        _menu(workspace)
    return chosen


def _menu(workspace: Workspace) -> None:
    """Draw the kinds of the workspace, and below a kind the thing that the user looks at."""
    skip_link()
    watch_presses()
    stored = workspace.artifacts()
    link("Overview", "Overview", icon=":material/home:")
    link("Models", "Models", icon=":material/deployed_code:")
    sources = sorted(named_results.names_in(stored, *MODEL.artifact_kinds))
    _current("Graph", MODEL.current(workspace, sources))
    name = SCENARIO.current(workspace, named_results.names_in(stored, "plan_request", "plan"))
    link("Plan", "Plan", name, icon=":material/view_quilt:")
    link("Placements", "LLM placements", icon=":material/account_tree:")
    _current("Place", PLACEMENT.current(workspace, named_results.names_in(stored, "placement_request")))
    link("Trainings", "Training", icon=":material/model_training:")
    _current("Train", TRAINING.current(workspace, named_results.names_in(stored, "strategy_request")))
    link("Runs", "Training runs", icon=":material/monitoring:")
    _current("Run", RUN.current(workspace))
    link("Evaluation", "Evaluation", icon=":material/fact_check:")
    link("Workspace", "Workspace", icon=":material/folder:")
    link("Host", "Host", icon=":material/memory:")


def _current(title: str, name: str | None) -> None:
    if name is not None:
        with st.container(key=f"menu-{title}", gap=None):
            link(title, escape_markdown(_shorten(name)), name)


def _shorten(name: str, most: int = 17) -> str:
    """The name, or both its ends where it is too long for the menu."""
    return name if len(name) <= most else f"{name[: most - 12]}…{name[-11:]}"


def _page(file: str, title: str) -> Any:
    return st.Page(PAGES_FOLDER / file, title=title, default=file == "overview.py")


def go(title: str, name: str | None = None) -> NoReturn:
    """Open the page of that title, about `name` or about the current thing."""
    page_link = PAGE_LINKS[title]
    st.switch_page(_page(page_link.file, title), query_params=query(title, name))


def link(
    title: str,
    label: str,
    name: str | None = None,
    *,
    icon: str | None = None,
    workspace: Workspace | None = None,
    help: str | None = None,
) -> None:
    """Draw a link to the page of that title, about `name` or about the current thing."""
    st.page_link(
        _page(PAGE_LINKS[title].file, title),
        label=label,
        icon=icon,
        help=help,
        query_params=query(title, name, workspace),
    )


def query(title: str, name: str | None = None, workspace: Workspace | None = None) -> dict[str, str]:
    """The query parameters with which a title shows a thing."""
    page_link = PAGE_LINKS[title]
    opened = workspace or workspaces.current()
    wanted: dict[str, str | None] = {}
    if page_link.about:
        wanted[page_link.about] = name or (
            _CURRENT_NAME[page_link.about](opened) if workspace is None else None
        )
    if page_link.tab:
        wanted[address.TAB] = page_link.tab
    if title == "Profile" and (view := st.session_state.get(PROFILE_TAB)):
        wanted[address.VIEW] = address.slug(view)
    return address.parameters(opened, wanted)


_CURRENT_NAME: Mapping[str, Callable[[Workspace], str | None]] = {
    kind.word: kind.current for kind in RESULT_KINDS
}
"""A function per kind that returns the name of the current thing."""
