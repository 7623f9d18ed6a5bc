"""The navigation is the pipeline: which pages there are, in which order, and which have a result."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import streamlit as st

from app.session import scenario
from torchsplit_core.workspace.store import Workspace

PAGES_FOLDER = Path(__file__).resolve().parents[2] / "pages"


@dataclass(frozen=True, slots=True)
class Step:
    """A page: its name in the menu and the kinds of result that fill its dot."""

    title: str
    file: str
    kinds: tuple[str, ...] = ()


PIPELINE = (
    Step("Models", "models.py", ("graph", "profile", "upload")),
    Step("Graph", "graph.py", ("graph",)),
    Step("Profile", "profile.py", ("profile",)),
    Step("Partition", "partition.py", ("partition",)),
    Step("Plan", "plan.py", ("plan",)),
    Step("Deploy", "deploy.py", ("plan",)),
)
LANGUAGE_MODELS = (Step("Place", "place.py", ("placement",)),)
WORKSPACE = Step("Workspace", "workspace.py")
PROFILE_TAB = "profile-tab"
"""The key of the Profile page's tabs, by which another page opens one."""


def _filled(step: Step, workspace: Workspace, kinds: Container[str]) -> bool:
    if step.title == "Deploy":
        plan = scenario.plan(workspace)
        return plan is not None and any(gpu.slices for gpu in plan.gpus)
    return any(kind in kinds for kind in step.kinds)


def _page(step: Step, title: str) -> Any:
    first = step is PIPELINE[0]
    return st.Page(PAGES_FOLDER / step.file, title=title, default=first)


def menu(workspace: Workspace) -> Any:
    """Draw the navigation, a filled dot beside every step that has a result, and return the page to run."""
    kinds = {artifact.kind for artifact in workspace.artifacts()}
    groups = [
        [_page(step, f"{'●' if _filled(step, workspace, kinds) else '○'} {step.title}") for step in steps]
        for steps in (PIPELINE, LANGUAGE_MODELS)
    ]
    own = [_page(WORKSPACE, workspace.name)]
    return st.navigation({"": groups[0], "Language models": groups[1], "Workspace": own}, expanded=True)


def go(title: str) -> NoReturn:
    """Leave for the page of that title."""
    st.switch_page(_page(_step(title), title))


def link(title: str, label: str) -> None:
    """A link to the page of that title."""
    st.page_link(_page(_step(title), title), label=label)


def _step(title: str) -> Step:
    return next(step for step in (*PIPELINE, *LANGUAGE_MODELS, WORKSPACE) if step.title == title)
