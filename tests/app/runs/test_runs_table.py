"""All runs in one table: what it says, what narrows it, tags, and those chosen in one picture."""

import json
from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.charts.runs.curves import colour_of
from app.components.saving import csv_of
from app.runs import list_page
from app.runs import table as rows
from app.session import runs
from app.session.result_kind import LONGEST_TAG, RUN
from tests.app.runs.test_runs_page import kept, opened, table
from tests.support.app.page import open_page, said
from torchsplit_core.workspace.store import Store, Workspace


@pytest.fixture
def three(workspace) -> Workspace:
    """The oldest is finished, the second was interrupted, the newest has not begun."""
    kept(workspace, "diamond-1")
    kept(workspace, "llama-1", steps=4, wanted=9, source="sample:llama")
    kept(workspace, "bert-1")
    (workspace.runs / "bert-1" / "events.jsonl").unlink()
    RUN.tag(workspace, "llama-1", ["baseline", "lr 1e-3"])
    RUN.tag(workspace, "diamond-1", ["baseline"])
    return workspace


def picture(test: AppTest) -> list[dict[str, Any]]:
    """The traces of the page's first chart."""
    return json.loads(test.get("plotly_chart")[0].proto.spec)["data"]


def test_all_runs_stand_in_one_table_that_sorts(page, three):
    shown = table(page("runs", three), "lost ranks")
    assert list(shown["run"]) == ["bert-1", "llama-1", "diamond-1"]
    assert list(shown["state"]) == [rows.NOT_THERE, "interrupted", "finished"]
    assert list(shown["model"])[1:] == ["sample:llama", "sample:diamond"]
    # Numbers as such, and nothing in place of one that is not known.
    assert shown["step"].isna()[0] and list(shown["step"][1:]) == [4, 6] and list(shown["of"][1:]) == [9, 6]
    assert list(shown["loss"][1:]) == [0.5, 2 / 6] and shown["loss"].isna()[0]
    assert list(shown["samples/s"][1:]) == pytest.approx([40, 40])
    assert list(shown["steps/s"][1:]) == pytest.approx([5, 5])
    assert [list(one) for one in shown[rows.CURVE][1:]] == [
        [2, 1, 2 / 3, 0.5],
        [2, 1, 2 / 3, 0.5, 0.4, 2 / 6],
    ]
    assert [list(one) for one in shown["tags"]] == [[], ["baseline", "lr 1e-3"], ["baseline"]]
    assert shown["started"].isna()[0] and shown["started"][1].year >= 2025
    # Of the fixture's far future: nothing is measured later than now.
    assert shown["last measured"][1] >= shown["started"][1] and shown["last measured"][1].year < 2090


def test_the_table_is_narrowed_by_text_state_and_tag(page, three):
    test = page("runs", three)

    def left():
        return list(table(test, "lost ranks")["run"])

    test.multiselect(key="runs-tags").set_value(["baseline"]).run()
    assert left() == ["llama-1", "diamond-1"]
    test.multiselect(key="runs-states").set_value(["finished"]).run()
    assert left() == ["diamond-1"]
    test.text_input(key="runs-find").set_value("llama").run()
    assert "No run is like that." in said(test)
    test.multiselect(key="runs-states").set_value([]).run()
    assert left() == ["llama-1"]


def test_runs_that_are_chosen_share_a_picture_in_the_colours_of_the_table(page, three):
    test = page("runs", three)
    lines = [one for one in picture(test) if one.get("name") in ("llama-1", "diamond-1")]
    assert {line["name"]: line["line"]["color"] for line in lines} == {
        "diamond-1": colour_of(0),
        "llama-1": colour_of(1),
    }
    made = rows.build_frame([rows.table_row(name, None, ()) for name in ("llama-1", "diamond-1")])
    style = rows.style_frame(made, {"diamond-1": 0, "llama-1": 1}, "light").to_html()
    assert style.index(colour_of(1)) < style.index(colour_of(0))
    test.selectbox(key="runs-figure").set_value("steps/s").run()
    assert picture(test)[0]["y"] != lines[0]["y"]
    # By the keyboard, below the table, which follows.
    test.multiselect(key="runs-picked").set_value(["llama-1"]).run()
    assert "diamond-1" not in {one.get("name") for one in picture(test)}
    assert test.session_state[list_page.CHOSEN] == ["llama-1"] and test.multiselect(
        key="runs-picked"
    ).value == ["llama-1"]


def test_a_run_is_tagged_on_its_page_and_the_tags_stay(workspace):
    kept(workspace, "diamond-1")
    test = opened(workspace, "diamond-1")
    test.multiselect(key="run-tags diamond-1").set_value(["  lr   1e-3 ", "baseline"]).run()
    assert RUN.tags(Store().open(workspace.id)) == {"diamond-1": ("lr 1e-3", "baseline")}
    test.multiselect(key="run-tags diamond-1").set_value(["baseline"]).run()
    assert opened(workspace, "diamond-1").multiselect[0].value == ["baseline"]
    # A tag that will not do is told of, and nothing changes.
    test.multiselect(key="run-tags diamond-1").set_value(["baseline", "x" * (LONGEST_TAG + 1)]).run()
    assert not test.exception and "above the most of" in test.error[0].value
    assert test.multiselect[0].value == ["baseline"]
    # What another tab gave it is shown.
    RUN.tag(workspace, "diamond-1", ["of another"])
    test.run()
    assert test.multiselect[0].value == ["of another"]


def test_two_tabs_that_tag_at_once_lose_nothing(workspace):
    RUN.tag(workspace, "a", ["x"])
    RUN.tag(Store().open(workspace.id), "b", ["y"])
    assert RUN.tags(workspace) == {"a": ("x",), "b": ("y",)}


def test_the_file_of_the_table_has_values_and_nothing_for_the_eye(three):
    made = rows.build_frame([rows.table_row("llama-1", runs.view(three, "llama-1"), ("a", "b"))])
    head, line = csv_of(rows.export_frame(made)).splitlines()
    assert rows.CURVE not in head and "colour" not in head
    assert line.startswith(
        'llama-1,interrupted,sample:llama,"data 2, micro-batch 4, states on every device",4,9,0.5'
    )
    assert '"a, b"' in line


def test_a_run_that_does_not_say_its_model_has_none(three):
    view = runs.view(three, "llama-1")
    assert view is not None
    assert rows.table_row("llama-1", replace(view, launch=None, facts={}), ())["model"] == "n/a"


def test_a_loss_that_is_no_number_is_no_value(workspace):
    path = kept(workspace, "diamond-1")
    line = '{"step": 7, "loss": NaN, "samples": 8, "step_s": 0.2, "world_size": 2}\n'
    with (path / "metrics.jsonl").open("a") as lines:
        lines.write(line)
    found = rows.table_row("diamond-1", runs.view(workspace, "diamond-1"), ())
    assert found["loss"] is None and len(found[rows.CURVE]) == 6


def test_back_to_all_runs_shows_them_though_the_address_names_the_run_that_was_opened(page, three):
    test = open_page("runs", three, run="llama-1", session={list_page.OPENED_RUN: "llama-1"})
    assert [element.value for element in test.title] == ["Training runs"]
    # Without that, it is an address of earlier versions.
    assert [element.value for element in opened(three, "llama-1").title] == ["llama\\-1"]
