"""A graph survives its contract form; a form that breaks the contract is one InputFault."""

import json
from dataclasses import replace
from typing import Any

import pytest

from torchsplit_core.graph import TorchGraph
from torchsplit_core.graph.serialization import (
    GraphParts,
    graph_from_dict,
    graph_to_dict,
    graph_to_text,
    nodes_in_parts,
)
from torchsplit_core.values import GraphNode, InputFault

BODY = TorchGraph((GraphNode("y", "input"), GraphNode("output", "output", inputs=("y",))), traced_batch=2)
GRAPH = TorchGraph(
    (
        GraphNode(
            "w", "parameter", target="a.weight", module="a", shape=(3, 4), dtype="float32", output_bytes=48
        ),
        GraphNode("x", "input", shape=("s0", 4), dtype="float32", output_bytes=32),
        GraphNode(
            "mul", "op", "mul", "aten.mul.Tensor", ("x", "x"), "a", ("2*s0", 4), "float32", 64, "net.py:7",
            "return x * x",
            {"self": {"input": 0}, "other": {"input": 1}, "alpha": 1.5, "modes": ["a", None, True, "-inf"]},
        ),
        GraphNode("cond", "op", "cond", "higher_order.cond", ("mul", "w"), output_bytes=64),
        GraphNode("output", "output", inputs=("cond",)),
    ),
    architecture_hash="abc",
    traced_batch=2,
    subgraphs={"cond.true_graph_0": BODY},
    route="draft",
    notes=("net.py:7: one way was taken.",),
    experts=("layers.0.experts",),
)  # fmt: skip


def test_a_graph_survives_json_text():
    assert graph_from_dict(json.loads(json.dumps(graph_to_dict(GRAPH)))) == GRAPH
    assert json.loads(graph_to_text(GRAPH)) == graph_to_dict(GRAPH)
    assert graph_to_text(GRAPH).count("\n  {") == len(GRAPH.nodes)
    assert json.loads(graph_to_text(BODY)) == graph_to_dict(BODY)


def test_nodes_in_any_order_are_read_where_no_edge_leads_back():
    turned = replace(GRAPH, nodes=GRAPH.nodes[::-1])
    assert graph_from_dict(graph_to_dict(turned)) == turned


def test_parts_make_the_graph_that_they_are_parts_of():
    parts = GraphParts()
    for part in nodes_in_parts(GRAPH.nodes):
        parts.add(part)
    parts.add({key: value for key, value in graph_to_dict(GRAPH).items() if key != "nodes"})
    assert parts.graph() == GRAPH
    first, second = (parts.graph().nodes[place] for place in (2, 3))
    assert second.inputs[0] is first.id


def test_the_form_is_the_contract():
    form = graph_to_dict(GRAPH)
    head = ["format", "version", "architecture_hash", "traced_batch", "route", "notes", "experts"]
    assert list(form) == [*head, "nodes", "subgraphs"]
    assert (form["route"], form["notes"]) == ("draft", ["net.py:7: one way was taken."])
    assert (form["format"], form["version"]) == ("torchsplit.graph", 1)
    assert form["nodes"][2] == {
        "id": "mul", "kind": "op", "op": "mul", "target": "aten.mul.Tensor", "inputs": ["x", "x"], "module": "a",
        "shape": ["2*s0", 4], "dtype": "float32", "output_bytes": 64, "source": "net.py:7",
        "code": "return x * x",
        "arguments": {
            "self": {"input": 0}, "other": {"input": 1}, "alpha": 1.5, "modes": ["a", None, True, "-inf"]
        },
    }  # fmt: skip
    assert "arguments" not in form["nodes"][0]


def of_arguments(arguments: Any) -> dict[str, Any]:
    form = graph_to_dict(GRAPH)
    form["nodes"][2]["arguments"] = arguments
    return json.loads(json.dumps(form))


@pytest.mark.parametrize("value", [
    0, -1, 2**64 - 1, -(2**63), 1.0, -0.0, 1e-300, True, False, None, "", "channels_last", "nan", [], [[1], []],
    {"input": 1}, {"body": "true_graph_0"}, {"complex": [1.0, "inf"]}, {"slice": [None, {"input": 0}, 2]},
    {"entries": {"a": [{"input": 0}], "b": {"entries": {}}}}, {"constant": ["float32", [2, 3]]},
    {"object": "torch.Generator"}, {"length": 300, "sha256": "0f" * 32}, [0] * 256, "x" * 1000,
    [[[[[[[[1]]]]]]]], [[[[[[[{"entries": {"a": {"input": 0}}}]]]]]]],
], ids=str)  # fmt: skip
def test_arguments_survive_json_text_as_they_are(value):
    graph = graph_from_dict(of_arguments({"value": value}))
    assert json.dumps(graph.nodes[2].arguments) == json.dumps({"value": value})
    again = json.loads(graph_to_text(graph))["nodes"][2]["arguments"]
    assert json.dumps(again) == json.dumps({"value": value})
    assert graph_from_dict(graph_to_dict(graph)) == graph


def test_equal_arguments_of_other_types_stay_apart():
    form = of_arguments({"value": 1})
    form["nodes"][3]["arguments"] = {"value": 1.0}
    form["nodes"][4]["arguments"] = {"value": True}
    found = graph_from_dict(form).nodes
    assert [type(node.arguments["value"]) for node in found[2:]] == [int, float, bool]


def nested(levels: int) -> Any:
    value = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(("arguments", "said"), [
    ([1], "is .*, not an object"),
    ("text", "is .*, not an object"),
    (None, "is .*, not an object"),
    ({"": 1}, "not text of 1 to 200"),
    ({"n" * 201: 1}, "not text of 1 to 200"),
    ({"\ud800": 1}, "surrogate"),
    ({"a": "\ud800"}, "surrogate"),
    ({"a": "x" * 1001}, "text of 1001 characters, more than 1000"),
    ({"a": 2**64}, "64 bits"),
    ({"a": 10**4400}, "64 bits"),
    ({"a": float("nan")}, "stands as text in JSON: inf, -inf, nan"),
    ({"a": float("inf")}, "stands as text in JSON: inf, -inf, nan"),
    ({"a": [1] * 257}, "list of 257 entries, more than 256"),
    ({"a": nested(9)}, "nests more than 8 deep"),
    ({"a": {"entries": {"b": nested(8)}}}, "nests more than 8 deep"),
    ({"a": {"input": 2}}, "no place among its 2 inputs"),
    ({"a": {"input": -1}}, "no place among its 2 inputs"),
    ({"a": {"input": True}}, "no place among its 2 inputs"),
    ({"a": {"input": "x"}}, "no place among its 2 inputs"),
    ({"a": {"body": 3}}, "has a body that is 3, not text"),
    ({"a": {"complex": 3}}, "has a complex that is 3, not a list"),
    ({"a": {"entries": [1]}}, "entries that are not an object"),
    ({"a": {"entries": {str(n): n for n in range(257)}}}, "not an object of at most 256 keys"),
    ({"a": {"thing": 3}}, "has an object with the keys"),
    ({"a": {}}, "has an object with the keys"),
    ({"a": {"input": 0, "body": "b"}}, "has an object with the keys"),
    ({"a": {"length": -1, "sha256": "0f" * 32}}, "not a length and 64 hexadecimal"),
    ({"a": {"length": 1, "sha256": "0F" * 32}}, "not a length and 64 hexadecimal"),
    ({"a": {"length": 1, "sha256": "0" * 63}}, "not a length and 64 hexadecimal"),
])  # fmt: skip
def test_arguments_that_break_the_contract_are_one_message(arguments, said):
    form = graph_to_dict(GRAPH)
    form["nodes"][2]["arguments"] = arguments
    with pytest.raises(InputFault, match=said) as caught:
        graph_from_dict(form)
    assert "nodes[2].arguments" in str(caught.value) and len(str(caught.value)) < 500


def test_a_node_of_too_many_arguments_is_refused():
    form = graph_to_dict(GRAPH)
    form["nodes"][2]["arguments"] = dict.fromkeys(map(str, range(100_001)))
    with pytest.raises(InputFault, match="has 100001 arguments, more than 100000"):
        graph_from_dict(form)


@pytest.mark.parametrize(("change", "said"), [
    ({"format": "torchsplit.plan"}, "has format 'torchsplit.plan', version 1, not torchsplit.graph"),
    ({"version": 2}, "version 2, not torchsplit.graph, version 1"),
    ({"nodes": None}, "nodes: is null, not a list"),
    ({"nodes": [3]}, r"nodes\[0\]: is 3, not an object"),
    ({"nodes": [{"id": "a", "kind": "thing"}]}, "kind: is 'thing', not a known value"),
    ({"nodes": [{"kind": "op"}]}, r"nodes\[0\]\.id: is missing"),
    ({"nodes": [{"id": "a", "kind": "op", "inputs": "abc"}]}, "inputs: is 'abc', not a list of ids"),
    ({"nodes": [{"id": "a", "kind": "op", "inputs": ["b"]}]}, "reads 'b', which is no node of the graph"),
    ({"nodes": [{"id": "a", "kind": "op", "shape": 3}]}, "shape: is 3, not a list or null"),
    ({"nodes": [{"id": "a", "kind": "op", "dtype": 3}]}, "dtype: is 3, not text or null"),
    ({"nodes": [{"id": "a", "kind": "op", "output_bytes": "3"}]}, "whole number"),
    ({"nodes": [{"id": "a", "kind": "op", "output_bytes": -3}]}, "is -3, not a whole number from 0"),
    ({"nodes": [{"id": "a", "kind": "op"}] * 2}, "have the id 'a' twice"),
    ({"nodes": [{"id": "a", "kind": "op", "colour": "red"}]}, r"nodes\[0\]\.colour: is not a known field"),
    ({"colour": "red"}, "^colour: is not a known field"),
    ({"nodes": [{"id": "a" * 201, "kind": "op"}]}, "not text of 1 to 200 characters"),
    ({"nodes": [{"id": "a", "kind": "op", "op": 3}]}, "op: is 3, not text"),
    ({"nodes": [{"id": "a\ud800", "kind": "op"}]}, "surrogate"),
    ({"nodes": [{"id": "a", "kind": "op", "output_bytes": 2**53 + 1}]}, "whole number"),
    ({"nodes": [{"id": "a", "kind": "op", "output_bytes": True}]}, "whole number"),
    ({"nodes": [{"id": "a", "kind": "op", "shape": [-1]}]}, "64 bits"),
    ({"nodes": [{"id": "a", "kind": "op", "shape": [2.0]}]}, "64 bits"),
    ({"nodes": [{"id": "a", "kind": "op", "shape": ["9**9**9**9**9"]}]}, "short expression"),
    ({"nodes": [{"id": "a", "kind": "op", "shape": ["1+" * 600]}]}, "short expression"),
    (
        {
            "nodes": [
                {"id": "a", "kind": "op", "inputs": ["b"]},
                {"id": "b", "kind": "op", "inputs": ["a"]},
            ]
        },
        "form a cycle through 'a'",
    ),
    ({"traced_batch": "two"}, "traced_batch"),
    ({"traced_batch": 0}, "traced_batch"),
    ({"route": "by air"}, "route: is 'by air', not a known value. Known values: non-strict"),
    ({"notes": "a"}, "notes: is 'a', not a list of texts"),
    ({"notes": [1]}, "notes: is not a list of texts"),
    ({"experts": "a"}, "experts: is 'a', not a list of texts"),
    ({"largest_batch": 0}, "largest_batch: is 0, not a whole number from 1"),
    ({"largest_batch": "7"}, "largest_batch: is '7', not a whole number from 1"),
    ({"subgraphs": [1]}, "not an object of graphs"),
    ({"subgraphs": {"cond": 1}}, "not an object of graphs"),
])  # fmt: skip
def test_a_form_that_breaks_the_contract_is_refused(change, said):
    with pytest.raises(InputFault, match=said):
        graph_from_dict(graph_to_dict(GRAPH) | change)
