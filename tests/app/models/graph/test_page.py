"""The Graph page as a user sees it: empty, tab by tab, with what is selected, and with a very large model."""

from dataclasses import replace

import pytest

from tests.support.app.graphs import LAYERS, NAME, encoder, selected, stored, tab, timed
from tests.support.app.page import press, said
from tests.support.app.values import SOURCE
from torchsplit_core.workspace.store import Workspace

pytestmark = pytest.mark.slow


@pytest.fixture
def full(workspace) -> Workspace:
    stored(workspace, encoder(4), timed(encoder(4)))
    return workspace


def test_without_a_model_the_page_says_what_it_will_show(page, workspace):
    opened = page("graph", workspace)
    assert "Here you will see a model's dataflow" in said(opened) and not opened.selectbox


def test_the_head_says_how_large_the_model_is_and_the_explorer_gets_its_first_view(page, full, mounted):
    opened = page("graph", full)
    (first,) = mounted
    assert first["data"]["scene"]["items"]["label"] == ["ids", "embed", "layers × 4", "head", "y"]
    assert first["data"]["panels"] is True and NAME in first["key"]
    assert "Nothing selected" in said(opened)
    text = said(page("graph", full))
    assert "22 nodes" in text and "6 cut points" in text and "measured on this CPU" in text


def test_what_the_user_does_in_the_explorer_is_kept_and_drawn(page, full, mounted, called_back):
    opened = page("graph", full)
    before = mounted[-1]["data"]["version"]
    data = called_back(opened, "on_action", action={"kind": "open", "item": LAYERS})
    assert f"{LAYERS}.0" in data["scene"]["items"]["id"] and data["version"] != before
    chosen = called_back(opened, "on_selection", selection={"node": "soft0", "item": f"{LAYERS}.0"})
    assert "soft0" in said(opened) and "aten.softmax.int" in said(opened)
    # A selection draws nothing anew, so that the browser passes over what it already has.
    assert chosen["version"] == data["version"]
    page("graph", full)
    assert f"{LAYERS}.0" in mounted[-1]["data"]["scene"]["items"]["id"]
    assert mounted[-1]["data"]["overlay"] == "time"
    called_back(opened, "on_overlay", overlay="memory")
    page("graph", full)
    assert mounted[-1]["data"]["overlay"] == "memory"


def test_a_model_that_nobody_profiled_is_coloured_by_its_bytes(page, workspace, mounted):
    stored(workspace, encoder(4))
    assert "not profiled" in said(page("graph", workspace))
    assert mounted[-1]["data"]["overlay"] == "bytes"


def test_a_selected_node_is_shown_with_its_source_and_ways_to_its_dominators(page, full, mounted):
    selected(full, node="soft1", item=f"fold:{LAYERS}.0:4")
    opened = page("graph", full)
    text = said(opened)
    assert "soft1" in text and "aten.softmax.int" in text and "Cut here?" not in text
    assert [code.value for code in opened.code] == ["net.py:7\nx = self.soft1(x)"]
    press(opened, "Post-dominator")
    assert "Cut here?" in said(opened) and "10 | 10" in said(opened).replace("\u202f", " ")
    assert mounted[-1]["data"]["focus"].endswith("\nnode:add1")
    assert "node:add1" in mounted[-1]["data"]["scene"]["items"]["id"]


def test_a_selected_list_offers_to_show_all_its_blocks(page, full, mounted):
    selected(full, opened=["module:embed"], item=LAYERS)
    opened = page("graph", full)
    assert "4, equal" in said(opened)
    press(opened, "Show all 4 blocks")
    assert {f"{LAYERS}.{i}" for i in range(4)} <= set(mounted[-1]["data"]["scene"]["items"]["id"])


@pytest.mark.parametrize(
    "look", [{"node": "gone"}, {"item": "module:gone"}, {"region": 10**6}, {"opened": ["x"]}]
)
def test_a_look_that_does_not_fit_selects_nothing(look, page, full):
    selected(full, **look)
    assert "Nothing selected" in said(page("graph", full))


def test_the_tables_are_searched_and_show_regions_too(page, full):
    opened = tab(page("graph", full), "Tables")
    assert len(opened.dataframe[0].value) == 22
    opened.text_input(key="node-search").set_value("soft[12]").run()
    assert "2 found" in said(opened) and list(opened.dataframe[0].value["id"]) == ["soft1", "soft2"]
    opened.text_input(key="node-search").set_value("soft(").run()
    assert len(opened.error) == 1 and "regular expression" in said(opened) and not opened.exception
    opened.get("button_group")[0].set_value("Regions").run()
    assert list(opened.dataframe[0].value["depth"])[:2] == [0, 1]


def test_comparing_needs_a_second_model_and_draws_both(page, full, mounted):
    assert "side by side" in said(tab(page("graph", full), "Compare"))
    stored(full, encoder(6), name="upload:six")
    mounted.clear()
    opened = tab(page("graph", full), "Compare")
    last = mounted[-2:]
    assert [one["data"]["scene"]["items"]["label"][2] for one in last] == ["layers × 4", "layers × 6"]
    assert last[0]["key"] != last[1]["key"] and not any(one["data"]["panels"] for one in last)
    assert list(opened.dataframe[0].value["difference"]) == [2, 2, 2]


@pytest.mark.parametrize("setting", [{"opened": 7}, {"opened": [[1]]}, {"opened": None}, {"node": [1]}])
def test_a_stored_look_of_another_form_is_dropped(setting, page, full):
    full.set_setting(f"explorer {NAME}", setting)
    assert "Nothing selected" in said(page("graph", full))


@pytest.mark.parametrize("chosen", [{"region": -(10**6)}, {"node": [1]}])
def test_a_selection_that_cannot_be_selects_nothing(chosen, page, full, called_back):
    opened = page("graph", full)
    called_back(opened, "on_selection", selection=chosen)
    assert "Nothing selected" in said(opened)


@pytest.mark.parametrize("action", [{"kind": "reveal", "node": [1]}, [1], "x"])
def test_an_action_of_another_form_does_nothing(action, page, full, called_back):
    opened = page("graph", full)
    drawn = called_back(opened, "on_action", action=action)
    assert drawn["scene"]["items"]["label"] == ["ids", "embed", "layers × 4", "head", "y"]


def test_cuts_found_anew_are_drawn_anew(page, filled, mounted):
    def stages():
        page("graph", filled)
        return next(one["values"] for one in mounted[-1]["data"]["overlays"] if one["id"] == "stage")

    before, outcome = stages(), filled.get("partition", f"{SOURCE} in 2")
    other = replace(outcome.candidates[0], stages=(("a",), ("b", "c")))
    filled.put("partition", f"{SOURCE} in 2", replace(outcome, candidates=(other,)))
    assert stages() != before
