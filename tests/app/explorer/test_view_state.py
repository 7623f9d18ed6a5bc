"""What the explorer shows: every action of the user, and what of it outlives the session."""

from dataclasses import replace
from typing import Any

import pytest
import streamlit as st

from app.explorer import view_state as explorer_state
from app.explorer.view_state import ExplorerState, apply_action
from tests.support.app.graphs import LAYERS, encoder, loose
from torchsplit_core.drawing import view as drawing_view
from torchsplit_core.drawing.hierarchy import Hierarchy
from torchsplit_core.drawing.view import View, build_view, initially_open
from torchsplit_core.values import GraphNode

HIERARCHY = Hierarchy(encoder(4))
CLOSED = ExplorerState(frozenset())


@pytest.fixture(autouse=True)
def session(monkeypatch) -> dict[str, Any]:
    """A browser session of its own."""
    found = {}
    monkeypatch.setattr(st, "session_state", found)
    return found


def shown(look: ExplorerState) -> View:
    return build_view(HIERARCHY, look.opened, look.unfolded)


def ids(look: ExplorerState) -> list[str]:
    return [item.id for item in shown(look).items]


def act(look: ExplorerState, kind: str, **action: Any) -> ExplorerState:
    return apply_action(look, HIERARCHY, shown(look), {"kind": kind, **action})


def test_opening_a_list_opens_its_first_block_and_opening_a_fold_splits_it():
    after = act(CLOSED, "open", item=LAYERS)
    assert after.opened == {LAYERS, f"{LAYERS}.0"}
    assert after.item in ids(after) and after.node is None and after.refusal == ""
    assert f"fold:{LAYERS}.1:3" in ids(after)
    before = replace(CLOSED, opened=frozenset({LAYERS}))
    after = act(before, "open", item=f"fold:{LAYERS}.0:4")
    assert after.opened == {LAYERS, f"{LAYERS}.0"} and after.item == f"{LAYERS}.0"
    assert act(CLOSED, "open", item="node:embed") == CLOSED


def test_closing_closes_all_that_is_inside_and_nothing_else():
    opened = frozenset({LAYERS, f"{LAYERS}.0", f"{LAYERS}.0.attention", "module:embed"})
    before = replace(CLOSED, opened=opened, unfolded=frozenset({LAYERS}), node="soft0")
    after = act(before, "close", item=LAYERS)
    assert after.opened == {"module:embed"} and not after.unfolded
    assert (after.item, after.node) == (LAYERS, None)
    inner = act(before, "close", item=f"{LAYERS}.0.attention")
    assert inner.opened == opened - {f"{LAYERS}.0.attention"} and inner.unfolded == {LAYERS}


@pytest.mark.parametrize(("opened", "item"), [((), LAYERS), ((LAYERS,), f"fold:{LAYERS}.0:4")])
def test_unfolding_shows_every_block(opened, item):
    after = act(replace(CLOSED, opened=frozenset(opened)), "unfold", item=item)
    assert after.unfolded == {LAYERS} and LAYERS in after.opened
    assert {f"{LAYERS}.{i}" for i in range(4)} <= set(ids(after))


def test_revealing_opens_the_way_to_a_node_and_selects_it():
    after = act(replace(CLOSED, region=3), "reveal", node="soft2")
    assert "node:soft2" in ids(after)
    assert (after.node, after.item, after.region) == ("soft2", "node:soft2", None)
    again = act(after, "reveal", node="soft2")
    assert after.focus is not None and again.focus != after.focus
    assert again.opened == after.opened


def test_all_opens_everything_and_reset_returns_to_the_first_view():
    everything = act(CLOSED, "all")
    assert all(len(item.nodes) <= 1 for item in shown(everything).items)
    assert {node for item in shown(everything).items for node in item.nodes} == set(
        range(len(HIERARCHY.nodes))
    )
    reset = act(replace(everything, unfolded=frozenset({LAYERS})), "reset")
    assert reset.opened == initially_open(HIERARCHY) and not reset.unfolded


@pytest.mark.parametrize("kind", ["open", "close", "unfold", "reveal", "launch", None])
@pytest.mark.parametrize("name", ["module:gone", "w_embed", "", None, 7])
def test_what_is_not_there_changes_nothing(kind, name):
    before = replace(CLOSED, opened=frozenset({LAYERS}), item=LAYERS, refusal="earlier")
    after = apply_action(before, HIERARCHY, shown(before), {"kind": kind, "item": name, "node": name})
    assert after == replace(before, refusal="")


def test_more_boxes_than_a_browser_bears_are_refused_with_the_count(monkeypatch):
    large = Hierarchy(loose(drawing_view.MOST_ITEMS + 1))
    before = ExplorerState(initially_open(large), item="node:x")
    after = apply_action(before, large, build_view(large, before.opened), {"kind": "all"})
    assert replace(after, refusal="") == before
    assert str(drawing_view.MOST_ITEMS) in after.refusal
    assert explorer_state.count_boxes(large, frozenset(large.groups)) > drawing_view.MOST_ITEMS
    one = next(item for item in build_view(large, before.opened).items if item.expandable)
    opened = apply_action(after, large, build_view(large, after.opened), {"kind": "open", "item": one.id})
    assert one.id in opened.opened and opened.refusal == ""


def test_the_count_of_boxes_is_never_below_what_is_drawn():
    look = CLOSED
    for name in (*sorted(HIERARCHY.groups), "module:gone"):
        look = replace(look, opened=look.opened | {name}, unfolded=frozenset({LAYERS}))
        assert len(shown(look).items) <= explorer_state.count_boxes(HIERARCHY, look.opened)


def test_a_look_outlives_the_session(workspace, session):
    first = explorer_state.load_state(workspace, "m", HIERARCHY)
    assert first == ExplorerState(initially_open(HIERARCHY))
    changed = replace(
        first, opened=frozenset({LAYERS}), unfolded=frozenset({LAYERS}), node="soft1", item="node:soft1",
        overlay="memory",
    )  # fmt: skip
    explorer_state.save_state(workspace, "m", changed)
    assert explorer_state.load_state(workspace, "m", HIERARCHY) == changed
    session.clear()
    state = explorer_state.load_state(workspace, "m", HIERARCHY)
    assert replace(state, focus=None) == changed and state.focus == "1\ngo\nnode:soft1"
    assert explorer_state.load_state(workspace, "another", HIERARCHY) == first


def test_a_look_at_another_graph_is_dropped_as_far_as_it_does_not_fit(workspace, session):
    explorer_state.save_state(
        workspace, "m", ExplorerState(frozenset({LAYERS, "module:embed"}), frozenset({LAYERS}), node="soft1")
    )
    session.clear()
    other = Hierarchy(loose(300))
    state = explorer_state.load_state(workspace, "m", other)
    assert state.opened == initially_open(other) and not state.unfolded and state.node is None
    workspace.set_setting("explorer n", "no look at all")
    assert explorer_state.load_state(workspace, "n", other) == ExplorerState(initially_open(other))


def test_what_the_explorer_says_is_selected_is_kept_as_far_as_it_is_there(workspace):
    explorer_state.select(workspace, "m", HIERARCHY, 3, {"node": "soft1", "item": LAYERS, "region": None})
    state = explorer_state.load_state(workspace, "m", HIERARCHY)
    assert (state.node, state.item, state.region) == ("soft1", LAYERS, None)
    explorer_state.select(workspace, "m", HIERARCHY, 3, {"node": "gone", "item": 7, "region": "2"})
    state = explorer_state.load_state(workspace, "m", HIERARCHY)
    assert (state.node, state.item, state.region) == (None, None, None)
    explorer_state.select(workspace, "m", HIERARCHY, 3, {"region": 2})
    assert explorer_state.load_state(workspace, "m", HIERARCHY).region == 2
    for beyond in (3, -1, True):
        explorer_state.select(workspace, "m", HIERARCHY, 3, {"region": beyond})
        assert explorer_state.load_state(workspace, "m", HIERARCHY).region is None
    explorer_state.set_overlay(workspace, "m", HIERARCHY, "device")
    assert explorer_state.load_state(workspace, "m", HIERARCHY).overlay == "device"


def test_a_remounted_explorer_goes_to_what_was_selected_once(workspace):
    explorer_state.select(workspace, "m", HIERARCHY, 3, {"item": LAYERS})
    explorer_state.refocus(workspace, "m", HIERARCHY)
    once = explorer_state.load_state(workspace, "m", HIERARCHY)
    assert once.focus == f"1\ngo\n{LAYERS}"
    explorer_state.refocus(workspace, "m", HIERARCHY)
    assert explorer_state.load_state(workspace, "m", HIERARCHY) == once


def test_a_node_whose_name_breaks_lines_can_be_revealed_again():
    nodes = (GraphNode("a\nb", "op", target="aten.relu.default", module="m"),)
    hierarchy = Hierarchy(replace(encoder(1), nodes=nodes))
    look = ExplorerState(frozenset())
    for _ in range(2):
        look = apply_action(
            look, hierarchy, build_view(hierarchy, look.opened), {"kind": "reveal", "node": "a\nb"}
        )
    assert look.node == "a\nb"
