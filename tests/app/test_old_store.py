"""Every page on a store of the version before: nothing is missing, its failed work is told and goes on by name."""

import shutil
import sqlite3

import pytest

from tests.support.app.page import press
from tests.support.paths import ROOT
from torchsplit_core.jobs.job_kinds import SWEEP, SweepParameters
from torchsplit_core.workspace.store import Store, Workspace

OLD = ROOT / "tests" / "workspace" / "store_version_4"


@pytest.fixture
def old(tmp_path) -> Workspace:
    home = shutil.copytree(OLD, tmp_path / "home")
    database = sqlite3.connect(home / "workspaces.sqlite")
    database.executescript((home / "workspaces.sql").read_text())
    database.close()
    store = Store()
    assert store.root == home
    return store.open(store.workspaces()[0].id)


@pytest.mark.parametrize(("name", "failed", "started_again"), [
    ("models", 3, ()),
    ("model", 1, ()),
    ("graph", 1, ()),
    ("plan", 2, (SWEEP, SweepParameters("swept", "gpus", "A30-24GB", (1.0, 2.0, 3.0, 4.0), 60.0))),
    ("deploy", 2, ()),
    ("place", 0, ()),
    ("workspace", 0, ()),
])  # fmt: skip
def test_every_page_opens_with_failures_that_belong_there(name, failed, started_again, old, page, started):
    opened = page(name, old)
    told = [element.value.replace("\\", "") for element in opened.error]
    assert len([text for text in told if " failed. " in text]) == failed
    if started_again:
        assert "Sweep swept failed. It was killed." in told
        press(opened, "Resume")
        assert started == [started_again]


def test_work_of_no_known_kind_is_told_and_offers_no_resume(old, page):
    opened = page("activity", old)
    told = [element.value.replace("\\", "") for element in opened.markdown]
    assert "**Fly**" in told and told[told.index("**Fly**") + 1 :].count("It was killed.") >= 1
    named = {str(button.key) for button in opened.button if button.label == "Resume"}
    fly = next(record.id for record in old.job_records() if record.title == "Fly")
    assert named and f"resume-{fly}" not in named
