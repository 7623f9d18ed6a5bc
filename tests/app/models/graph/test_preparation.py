"""The steps of the preparation on the Graph page: left out, put back, kept, and told from what partitioning uses."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from app.explorer.data import visible_rows
from app.explorer.mount import explorer_data
from app.explorer.overlays import FATES, fate_name
from app.models.graph import preparation
from app.models.graph.details import describe_preparation
from app.session.analysis import Analysis
from app.session.model import open_model
from tests.support.app.graphs import LAYERS, NAME, encoder, stored, tab, timed
from tests.support.app.page import field, press_key, said, turn_to
from tests.support.app.values import SOURCE
from torchsplit_core.drawing.hierarchy import Hierarchy
from torchsplit_core.drawing.scene import layout_scene
from torchsplit_core.drawing.tree_rows import TreeRow
from torchsplit_core.drawing.view import build_view, initially_open
from torchsplit_core.graph import (
    ALL_STEPS,
    STEPS,
    DominanceInformation,
    StepName,
    TorchGraph,
    preparation_report,
    prepare,
    region_tree,
)
from torchsplit_core.values import GraphNode
from torchsplit_core.workspace.store import Workspace

Open = Callable[..., AppTest]
HOSTILE = "<b>a"


def masked(name: str = "bias") -> TorchGraph:
    """The encoder with a mask for all blocks, a folded transposition, a view and a dead assertion."""
    graph = encoder(2)
    nodes = [
        GraphNode("mask", "input", output_bytes=16),
        GraphNode(name, "op", target="aten.mul.Tensor", inputs=("mask",), output_bytes=16),
        GraphNode("check", "op", target="aten._assert_scalar.default", inputs=("ids",)),
        GraphNode("turned", "op", target="aten.t.default", inputs=("w_head",), output_bytes=256),
    ]
    for node in graph.nodes:
        reads = tuple("flat" if read == "add1" else read for read in node.inputs)
        if node.id.startswith("soft"):
            node = replace(node, inputs=(*reads, name))
        elif node.id == "head":
            nodes.append(
                GraphNode("flat", "op", target="aten.view.default", inputs=("add1",), output_bytes=1024)
            )
            node = replace(node, inputs=("flat", "turned"))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def analysed(graph: TorchGraph, steps: tuple[StepName, ...] = ALL_STEPS) -> Analysis:
    prepared = prepare(graph, steps)
    dominance = DominanceInformation((prepared.main_ids, prepared.main_edges))
    return Analysis(prepared, dominance, region_tree(prepared))


@pytest.fixture
def full(workspace) -> Workspace:
    graph = masked()
    stored(workspace, graph, timed(graph))
    return workspace


@pytest.fixture
def panel(page, full) -> AppTest:
    """The Graph page with the panel open."""
    opened = page("graph", full)
    assert not opened.toggle and "uses all" not in said(opened)
    turn_to(opened, preparation.PANEL, True)
    return opened


def turn(opened: AppTest, title: str) -> AppTest:
    switch = field(opened, "toggle", title)
    switch.set_value(not switch.value).run()
    assert not opened.exception
    return opened


def cut_points(opened: AppTest) -> int:
    match = re.search(r"(\d+) cut point", said(opened))
    assert match is not None
    return int(match[1])


def test_every_step_has_a_switch_and_a_row_of_what_it_brings(panel):
    assert [element.label for element in panel.toggle] == [step.title for step in STEPS]
    assert [element.help for element in panel.toggle] == [step.about for step in STEPS]
    assert all(element.value for element in panel.toggle) and cut_points(panel) == 4
    rows = [row for row in said(panel).split("<tr>") if '<td class="name">' in row]
    assert len(rows) == 6 and "as traced" in rows[0] and '<td class="n">4</td>' in rows[-1]


def test_a_step_left_out_is_seen_everywhere_and_said_beside_the_model(panel, mounted):
    panel.run()
    before = mounted[-1]["data"]
    turn(panel, "Side-band")
    assert cut_points(panel) == 1 and "4 of 5 steps: partitioning uses all" in said(panel)
    assert "left out" in said(panel) and panel.button(key="preparation-reset").disabled is False
    after = mounted[-1]["data"]
    assert after["version"] != before["version"] and after["steps"] == "dead constants aliases weights"
    assert (sum(before["nodes"]["cut"]), sum(after["nodes"]["cut"])) == (4, 1)
    assert before["scene"] == after["scene"] and before["model"] == after["model"]
    tab(panel, "Tables")
    nodes = panel.dataframe[0].value
    assert list(nodes["id"][nodes["cut point"]]) == ["add1", "flat"] and "uses all" in said(panel)


def test_the_steps_outlive_a_reload_and_are_put_back_at_once(panel, page, full, mounted):
    panel.run()
    before = mounted[-1]["data"]
    for title in ("Side-band", "Alias fusion", "Dead-code elimination"):
        turn(panel, title)
    again = page("graph", full)
    assert "2 of 5 steps" in said(again) and mounted[-1]["data"]["steps"] == "constants weights"
    turn_to(again, preparation.PANEL, True)
    assert [element.value for element in again.toggle] == [False, True, False, True, False]
    press_key(again, "preparation-reset")
    assert "uses all" not in said(again) and cut_points(again) == 4
    assert all(element.value for element in again.toggle) and mounted[-1]["data"] == {**before, "focus": None}
    assert again.button(key="preparation-reset").disabled


def test_every_model_has_its_own_steps(panel, full):
    stored(full, masked(), name="upload:other")
    turn(panel, "Side-band")
    field(panel, "selectbox", "Model").set_value("upload:other").run()
    assert not panel.exception and "uses all" not in said(panel) and all(one.value for one in panel.toggle)


def test_a_region_chosen_before_is_chosen_no_more(panel):
    look = panel.session_state[f"explorer {NAME}"]
    turn_to(panel, f"explorer {NAME}", replace(look, region=1, node="soft1"))
    assert "between two cut points" in said(panel) or "chain of cut points" in said(panel)
    turn(panel, "Weights charged to their readers")
    assert "soft1" in said(panel) and "between two cut points" not in said(panel)
    assert "chain of" not in said(panel)


@pytest.mark.parametrize("setting", [7, None, {"dead": 1}, "dead"])
def test_stored_steps_of_another_form_are_all_steps(setting, page, full):
    full.set_setting(f"preparation {NAME}", setting)
    assert "uses all" not in said(page("graph", full))


def test_stored_steps_that_are_none_are_left_out(page, full):
    full.set_setting(f"preparation {NAME}", ["weights", "inline", [1]])
    assert "1 of 5 steps" in said(page("graph", full))


def test_both_sides_of_a_comparison_are_prepared_alike(page, full, mounted):
    full.put("profile", "other", timed(masked()))
    stored(full, encoder(6), name="upload:six")
    full.set_setting(f"preparation {NAME}", ["dead"])
    opened = tab(page("graph", full), "Compare")
    assert [one["data"]["steps"] for one in mounted[-2:]] == ["dead", "dead"]
    box = opened.selectbox(key="graph-compare")
    box.set_value(("model", "upload:six", "upload:six")).run()
    assert not opened.exception and "upload:six" in mounted[-1]["data"]["model"]
    assert [one["data"]["steps"] for one in mounted[-2:]] == ["dead", "dead"]


def test_cuts_that_were_found_are_drawn_whatever_is_left_out(filled):
    whole, bare = open_model(filled, SOURCE), open_model(filled, SOURCE, steps=())
    assert bare.analysis.prepared.steps == () and whole.stages and bare.stages == whole.stages
    assert bare.devices == whole.devices


def test_what_became_of_each_node_is_told_in_its_details():
    analysis = analysed(masked(HOSTILE))
    assert describe_preparation(analysis, "check") == "dead: no output needs it, set aside"
    assert describe_preparation(analysis, "turned") == "constant: folded into head"
    assert describe_preparation(analysis, "flat") == "alias: joined its producer add1"
    assert describe_preparation(analysis, "add1") == "kept, with flat"
    assert describe_preparation(analysis, "w_query0") == "weight: charged to query0"
    assert describe_preparation(analysis, "mask") == "side-band: shipped beside every cut"
    head = describe_preparation(analysis, "head").replace("\u202f", " ")
    assert head == "kept, with turned, charged with 256 B of weights"
    bare = analysed(masked(HOSTILE), ())
    assert {describe_preparation(bare, node.id) for node in bare.prepared.graph.nodes if node.id != "y"} == {
        "kept"
    }
    view_of_mask = replace(masked(HOSTILE), nodes=tuple(
        replace(node, inputs=("query0", "wide")) if node.id == "soft0" else node
        for node in (
            *masked(HOSTILE).nodes[:4],
            GraphNode("wide", "op", target="aten.expand.default", inputs=(HOSTILE,), output_bytes=16),
            *masked(HOSTILE).nodes[4:],
        )
    ))  # fmt: skip
    text = describe_preparation(analysed(view_of_mask), "wide")
    assert text == "alias: joined its producer &lt;b&gt;a, shipped beside every cut"


def test_the_colours_of_preparation_count_nodes_and_keep_their_meaning(full):
    model = open_model(full, NAME)
    expected = {
        "mask": "side-band", "check": "dead", "turned": "folded constant", "flat": "joined its producer",
        "embed": "kept, weights charged to it", "soft0": "kept",
    }  # fmt: skip
    assert {node: fate_name(model.analysis, node) for node in expected} == expected
    for steps in (ALL_STEPS, (), ("dead", "weights")):
        shown = open_model(full, NAME, steps=steps)
        scene = layout_scene(shown.hierarchy, build_view(shown.hierarchy, initially_open(shown.hierarchy)))
        overlays = explorer_data(shown, scene, panels=True)["overlays"]
        found = next(overlay for overlay in overlays if overlay["id"] == "preparation")
        assert set(zip(found["names"], found["colours"], strict=True)) <= set(FATES)
        by_label = dict(zip(scene.view.items, found["values"], strict=True))
        layers = next(parts for item, parts in by_label.items() if item.id == LAYERS)
        shares = {found["names"][i]: share for i, share in layers}
        if "weights" in steps:
            assert shares == {
                "kept": pytest.approx(4 / 6, abs=1e-3),
                "kept, weights charged to it": pytest.approx(2 / 6, abs=1e-3),
            }
        else:
            assert shares == {"kept": 1}


def test_a_graph_too_large_for_the_colours_says_so(full, monkeypatch):
    monkeypatch.setattr("app.explorer.data.MOST_NODES", 5)
    model = open_model(full, NAME)
    scene = layout_scene(model.hierarchy, build_view(model.hierarchy, initially_open(model.hierarchy)))
    found = explorer_data(model, scene, panels=True)["overlays"][-1]
    assert (found["id"], found["values"]) == ("preparation", []) and "Too large" in found["why"]


@pytest.mark.parametrize(
    "steps", [(), ("aliases",), ("constants", "side-band"), ("dead", "constants", "aliases")]
)
def test_weights_that_count_as_values_are_in_no_tree_that_is_drawn(steps, full):
    model = open_model(full, NAME, steps=steps)
    scene = layout_scene(model.hierarchy, build_view(model.hierarchy, initially_open(model.hierarchy)))
    data = explorer_data(model, scene, panels=True)
    units = [unit.id for unit in model.analysis.prepared.units if unit.kind != "weight"]
    beside = model.analysis.prepared.sideband
    for tree in data["trees"].values():
        names = [data["nodes"]["id"][place] for place in tree["node"]]
        assert sorted(names) == sorted(set(units) - beside)
        assert tree["indent"][0] == 0
        assert all(
            after <= before + 1 for before, after in zip(tree["indent"], tree["indent"][1:], strict=False)
        )


def test_what_stands_below_a_row_left_out_moves_up():
    graph = TorchGraph((GraphNode("w", "parameter"), *(GraphNode(name, "input") for name in "abcd")))
    rows = [TreeRow("a", 0), TreeRow("w", 0), TreeRow("b", 1), TreeRow("c", 2), TreeRow("d", 0)]
    assert visible_rows(Hierarchy(graph), rows) == [
        TreeRow("a", 0), TreeRow("b", 0), TreeRow("c", 1), TreeRow("d", 0),
    ]  # fmt: skip


def test_the_table_says_what_each_step_brings_and_what_is_left_out():
    rows = preparation.steps_table(preparation_report(masked(), ALL_STEPS[:4])).split("<tr>")[2:]
    cells = [re.findall(r'class="n">([^<]*)<', row) for row in rows]
    assert cells[0][0] == cells[0][-1] == "" and cells[-1] == ["left out", "", "", "", ""]
    assert [row[0] for row in cells[1:5]] == ["1", "1", "1", "4"]
    assert [row[2] for row in cells[:5]] == ["0", "0", "0", "0", "1"]
