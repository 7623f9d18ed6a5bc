"""The panel of details: what is known of a node, a group, a region and a cut; what is not is n/a, never 0."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from app.format.html import facts_html
from app.models.graph.details import (
    MOST_NAMED,
    ProfileTimes,
    cut_facts,
    group_facts,
    node_facts,
    region_facts,
    times_of,
)
from app.models.graph.tables import LONGEST_ARGUMENTS, format_arguments
from app.session.analysis import Analysis
from tests.support.app.graphs import LAYERS, encoder, timed
from torchsplit_core.drawing.hierarchy import Hierarchy
from torchsplit_core.drawing.view import ViewItem, build_view
from torchsplit_core.graph import (
    DominanceInformation,
    TorchGraph,
    annotate_with_profiling_data,
    prepare,
    region_tree,
)
from torchsplit_core.pictures.numbers import THIN
from torchsplit_core.values import GraphNode, NodeTimes, PartitionCandidate, PartitionOutcome, Profile

BARE = encoder(4)
PROFILE = timed(BARE)
GRAPH = annotate_with_profiling_data(BARE, PROFILE)
SHARE = 1 / len(BARE.ops)
UNTIMED = ProfileTimes(None, None)
HOSTILE = '<img src=x onerror="alert(1)">'


def analysed(graph: TorchGraph) -> Analysis:
    prepared = prepare(graph)
    dominance = DominanceInformation((prepared.main_ids, prepared.main_edges))
    return Analysis(prepared, dominance, region_tree(prepared))


ANALYSIS = analysed(GRAPH)


def facts(found: list[tuple[str, str]]) -> Mapping[str, str]:
    """By name, with plain spaces."""
    assert len({name for name, _ in found}) == len(found)
    return {name: value.replace(THIN, " ") for name, value in found}


def item(graph: TorchGraph, name: str, *opened: str) -> tuple[Hierarchy, ViewItem]:
    hierarchy = Hierarchy(graph)
    return hierarchy, next(item for item in build_view(hierarchy, opened).items if item.id == name)


def test_times_are_of_the_nearest_batch_and_the_smallest_slice_of_the_fleet():
    times = times_of(PROFILE, 2)
    assert times.measured is not None and times.measured.batch_size == 1
    assert times_of(PROFILE, 3).measured == next(row for row in PROFILE.rows if row.batch_size == 4)
    assert times.estimated is not None and times.estimated.profile == "1g.10gb"
    large = replace(times.estimated, batch_size=16, throughput_rps=1.0)
    assert times_of(replace(PROFILE, rows=(large, *PROFILE.rows)), 2).estimated == times.estimated
    assert times_of(PROFILE, 2, ["H100-SXM5-80GB"]).estimated is None
    assert times_of(None, 2) == UNTIMED
    rows = tuple(
        replace(row, stage="first") if row.basis == "measured" else replace(row, processes=2)
        for row in PROFILE.rows
    )
    assert times_of(replace(PROFILE, rows=rows), 2) == UNTIMED


def test_a_node_is_measured_estimated_or_not_available_and_never_zero():
    shown = facts(node_facts(GRAPH, ANALYSIS, "query1", times_of(PROFILE, 2)))
    assert shown["operator"] == "aten.linear.default" and shown["module"] == "layers.1.attention"
    assert shown["output"] == "[2, 16, 8] float32" and shown["bytes out"] == "1.02 kB"
    assert shown["weights read"] == "256 B" and shown["reads"] == "add0" and shown["read by"] == "soft1"
    assert shown["share of the time"] == "7.14 %"
    assert shown["time, measured here, batch 1"] == "1.43 ms"
    estimated = shown["on A100-80GB 1g.10gb, batch 2"]
    assert "0.714 ms" in estimated and "est." in estimated and 'class="estimated"' in estimated
    assert "0.571 ms" not in estimated and "(0.571 to 0.893)" in estimated
    assert shown["peak memory, est."] == "4.1 kB"
    assert (shown["dominated by"], shown["post-dominated by"]) == ("add0", "soft1")
    profile = timed(BARE, measured=False)
    shown = facts(node_facts(GRAPH, ANALYSIS, "query1", times_of(profile, 2)))
    assert not [name for name in shown if "measured" in name]
    assert "est." in shown["on A100-80GB 1g.10gb, batch 2"]
    shown = facts(node_facts(BARE, analysed(BARE), "query1", UNTIMED))
    assert (shown["time"], shown["peak memory, est."]) == ("n/a", "n/a")
    assert not {name for name in shown if "share" in name or "batch" in name}


def test_a_node_says_its_arguments_and_no_argument_is_markup():
    arguments = {
        "input": {"input": 0}, "kernel": [3, 5], "ceil": True, "scale": None, "mode": HOSTILE, "p": 0.5,
        "of": {"entries": {"k": {"complex": [1.0, "inf"]}}}, "long": {"length": 300, "sha256": "ab" * 32},
        "body": {"body": "true_graph_0"},
    }  # fmt: skip
    nodes = tuple(replace(node, arguments=arguments) if node.id == "query1" else node for node in GRAPH.nodes)
    text = facts(node_facts(replace(GRAPH, nodes=nodes), ANALYSIS, "query1", UNTIMED))["arguments"]
    assert text.startswith("input add0, kernel [3, 5], ceil true, scale null, mode &lt;img")
    assert "p 0.5, of {k complex [1.0, inf]}, long 300 long, SHA-256 abababababab…, body true_graph_0" in text
    assert "<" not in text
    many = replace(GRAPH.by_id["query1"], arguments={"sizes": list(range(200))})
    assert len(format_arguments(many)) == LONGEST_ARGUMENTS
    assert "arguments" not in facts(node_facts(GRAPH, ANALYSIS, "query1", UNTIMED))


def test_ends_of_the_model_are_named_in_words():
    assert facts(node_facts(GRAPH, ANALYSIS, "embed", UNTIMED))["dominated by"] in ("ids", "the inputs")
    assert facts(node_facts(GRAPH, ANALYSIS, "y", UNTIMED))["output"] == "no tensor"
    assert facts(node_facts(GRAPH, ANALYSIS, "y", UNTIMED))["read by"] == "nothing"
    for name in GRAPH.by_id:
        assert "&lt;e" not in facts_html(node_facts(GRAPH, ANALYSIS, name, UNTIMED))


def test_a_module_a_fold_and_an_open_block_add_up_what_is_inside():
    hierarchy, layers = item(GRAPH, LAYERS)
    shown = facts(group_facts(hierarchy, layers, times_of(PROFILE, 2)))
    assert shown["operations"] == "12" and shown["blocks"] == "4, equal"
    assert shown["kinds, of each block"] == "linear, softmax, add"
    assert shown["weights"] == "1.02 kB"
    assert (shown["values in"], shown["values out"]) == ("embed", "add3")
    assert (shown["bytes in"], shown["bytes out"]) == ("1.02 kB", "1.02 kB")
    assert shown["share of the time"] == "85.7 %" and shown["peak memory, est."] == "4.1 kB"
    hierarchy, fold = item(GRAPH, f"fold:{LAYERS}.0:4", LAYERS)
    shown = facts(group_facts(hierarchy, fold, times_of(PROFILE, 2)))
    assert shown["operations"] == "12" and shown["kinds, of each block"] == "linear, softmax, add"
    hierarchy, block = item(GRAPH, f"{LAYERS}.1", LAYERS, f"{LAYERS}.1")
    shown = facts(group_facts(hierarchy, block, times_of(PROFILE, 2)))
    assert block.open and shown["operations"] == "3" and shown["values in"] == "add0"
    assert shown["share of the time"] == "21.4 %"
    hierarchy, layers = item(BARE, LAYERS)
    shown = facts(group_facts(hierarchy, layers, UNTIMED))
    assert (shown["time"], shown["peak memory, est."]) == ("n/a", "n/a")


def test_a_region_goes_from_one_value_to_another():
    index, region = next(
        (i, one)
        for i, one in enumerate(ANALYSIS.regions.regions)
        if (one.start, one.end) == ("embed", "add0")
    )
    shown = facts(region_facts(GRAPH, ANALYSIS, index, times_of(PROFILE, 2)))
    assert shown["region"] == "embed to add0" and shown["operations"] == "3" and region.count == 3
    assert shown["share of the time"] == "21.4 %" and shown["weights"] == "256 B"
    assert shown["bytes in"] == shown["bytes out"] == "1.02 kB"
    whole = facts(region_facts(BARE, analysed(BARE), 0, UNTIMED))
    assert whole["region"] == "the inputs to the outputs"
    assert (whole["time"], whole["peak memory, est."], whole["bytes in"]) == ("n/a", "n/a", "n/a")


def test_a_cut_divides_the_time_and_says_what_crosses():
    times = times_of(PROFILE, 2)
    best = PartitionOutcome(
        "optimal", (PartitionCandidate((("a",), ("b",)), (6.0, 4.0), 6.0, (64,), (1, 1)),), 6.0, 0.0
    )
    shown = facts(cut_facts(GRAPH, ANALYSIS, "add1", times, best))
    # Seven of the fourteen operations stand before it.
    assert shown["stages, from measured times"] == "10 | 10 ms" and shown["bytes across"] == "1.02 kB"
    assert shown["best found, est."] == "60 % | 40 %"
    early = facts(cut_facts(GRAPH, ANALYSIS, "add0", times, best))
    assert early["stages, from measured times"] == "5.71 | 14.3 ms"
    estimated = facts(cut_facts(GRAPH, ANALYSIS, "add1", times_of(timed(BARE, measured=False), 2), None))
    assert estimated["stages, from estimated times"] == "5 | 5 ms" and "best found, est." not in estimated
    assert facts(cut_facts(GRAPH, ANALYSIS, "add1", UNTIMED, None))["stages, share"] == "50 % | 50 %"
    assert set(facts(cut_facts(BARE, analysed(BARE), "add1", UNTIMED, None))) == {"bytes across"}


@pytest.mark.parametrize("name", ["soft1", "w_head"])
def test_where_no_cut_can_be_there_is_none(name):
    assert cut_facts(GRAPH, ANALYSIS, name, times_of(PROFILE, 2), None) == []


def test_long_lists_of_names_are_cut_with_their_number():
    nodes = [GraphNode("x", "input")]
    nodes += [
        GraphNode(f"n{i}", "op", target="aten.relu.default", inputs=("x",)) for i in range(MOST_NAMED + 3)
    ]
    graph = TorchGraph(tuple(nodes))
    shown = facts(node_facts(graph, analysed(graph), "x", UNTIMED))
    assert shown["read by"] == "n0, n1, n2, n3 and 3 more"


def test_no_name_of_a_model_is_markup():
    nodes = (
        GraphNode(HOSTILE, "input", shape=(HOSTILE,), dtype=HOSTILE),
        GraphNode("a", "op", target=HOSTILE, inputs=(HOSTILE,), module=HOSTILE),
        GraphNode(f"{HOSTILE}2", "op", target=HOSTILE, inputs=("a",), module=HOSTILE),
        GraphNode("b", "op", target=HOSTILE, inputs=(f"{HOSTILE}2",), module="m"),
    )
    graph = TorchGraph(nodes)
    rows = tuple(replace(row, gpu_type=HOSTILE, profile=HOSTILE) for row in PROFILE.rows if row.profile)
    times = times_of(Profile("s", "h", {}, rows), 1, [HOSTILE])
    assert times.estimated is not None
    annotated = replace(graph, metadata={node.id: GRAPH.metadata["head"] for node in nodes})
    analysis = analysed(annotated)
    hierarchy, module = item(annotated, f"module:{HOSTILE}")
    texts = [facts_html(node_facts(annotated, analysis, node.id, times)) for node in nodes]
    texts += [
        facts_html(region_facts(annotated, analysis, i, times)) for i in range(len(analysis.regions.regions))
    ]
    texts += [facts_html(cut_facts(annotated, analysis, node.id, times, None)) for node in nodes]
    texts.append(facts_html(group_facts(hierarchy, module, times)))
    assert all("<img" not in text for text in texts) and any("&lt;img" in text for text in texts)


def test_the_times_of_an_operation_stand_by_batch_size():
    name = BARE.ops[0].id
    nodes = tuple(
        replace(node, times_ms={4: NodeTimes(0.5, 0.05, 0.4, 0.75), 1: NodeTimes(0.25, 0.0, 0.25, 0.25)})
        if node.id == name
        else node
        for node in PROFILE.nodes
    )
    graph = annotate_with_profiling_data(BARE, replace(PROFILE, nodes=nodes))
    shown = facts(node_facts(graph, analysed(graph), name, UNTIMED))
    assert shown["timed here, batch 4"] == "0.5 ± 0.05 ms, 0.4 to 0.75 ms"
    assert [key for key in shown if key.startswith("timed here")] == [
        "timed here, batch 1",
        "timed here, batch 4",
    ]
    assert not any(key.startswith("timed here") for key in facts(node_facts(GRAPH, ANALYSIS, name, UNTIMED)))
