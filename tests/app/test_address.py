"""What stands in the address of a page, and what a page makes of an address."""

import re
from pathlib import Path

import pytest

from app.format.glossary import read_entries
from app.overview.glossary import search_entries
from app.session import workspace_list
from tests.support.app.page import turn_to
from tests.support.app.values import SOURCE, graph, profile
from torchsplit_core.jobs import runner
from torchsplit_core.jobs.job_kinds import TRACE


@pytest.mark.parametrize(("name", "key", "title", "wanted"), [
    ("model", "model-tab", "Profile", {"model": SOURCE, "tab": "profile"}),
    ("model", "profile-tab", "Table", {"model": SOURCE, "tab": "profile", "view": "table"}),
    ("model", "graph-tab", "Tables", {"model": SOURCE, "view": "tables"}),
    ("plan", "plan-tab", "By hand", {"scenario": "review", "tab": "by-hand"}),
    ("plan", "plan-tab", "Deploy", {"scenario": "review", "tab": "deploy"}),
])  # fmt: skip
def test_a_link_opens_the_tab_that_was_seen_and_keeps_its_address(name, key, title, wanted, page, filled):
    opened = page(name, filled, **wanted)
    assert opened.session_state[key] == title
    assert dict(opened.query_params) == {"workspace": filled.id} | wanted


def test_a_tab_that_is_turned_stands_in_the_address_and_an_earlier_address_turns_it_back(page, filled):
    opened = page("plan", filled)
    assert "tab" not in opened.query_params
    turn_to(opened, "plan-tab", "Sweep")
    assert opened.query_params["tab"] == "sweep"
    del opened.query_params["tab"]
    opened.run()
    assert opened.session_state["plan-tab"] == "Plan" and not opened.exception


def test_a_link_names_the_model_among_several(page, filled):
    filled.put("graph", "another", graph())
    opened = page("model", filled, model=SOURCE)
    assert opened.title[0].value.replace("\\", "") == SOURCE
    assert page("model", filled, model="another").title[0].value == "another"


@pytest.mark.parametrize(
    ("old", "title"),
    [("graph", "Graph"), ("profile", "Profile"), ("partition", "Cuts"), ("deploy", "Deploy")],
)
def test_an_address_of_an_earlier_version_shows_the_same_thing(old, title, page, filled):
    opened = page(old, filled)
    assert opened.session_state["plan-tab" if old == "deploy" else "model-tab"] == title


def test_activity_has_the_outcome_of_work_and_failures_stand_where_they_belong(page, filled):
    record = filled.add_job("Trace it", TRACE, {"source": SOURCE})
    runner._write(filled.store, record.id, {"state": "failed", "fault": "It cannot be exported."})
    runner._progress_path(filled.store, record.id).with_suffix(".log").write_text("what it printed")
    opened = page("activity", filled)
    assert "It cannot be exported." in [element.value.replace("\\", "") for element in opened.markdown]
    assert runner.log(filled, record.id) == "what it printed"
    assert len(page("model", filled).error) == 1
    assert not page("plan", filled).error and not opened.error


def test_workspaces_are_listed_with_what_is_in_them(store):
    store.create("empty")
    unnamed = store.create("workspace 3")
    unnamed.put("graph", SOURCE, graph())
    unnamed.put("profile", SOURCE, profile())
    (found,) = workspace_list.list_workspaces(store)
    assert (found.name, found.counts) == (f"workspace 3: {SOURCE}", "1 graph, 1 profile")
    assert found.description.endswith("just now")
    assert [workspace_list.format_age(age) for age in (0, 60, 7200, 86400 * 3)] == [
        "just now", "1 minute ago", "2 hours ago", "3 days ago",
    ]  # fmt: skip


def test_every_word_of_the_metrics_is_found_in_help():
    text = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    told = re.findall(r"^\| \*\*(.+?)\*\*", text, re.MULTILINE)
    assert [entry.title for entry in read_entries()] == told and len(told) > 80
    assert search_entries(read_entries(), "normalised")[0].title.startswith("normalised")
    assert not search_entries(read_entries(), "no such word at all")
