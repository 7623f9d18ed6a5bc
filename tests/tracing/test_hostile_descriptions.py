"""What a hostile .pt2 says of its graph is refused or shown as plain text, however it is made."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.tracing.pt2_files import altered, members_of, read_file, zipped
from torchsplit_core.graph import TorchGraph, prepare, region_tree
from torchsplit_core.isolation import Limits
from torchsplit_core.profiling import estimate_rows, estimated_nodes
from torchsplit_core.tracing import hash_model_architecture, trace
from torchsplit_core.values import InputFault

pytestmark = pytest.mark.torch
Change = Callable[[dict[str, Any]], Any]


def nodes_of(program: dict[str, Any]) -> list[dict[str, Any]]:
    return program["graph_module"]["graph"]["nodes"]


def sizes_of(program: dict[str, Any]) -> list[dict[str, Any]]:
    return program["graph_module"]["graph"]["tensor_values"]["x"]["sizes"]


def reads(program: dict[str, Any], place: int, name: str) -> None:
    nodes_of(program)[place]["inputs"][0]["arg"] = {"as_tensor": {"name": name}}


@pytest.mark.parametrize(("change", "said"), [
    (lambda p: reads(p, 0, "linear_4"), "which no node before it makes"),
    (lambda p: reads(p, 1, "relu"), "which no node before it makes"),
    (lambda p: reads(p, 1, "nowhere"), "which no node before it makes"),
    (lambda p: p["graph_module"]["graph"]["outputs"].append({"as_tensor": {"name": "no"}}), "reads 'no'"),
    (lambda p: nodes_of(p).append(nodes_of(p)[0]), "have the id 'linear' twice"),
    (lambda p: sizes_of(p).append({"as_int": 10**400}), "64 bits"),
    (lambda p: sizes_of(p).append({"as_int": -1}), "64 bits"),
    (lambda p: sizes_of(p).append({"as_int": True}), "64 bits"),
    (lambda p: sizes_of(p).append({"as_int": 2.5}), "64 bits"),
    (lambda p: sizes_of(p).extend([{"as_int": 2**40}] * 9), "whole number"),
    (lambda p: sizes_of(p).append({"as_expr": {"expr_str": "9**9**9**9**9**9", "hint": None}}), "short"),
    (lambda p: sizes_of(p).append({"as_expr": {"expr_str": "1+" * 900 + "1", "hint": None}}), "size"),
    (lambda p: sizes_of(p).append({"as_expr": {"expr_str": "9" * 3000, "hint": None}}), "whole number"),
    (lambda p: nodes_of(p)[0].update(name="n" * 201), "201 characters, more than 200"),
    (lambda p: nodes_of(p)[0]["metadata"].update(nn_module_stack="a,[" + "[" * 10**6 + ",c"), "too long"),
    (lambda p: nodes_of(p)[0]["metadata"].update(stack_trace=["x"]), "schema"),
    (lambda p: nodes_of(p)[0].update(target="half \ud800"), "surrogate"),
])  # fmt: skip
def test_what_no_graph_can_have_is_refused(change, said, saved, tmp_path):
    with pytest.raises(InputFault, match=said) as caught:
        read_file(altered(saved, tmp_path, change))
    assert len(str(caught.value)) < 600


def called(program: dict[str, Any], *given: Any) -> None:
    """The first operation gets further arguments of this content."""
    for place, argument in enumerate(given):
        nodes_of(program)[0]["inputs"].append({"name": f"more{place}", "arg": argument, "kind": 1})


def deep(levels: int) -> Any:
    value = {"as_int": 1}
    for _ in range(levels):
        value = {"as_string_to_argument": {"a": value}}
    return value


@pytest.mark.parametrize(("given", "said"), [
    ({"as_int": 2**64}, "64 bits"),
    ({"as_int": True}, "64 bits"),
    ({"as_int": 2.5}, "64 bits"),
    ({"as_float": "much"}, "schema"),
    ({"as_float": 10**400}, "64 bits"),
    ({"as_bool": 1}, "true or false"),
    ({"as_string": 3}, "a text is expected"),
    ({"as_string": "half \ud800"}, "surrogate"),
    ({"as_ints": 3}, "a list is expected"),
    ({"as_ints": [1, "x"]}, "64 bits"),
    ({"as_scalar_type": "x"}, "64 bits"),
    ({"as_device": {}}, "schema"),
    ({"as_complex": {"real": 1.0}}, "schema"),
    ({"as_int": 1, "as_bool": True}, "schema"),
    ({}, "schema"),
    (3, "schema"),
])  # fmt: skip
def test_an_argument_that_breaks_the_schema_is_refused(given, said, saved, tmp_path):
    with pytest.raises(InputFault, match=said) as caught:
        read_file(altered(saved, tmp_path, lambda p: called(p, given)))
    assert len(str(caught.value)) < 600


def test_an_argument_that_stands_twice_is_refused(saved, tmp_path):
    def change(program):
        nodes_of(program)[0]["inputs"].append({"name": "input", "arg": {"as_int": 1}, "kind": 1})

    with pytest.raises(InputFault, match="stands twice"):
        read_file(altered(saved, tmp_path, change))


def test_odd_arguments_are_bounded_and_count(saved, tmp_path):
    hashes = {hash_model_architecture(read_file(saved))}
    cases = [
        {"as_ints": list(range(100_000))}, {"as_ints": list(range(100_001))}, {"as_string": "x" * 10**6},
        {"as_float": "NaN"}, {"as_float": "-Infinity"}, {"as_none": True}, {"as_scalar_type": 99}, deep(3),
        deep(20), deep(21),
        {"as_of_a_later_schema": {"what": 1}}, {"as_of_a_later_schema": {"what": 2}}, {"as_layout": 7},
        {"as_memory_format": 2}, {"as_device": {"type": "cuda", "index": 1}},
        {"as_operator": "torch.ops.aten.add.Tensor"},
    ]  # fmt: skip
    for case in cases:
        graph = read_file(altered(saved, tmp_path, lambda program, case=case: called(program, case)))
        assert len(json.dumps(graph.ops[0].arguments)) < 2000
        looked_at(graph)
        hashes.add(hash_model_architecture(graph))
    assert len(hashes) == len(cases) + 1


@pytest.mark.parametrize("levels", [50, 900, 100_000])
def test_deep_nesting_is_refused(levels, saved, tmp_path):
    members = members_of(saved)
    name = next(name for name in members if name.endswith("models/model.json"))
    nested = b'{"a":' * levels + b"1" + b"}" * levels
    members[name] = b'{"schema_version": {"major": 8}, "graph_module": {"graph": ' + nested + b"}}"
    with pytest.raises(InputFault):
        read_file(zipped(tmp_path / "model.pt2", members))


def test_bodies_within_bodies_are_shown(saved, tmp_path):
    """A cond in a cond in a cond, a hundred deep."""

    def change(program):
        graph = program["graph_module"]["graph"]
        inner = {"inputs": [], "outputs": [], "nodes": [], "tensor_values": {}}
        for _ in range(100):
            argument = {"name": "f", "arg": {"as_graph": {"name": "body", "graph": inner}}, "kind": 1}
            node = {"name": "c", "target": "t", "inputs": [argument], "outputs": [], "metadata": {}}
            inner = {"inputs": [], "outputs": [], "nodes": [node], "tensor_values": {}}
        graph["nodes"] += inner["nodes"]

    looked_at(read_file(altered(saved, tmp_path, change)))


NASTY = '<img src=x onerror="alert(1)">\x1b[31m\x00\u202e</script>'


def test_names_with_markup_and_control_characters_arrive_as_plain_text(saved, tmp_path):
    def change(program):
        node = nodes_of(program)[-1]
        node["name"] = NASTY
        node["outputs"][0]["as_tensor"]["name"] = NASTY
        node["target"] = NASTY
        node["metadata"] = {
            "nn_module_stack": f"k,{NASTY},t",
            "stack_trace": f'File "a", line 1, in f\n  {NASTY}',
        }
        program["graph_module"]["graph"]["outputs"] = [{"as_tensor": {"name": NASTY}}]

    node = read_file(altered(saved, tmp_path, change)).ops[-1]
    assert (node.id, node.target, node.code) == (NASTY, NASTY, NASTY)
    assert node.module == NASTY


@pytest.mark.parametrize("member", ["m\x1b[31m/models/x.json", "m/models/\n\x00\x1b.json"])
@pytest.mark.parametrize(
    "text", ["\x1b[31m", '{"\x1b[31m": 1}', '{"schema_version": {"major": 8}, "graph_module": 3}']
)
def test_no_message_carries_control_characters(member, text, tmp_path):
    with pytest.raises(InputFault) as caught:
        read_file(zipped(tmp_path / "model.pt2", {member: text.encode()}))
    assert str(caught.value).isprintable()


def looked_at(graph: TorchGraph) -> None:
    """What every page does with a graph."""
    hash_model_architecture(graph)
    region_tree(prepare(graph))
    estimated_nodes(graph)
    estimate_rows(graph, ("A100-80GB",), (1, 3))


def places_of(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in pairs for place in ((value, key), *places_of(inner))]


def test_three_hundred_mutations_are_a_graph_or_a_fault(saved, tmp_path):
    dice = random.Random(11)
    odd = (
        None, True, -1, 0, 1.5, 10**400, 2**62, "", "x", "linear", "p_stem_bias", "s0", "y" * 5000, NASTY, "\ud800",
        [], {}, [[[]]], [None], {"as_int": 3}, {"as_tensor": {"name": "x"}}, {"as_none": True}, {"as_expr": {}},
    )  # fmt: skip
    graphs = 0
    for _ in range(300):

        def change(program):
            for _ in range(dice.choice((1, 1, 2, 5))):
                container, key = dice.choice(places_of(program))
                how = dice.randrange(4)
                if how == 0:
                    del container[key]
                elif how == 1 and isinstance(container, list):
                    container.insert(dice.randrange(len(container)), container[key])
                elif how == 2:
                    other, another = dice.choice(places_of(program))
                    container[key] = json.loads(json.dumps(other[another]))
                else:
                    container[key] = dice.choice(odd)

        try:
            graph = read_file(altered(saved, tmp_path, change))
            graphs += 1
            looked_at(graph)
        except InputFault as fault:
            assert len(str(fault)) < 1000 and str(fault).isprintable()
    assert 30 < graphs < 270


def test_a_description_larger_than_memory_allows_is_refused_with_the_figure(tmp_path):
    """A few kilobytes that unpack to a list of very many lists."""
    nested = b'{"schema_version": {"major": 8}, "x": [' + b"[]," * 20_000_000 + b"[]]}"
    path = zipped(tmp_path / "model.pt2", {"m/models/model.json": nested})
    with pytest.raises(InputFault, match=r"out of memory.*0\.9 GiB"):
        trace(str(path), limits=Limits(memory_bytes=10**9))


@pytest.mark.parametrize("key", ["schema_version", "is_single_tensor_return", "target"])
def test_a_key_that_stands_twice_is_refused(key, saved, tmp_path):
    """At each depth: in what is walked through and in what is taken whole."""
    members = members_of(saved)
    name = next(name for name in members if name.endswith("models/model.json"))
    mark = f'"{key}":'.encode()
    assert mark in members[name]
    members[name] = members[name].replace(mark, mark + b" null, " + mark, 1)
    with pytest.raises(InputFault, match=f"the key '{key}' stands twice in one object"):
        read_file(zipped(tmp_path / "model.pt2", members))
