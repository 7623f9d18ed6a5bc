"""What travels to the explorer: columns of equal length, places that exist, plain JSON, not too much of it."""

import json
from typing import Any

import pytest

from app.explorer import data as explorer_data
from app.explorer.mount import explorer_data as everything
from app.session.model import GraphModel, open_model
from tests.support.app.graphs import LAYERS, NAME, encoder, loose, stored, timed
from torchsplit_core.drawing.scene import Scene, layout_scene
from torchsplit_core.drawing.view import build_view, initially_open
from torchsplit_core.graph import TorchGraph
from torchsplit_core.workspace.store import Workspace

OPENED = frozenset({LAYERS, f"{LAYERS}.1", f"{LAYERS}.1.attention"})


@pytest.fixture
def model(workspace) -> GraphModel:
    stored(workspace, encoder(4), timed(encoder(4)))
    return open_model(workspace, NAME)


def drawn(model: GraphModel, opened: frozenset[str]) -> tuple[Scene, dict[str, Any]]:
    scene = layout_scene(model.hierarchy, build_view(model.hierarchy, opened))
    return scene, everything(model, scene, panels=True)


def of(workspace: Workspace, graph: TorchGraph) -> tuple[GraphModel, Scene, dict[str, Any]]:
    stored(workspace, graph)
    model = open_model(workspace, NAME)
    return model, *drawn(model, initially_open(model.hierarchy))


@pytest.mark.parametrize("opened", [frozenset(), OPENED])
def test_columns_are_of_one_length_and_places_exist(model, opened):
    scene, data = drawn(model, opened)
    items, nodes, regions = data["scene"]["items"], data["nodes"], data["icicles"][0]
    count, shown = len(scene.view.items), len(model.hierarchy.nodes)
    assert {len(column) for name, column in items.items() if name != "box"} == {count}
    assert len(items["box"]) == 4 * count and all(-1 <= parent < count for parent in items["parent"])
    assert {len(nodes[name]) for name in nodes if name not in ("ops", "modules")} == {shown}
    assert nodes["id"] == list(model.hierarchy.nodes)
    assert nodes["home"] == list(scene.view.item_of) and not any(
        items["open"][home] for home in nodes["home"]
    )
    assert [nodes["ops"][op] for op in nodes["op"]] == list(model.hierarchy.operations)
    assert [nodes["modules"][m] for m in nodes["module"]] == [
        model.graph.by_id[n].module for n in nodes["id"]
    ]
    assert all(-1 <= unit < shown for unit in nodes["unit"])
    assert {name for name, cut in zip(nodes["id"], nodes["cut"], strict=True) if cut} == set(
        model.analysis.regions.cut_points
    )
    assert len({len(column) for name, column in regions.items() if name != "by"}) == 1
    assert all(0 <= low <= high <= 1 for low, high in zip(regions["low"], regions["high"], strict=True))
    order = model.analysis.regions.order
    for node, place in zip(nodes["id"], nodes["place"], strict=True):
        assert place == -1 or order[place] == model.analysis.prepared.unit_of[node]
    for end, region in zip(regions["end"], regions["index"], strict=True):
        assert end == -1 or nodes["id"][end] == model.analysis.regions.regions[region].end
    first = {name: nodes["id"][tree["node"][0]] for name, tree in data["trees"].items()}
    assert first == {"dominators": "ids", "post": "head"}
    for tree in data["trees"].values():
        assert len(tree["node"]) == len(tree["indent"]) == len(order)
        assert sorted(nodes["id"][node] for node in tree["node"]) == sorted(order)
    for source, arrow, targets, points in data["scene"]["lines"]:
        assert all(0 <= end < count for end in (source, *targets)) and isinstance(arrow, bool)
        assert len(points) >= 4 and len(points) % 2 == 0
    assert len(data["scene"]["lines"]) == len(scene.lines) and len(data["scene"]["stubs"]) == len(scene.stubs)


def test_it_is_plain_json_that_says_what_is_drawn_and_calls_a_region_after_its_module(model):
    _, closed = drawn(model, frozenset())
    _, opened = drawn(model, OPENED)
    assert json.loads(json.dumps(opened, allow_nan=False)) == opened
    assert closed["model"] == opened["model"]
    assert closed["scene"]["items"]["label"] == ["ids", "embed", "layers × 4", "head", "y"]
    assert drawn(model, OPENED)[1] == opened
    _, data = drawn(model, frozenset())
    labels = dict(zip(data["icicles"][0]["index"], data["icicles"][0]["label"], strict=True))
    regions = model.analysis.regions.regions
    assert labels[0] == "the whole model"
    inner = next(i for i in labels if (regions[i].start, regions[i].end) == ("add0", "add1"))
    assert labels[inner] == "layers.1"


def test_regions_are_sized_by_time_where_there_are_times(model, workspace):
    assert [one["by"] for one in drawn(model, frozenset())[1]["icicles"]] == ["time", "bytes"]
    workspace.remove("profile", NAME)
    _, _, data = of(workspace, encoder(4))
    assert [one["by"] for one in data["icicles"]] == ["bytes"]


def test_a_profile_beside_a_model_of_another_architecture_is_not_used(workspace):
    stored(workspace, encoder(4), timed(encoder(3)))
    other = timed(loose(5))
    workspace.put("profile", NAME, other)
    assert open_model(workspace, NAME).basis is None


@pytest.mark.parametrize("graph", [encoder(500), loose(1_500)], ids=["modules", "loose"])
def test_fifteen_hundred_nodes_travel_in_less_than_a_megabyte(workspace, graph):
    found, _, data = of(workspace, graph)
    assert len(found.hierarchy.nodes) >= 1_500
    assert len(json.dumps(data, separators=(",", ":"))) < 1_000_000


def test_of_a_graph_too_large_to_send_what_is_drawn_travels(workspace, monkeypatch):
    monkeypatch.setattr(explorer_data, "MOST_NODES", 100)
    found, scene, data = of(workspace, encoder(60))
    alone = [item.id for item in scene.view.items if len(item.nodes) == 1]
    assert [f"node:{name}" for name in data["nodes"]["id"]] == alone and len(alone) < 100
    assert data["trees"]["dominators"]["node"] == [] == data["trees"]["post"]["node"]
    assert all(-1 <= end < len(alone) for end in data["icicles"][0]["end"])
    assert -1 in data["icicles"][0]["end"] and len(found.hierarchy.nodes) == 184
