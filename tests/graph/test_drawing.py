"""Profiling data on nodes, and DOT texts that no name can break."""

import pydot
import pytest

from tests.support.graph.cases import masked_encoder
from torchsplit_core.graph import DominanceInformation, annotate_with_profiling_data, prepare, region_tree
from torchsplit_core.graph.dot import dataflow_dot, dominance_dot, quote, regions_dot
from torchsplit_core.values import InputFault, NodeProfile, Profile

GRAPH = masked_encoder()
PROFILE = Profile(
    "s", "h", nodes=tuple(NodeProfile(n, 0.25, 1000, 0) for n in ("qkv0", "qkv1", "qkv2", "embed"))
)


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
    dot, found = nodes_of(dataflow_dot(annotate_with_profiling_data(GRAPH, PROFILE)))
    shown = [node for node in GRAPH.nodes if node.kind not in ("parameter", "buffer", "constant")]
    assert len(found) == len(shown) and "25.0 % of the time" in dot.to_string()
    assert len(dot.get_edges()) == sum(
        len({r for r in n.inputs if r in {s.id for s in shown}}) for n in shown
    )
    tree = region_tree(prepare(GRAPH))
    dot, found = nodes_of(regions_dot(tree))
    assert len(found) == len(tree.ids) and len(dot.get_edges()) == len(tree.edges) and dot.get_subgraphs()
