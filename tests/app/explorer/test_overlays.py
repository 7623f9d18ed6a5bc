"""What colours the boxes: bars within their boxes, shares that add up, and why there is nothing."""

from dataclasses import replace
from typing import Any

import pytest

from app.explorer.overlays import DEPTHS, heat, overlays, svg_fills
from app.session.analysis import Analysis
from tests.support.app.graphs import LAYERS, encoder, loose, timed
from torchsplit_core.drawing.hierarchy import Hierarchy
from torchsplit_core.drawing.view import View, build_view
from torchsplit_core.graph import (
    DominanceInformation,
    TorchGraph,
    annotate_with_profiling_data,
    prepare,
    region_tree,
)
from torchsplit_core.values import GraphNode

BARE = encoder(4)
GRAPH = annotate_with_profiling_data(BARE, timed(BARE))
OPENED = {LAYERS, f"{LAYERS}.1", f"{LAYERS}.1.attention"}
STAGES = {node.id: int(node.id in ("add2", "query3", "soft3", "add3", "head")) for node in GRAPH.ops}
DEVICES = {node.id: "gpu0" for node in GRAPH.ops}


def shown(graph: TorchGraph, *opened: str) -> tuple[Hierarchy, View]:
    hierarchy = Hierarchy(graph)
    return hierarchy, build_view(hierarchy, opened)


def overlaid(
    graph: TorchGraph, *opened: str, basis: str | None = "estimated", **of: Any
) -> dict[str, dict[str, Any]]:
    """The overlays by their names."""
    hierarchy, seen = shown(graph, *opened)
    prepared = prepare(graph)
    dominance = DominanceInformation((prepared.main_ids, prepared.main_edges))
    analysis = Analysis(prepared, dominance, region_tree(prepared))
    found = overlays(hierarchy, seen, analysis, basis, of.get("stages", {}), of.get("devices", {}))
    assert [one["id"] for one in found] == [
        "time", "memory", "bytes", "device", "region", "stage", "preparation",
    ]  # fmt: skip
    return {one["id"]: one for one in found}


@pytest.mark.parametrize("opened", [(), tuple(OPENED)])
def test_every_overlay_has_a_value_a_box_and_a_legend(opened):
    _, seen = shown(GRAPH, *opened)
    for name, found in overlaid(GRAPH, *opened, stages=STAGES, devices=DEVICES).items():
        assert len(found["values"]) == len(seen.items) and "why" not in found, name
        if found["kind"] == "bar":
            assert max(found["values"]) == 1 and min(found["values"]) >= 0
            assert found["most"] and found["basis"]
            assert all(
                value == 0 for item, value in zip(seen.items, found["values"], strict=True) if item.open
            )
            continue
        assert len(found["names"]) == len(found["colours"]) == len(set(found["names"]))
        for parts in found["values"]:
            assert all(0 <= index < len(found["names"]) for index, _ in parts)
            assert not parts or sum(share for _, share in parts) == pytest.approx(1, abs=1e-3)


def test_bars_of_time_are_shares_of_the_fullest_box():
    _, seen = shown(GRAPH)
    values = dict(zip([item.label for item in seen.items], overlaid(GRAPH)["time"]["values"], strict=True))
    assert values == {
        "ids": 0, "embed": pytest.approx(1 / 12, abs=1e-4), "layers × 4": 1,
        "head": pytest.approx(1 / 12, abs=1e-4), "y": 0,
    }  # fmt: skip
    found = overlaid(GRAPH, basis="measured on this CPU")["time"]
    assert found["basis"] == "measured on this CPU" and "85.7" in found["most"]
    assert overlaid(GRAPH, basis=None)["time"]["values"] == []


def test_peak_memory_is_the_largest_inside_and_bytes_are_those_that_leave():
    found = overlaid(GRAPH)
    assert found["memory"]["values"] == [0, 1, 1, 1, 0]
    # The input has 128 bytes, everything else a value of 1024 that leaves its box; the head's is read by y.
    assert found["bytes"]["values"] == [0.125, 1, 1, 1, 0] and found["bytes"]["basis"] == "from the shapes"
    found = overlaid(GRAPH, basis="measured here")
    assert found["time"]["basis"] == "measured here" and found["memory"]["basis"] == "estimated"
    found = overlaid(BARE)["memory"]
    assert found["basis"] == "estimated" and max(found["values"]) == 1
    assert len(found["texts"]) == len(found["values"]) and any("B" in text for text in found["texts"])


@pytest.mark.parametrize("basis", [None, "estimated"])
def test_what_nobody_profiled_has_no_bar_of_length_zero_but_a_reason(basis):
    overlay = overlaid(BARE, basis=basis)
    for name in ("time", "device", "stage"):
        assert overlay[name]["values"] == [] and overlay[name]["why"].endswith(".")
    assert overlay["bytes"]["values"] and overlay["region"]["values"]


def test_the_ramp_runs_one_way():
    opacities = [int(heat(share)[-2:], 16) for share in (0.0, 0.5, 1.0)]
    assert opacities == sorted(set(opacities)) and {heat(share)[:7] for share in (0.0, 1.0)} == {"#3f66cc"}


def test_stages_of_a_closed_box_divide_it_by_time():
    hierarchy, seen = shown(GRAPH)
    found = overlaid(GRAPH, stages=STAGES)["stage"]
    by_label = dict(zip([item.label for item in seen.items], found["values"], strict=True))
    assert found["names"] == ["stage 1", "stage 2"]
    assert by_label["embed"] == [[0, 1]] and by_label["head"] == [[1, 1]]
    assert by_label["layers × 4"] == [
        [0, pytest.approx(8 / 12, abs=1e-3)],
        [1, pytest.approx(4 / 12, abs=1e-3)],
    ]
    assert by_label["ids"] == [] and hierarchy.nodes[0] == "ids"
    untimed = dict(
        zip(
            [item.label for item in seen.items], overlaid(BARE, stages=STAGES)["stage"]["values"], strict=True
        )
    )
    assert untimed == by_label


def nested(depth: int) -> TorchGraph:
    """Diamonds in diamonds: a0 → (a1 → (…) → z1, beside y0) → z0."""
    reads = {"a0": ("x",), **{f"a{i}": (f"a{i - 1}",) for i in range(1, depth)}}
    reads |= {f"y{i}": (f"a{i}",) for i in range(depth)}
    for i in reversed(range(depth)):
        reads[f"z{i}"] = (f"y{i}", f"z{i + 1}" if i < depth - 1 else f"a{i}")
    ops = (GraphNode(name, "op", target="aten.add.Tensor", inputs=read) for name, read in reads.items())
    return TorchGraph((GraphNode("x", "input"), *ops))


def test_the_nesting_of_regions_counts_those_around_a_node_and_ends_its_scale():
    depth = len(DEPTHS) + 3
    graph = nested(depth)
    tree = region_tree(prepare(graph))
    _, seen = shown(graph)
    found = overlaid(graph)["region"]
    assert len(seen.items) == len(graph.nodes)
    for item, parts in zip(seen.items, found["values"], strict=True):
        name = item.id.removeprefix("node:")
        around = [one for one in tree.regions if one.count > 1 and one.parent is not None and name in one.ids]
        assert parts == [[min(len(around), len(DEPTHS) - 1), 1]]
    assert found["colours"] == list(DEPTHS) and found["names"][-1] == f"{len(DEPTHS) - 1} or more"
    in_a_module = tuple(replace(node, module="m") for node in graph.nodes)
    assert overlaid(replace(graph, nodes=in_a_module))["region"]["values"][1:2] == [[[0, 1]]]
    closed = overlaid(GRAPH)["region"]
    assert closed["values"][1:4] == [[[0, 1]], [[1, 1]], [[0, 1]]]
    assert closed["names"] == ["0 around", "1 around"] and closed["colours"] == list(DEPTHS[:2])


def test_the_file_has_the_same_bars_of_time_and_none_where_nothing_was_profiled():
    hierarchy, seen = shown(GRAPH)
    fills = svg_fills(hierarchy, seen)
    shares = [round(fill.share, 4) if fill else 0 for fill in fills]
    assert shares == overlaid(GRAPH)["time"]["values"]
    bare = shown(BARE)
    assert svg_fills(*bare) == [None] * len(bare[1].items)


def test_a_graph_without_bytes_or_modules_has_overlays_too():
    overlay = overlaid(loose(300))
    assert overlay["bytes"]["values"] and set(overlay["region"]["names"]) >= {"0 around"}
