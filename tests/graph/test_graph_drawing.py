"""Collapsing by module, profiling data on nodes, and DOT texts that no name can break."""

import pydot
import pytest
from graph_cases import masked_encoder

from torchsplit_core.graph import (
    DominanceInformation,
    annotate_with_profiling_data,
    collapse,
    prepare,
    region_tree,
)
from torchsplit_core.graph.dot import below, dataflow_dot, dominance_dot, quote, regions_dot
from torchsplit_core.values import InputFault, NodeProfile, Profile

GRAPH = masked_encoder()
PROFILE = Profile(
    "s", "h", nodes=tuple(NodeProfile(n, 0.25, 1000, 0) for n in ("qkv0", "qkv1", "qkv2", "embed"))
)


def test_layers_collapse_to_one_node_with_their_repeats():
    drawn = {node.id: node for node in collapse(GRAPH, 1).nodes}
    layers = drawn["module:layers"]
    assert layers.label == "layers × 3" and layers.count == 24 and layers.expandable
    assert drawn["node:ids"].kind == "input" and "node:w0" not in drawn
    assert ("node:ids", "module:embed") in collapse(GRAPH, 1).edges
    assert layers.time_share is None


def test_expanding_opens_one_level_and_then_single_operations():
    opened = {node.id for node in collapse(GRAPH, 1, frozenset({"layers"})).nodes}
    assert {
        "module:layers.0",
        "module:layers.1",
        "module:layers.2",
    } <= opened and "module:layers" not in opened
    inner = {node.id for node in collapse(GRAPH, 1, frozenset({"layers", "layers.1"})).nodes}
    assert "node:attn1" in inner and "module:layers.0" in inner
    assert {n.id for n in collapse(GRAPH, 0).nodes if n.kind == "module"} == {"module:"}


def test_shares_add_up_over_a_module():
    drawn = {n.id: n for n in collapse(annotate_with_profiling_data(GRAPH, PROFILE), 1).nodes}
    assert drawn["module:layers"].time_share == pytest.approx(0.75)
    assert drawn["module:layers"].output_bytes == 1000


def test_a_profile_of_another_model_is_refused():
    with pytest.raises(InputFault, match="architecture"):
        annotate_with_profiling_data(GRAPH, Profile("s", "other"))
    with pytest.raises(InputFault, match="ghost"):
        annotate_with_profiling_data(GRAPH, Profile("s", "h", nodes=(NodeProfile("ghost", 1, 1, 1),)))


def test_quote_escapes_what_ends_a_string():
    assert quote('a"b\\n\n') == '"a\\"b\\\\n\\n"'


def nodes_of(text):
    (dot,) = pydot.graph_from_dot_data(text)
    found = {n.get_name(): n for n in dot.get_nodes()}
    stack = dot.get_subgraphs()
    while stack:
        inner = stack.pop()
        found.update((n.get_name(), n) for n in inner.get_nodes())
        stack.extend(inner.get_subgraphs())
    return dot, found


def test_dot_texts_parse_and_hold_every_node():
    hostile = 'x"]; evil [label="'
    dot, found = nodes_of(dominance_dot(DominanceInformation((("a", hostile), (("a", hostile),)))))
    assert set(found) == {"n0", "n1", "n2", "n3"} and len(dot.get_edges()) == 3
    _, found = nodes_of(dominance_dot(DominanceInformation((("a",), ())), post=True))
    assert set(found) == {"n0", "n1", "n2"}
    dot, found = nodes_of(dataflow_dot(annotate_with_profiling_data(GRAPH, PROFILE), 1))
    assert len(found) == len(collapse(GRAPH, 1).nodes) and "75.0 % of the time" in dot.to_string()
    tree = region_tree(prepare(GRAPH))
    dot, found = nodes_of(regions_dot(tree))
    assert len(found) == len(tree.ids) and len(dot.get_edges()) == len(tree.edges) and dot.get_subgraphs()


def test_a_dominator_drawing_starts_where_asked_and_stops_in_time() -> None:
    chain = DominanceInformation((tuple("abcde"), tuple(zip("abcd", "bcde", strict=True))))
    dot, found = nodes_of(dominance_dot(chain, root="b", most=3))
    assert len(found) == 3 and len(dot.get_edges()) == 2
    assert "".join(below(chain.dominator_tree, "b")[:4]) == "bcde"
