"""Every page on a store of the version before: nothing is missing, its failed work is told and goes on by name."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tests.support.paths import ROOT
from torchsplit_core.jobs.names import SWEEP, SweepParameters
from torchsplit_core.workspace.store import Store, Workspace

OLD = ROOT / "tests" / "workspace" / "store_version_4"


@pytest.fixture
def old(tmp_path: Path) -> Workspace:
    home = shutil.copytree(OLD, tmp_path / "home")
    database = sqlite3.connect(home / "workspaces.sqlite")
    database.executescript((home / "workspaces.sql").read_text())
    database.close()
    store = Store()
    assert store.root == home
    return store.open(store.workspaces()[0].id)


@pytest.mark.parametrize(
    "name", ["models", "graph", "profile", "partition", "plan", "place", "deploy", "workspace"]
)
def test_every_page_opens(
    name: str, old: Workspace, page: Callable[..., AppTest], started: list[tuple[str, Any]]
) -> None:
    opened = page(name, old)
    told = [element.value.replace("\\", "") for element in opened.error]
    assert len([text for text in told if " failed. " in text]) == 3
    assert "Sweep swept failed. It was killed." in told
    # The panel shows the newest three; both jobs that ran died with their server, and all three go on.
    resume = [button for button in opened.button if button.label == "Resume"]
    assert len(resume) == 3
    resume[-1].click().run()
    assert not opened.exception
    assert started == [(SWEEP, SweepParameters("swept", "gpus", "A30-24GB", (1.0, 2.0, 3.0, 4.0), 60.0))]


def test_work_of_no_known_kind_is_told_and_offers_no_resume(
    old: Workspace, page: Callable[..., AppTest]
) -> None:
    newer = [record.id for record in old.job_records()][:4]
    old.set_setting("dismissed jobs", newer)
    opened = page("models", old)
    assert "Fly failed. It was killed." in [element.value.replace("\\", "") for element in opened.error]
    assert "Resume" not in [button.label for button in opened.button]
