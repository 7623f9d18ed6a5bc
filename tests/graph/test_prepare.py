"""Each step of the preparation on a graph as an exporter writes it."""

import pytest

from tests.support.graph.cases import leaf, masked_encoder, op, random_dag
from tests.support.seeds import in_blocks
from torchsplit_core.graph import TorchGraph, prepare, region_tree
from torchsplit_core.graph.preparation.prepare import constant_nodes, live_nodes
from torchsplit_core.values import GraphNode


@pytest.fixture
def encoder():
    return prepare(masked_encoder())


def test_dead_operations_are_set_aside(encoder):
    assert encoder.dead == ("assertion",)
    assert "assertion" not in live_nodes(encoder.graph)


def test_every_live_operation_and_input_is_in_exactly_one_unit(encoder):
    members = [name for unit in encoder.units for name in unit.members]
    expected = [n.id for n in encoder.graph.nodes if n.kind in ("op", "input") and n.id != "assertion"]
    assert sorted(members) == sorted(expected)


def test_weights_are_charged_to_their_reader(encoder):
    assert encoder.by_id["embed"].weight_bytes == 5000
    assert encoder.by_id["qkv0"].weights == ("w0",)
    assert encoder.by_id["add0"].weight_bytes == 0


def test_constants_with_one_reader_join_it_and_others_go_beside(encoder):
    assert encoder.unit_of["wt1"] == "qkv1"
    assert encoder.by_id["angles"].kind == "constant" and "angles" in encoder.sideband
    assert constant_nodes(encoder.graph, ["angles", "embed"]) == {"angles"}


def test_getitem_and_views_join_their_producer(encoder):
    assert encoder.by_id["qkv0"].members == ("wt0", "qkv0", "split0", "q0", "k0")
    assert encoder.unit_of["view0"] == "attn0"
    assert encoder.by_id["qkv0"].output_bytes == 2000  # q and k cross, the whole does not


def test_the_mask_is_shipped_beside_and_the_ids_are_not(encoder):
    assert encoder.sideband == {"mask", "cast", "bias", "angles"}


def test_a_mask_larger_than_the_hidden_state_is_no_sideband():
    graph = masked_encoder()
    nodes = tuple(
        n if n.id != "bias" else op("bias", "cast", target="aten.mul.Tensor", size=90_000)
        for n in graph.nodes
    )
    assert prepare(TorchGraph(nodes)).sideband == {"angles"}


def test_preparation_is_what_gives_the_encoder_its_cut_points(encoder):
    raw = masked_encoder()
    edges = tuple((s, n.id) for n in raw.nodes for s in n.inputs)
    assert region_tree(([n.id for n in raw.nodes], edges)).cut_points == ()
    assert region_tree(encoder).cut_points == ("ids", "embed", "add0", "add1")


def test_an_alias_with_a_second_source_stays_alone():
    graph = TorchGraph((
        leaf("x"), leaf("w", "parameter"), op("a", "x", "w"), op("b", "a", "w"),
        op("v", "a", "b", target="aten.view_as.default"), op("i", "v", target="aten.select.int"),
        GraphNode("output", "output", inputs=("i",)),
    ))  # fmt: skip
    prepared = prepare(graph)
    assert prepared.unit_of["v"] == "v" and prepared.unit_of["i"] == "v"


def test_symbolic_sizes_do_not_keep_a_view_apart():
    graph = TorchGraph((
        leaf("x"), leaf("w", "parameter"), op("n", "x", target="aten.sym_size.int", size=0),
        op("a", "x", "w"), op("v", "a", "n", target="aten.view.default"),
        op("b", "v", "w"), op("u", "b", "n", target="aten.view.default"),
        GraphNode("output", "output", inputs=("u",)),
    ))  # fmt: skip
    prepared = prepare(graph)
    assert prepared.unit_of["v"] == "a" and prepared.unit_of["u"] == "b"
    assert "n" in prepared.sideband and region_tree(prepared).cut_points == ("a",)


def test_a_view_stays_apart_from_an_input_that_its_sizes_come_from():
    graph = TorchGraph((
        leaf("x"), leaf("w", "parameter"), op("n", "x", target="aten.sum.default"),
        op("picked", "x", "w", target="getitem"), op("v", "picked", "n", target="aten.view.default"),
        GraphNode("output", "output", inputs=("v",)),
    ))  # fmt: skip
    prepared = prepare(graph)
    assert prepared.unit_of["picked"] == "x" and prepared.unit_of["v"] == "v"


def test_a_view_of_a_constant_stays_apart_when_constants_that_joined_it_read_that_one():
    graph = TorchGraph((
        leaf("x"), leaf("c", "buffer"), op("table", "c"), op("turned", "table"), op("size", "turned"),
        op("v", "table", "size", target="aten.view.default"), op("y", "x", "v"), op("z", "y", "v", "turned"),
        GraphNode("output", "output", inputs=("z",)),
    ))  # fmt: skip
    prepared = prepare(graph)
    assert prepared.unit_of["size"] == "v" != prepared.unit_of["table"]


def test_a_higher_order_operation_is_one_unit_with_its_weights():
    graph = TorchGraph((
        leaf("x"), leaf("p"), leaf("w", "parameter", 70), op("choose", "p", "w", "x", target="cond", size=0),
        op("first", "choose", target="getitem"), GraphNode("output", "output", inputs=("first",)),
    ), subgraphs={"choose": TorchGraph(())})  # fmt: skip
    unit = prepare(graph).by_id["choose"]
    assert unit.members == ("choose", "first") and unit.weight_bytes == 70


def test_a_model_without_parameters_has_no_sideband_of_masks():
    graph = TorchGraph(
        (leaf("x"), op("a", "x"), op("b", "x"), op("c", "a", "b"), GraphNode("o", "output", inputs=("c",)))
    )
    assert prepare(graph).sideband == frozenset()


@in_blocks("seed", range(60))
def test_units_of_random_graphs_are_acyclic_and_complete(seed):
    ids, edges = random_dag(seed, 20)
    targets = ("aten.view.default", "aten.add.Tensor", "getitem", "aten.linear.default")
    kinds = {name: "input" if seed % 2 else ("parameter" if i % 3 else "input") for i, name in enumerate(ids)}
    nodes = []
    for i, name in enumerate(ids):
        inputs = tuple(s for s, t in edges if t == name)
        nodes.append(op(name, *inputs, target=targets[i % 4]) if inputs else leaf(name, kinds[name]))
    prepared = prepare(TorchGraph(tuple(nodes)))
    seen = set()
    arriving = {(e.source, e.target) for e in prepared.edges}
    for unit in prepared.units:
        assert all(source in seen for source, target in arriving if target == unit.id)
        seen.add(unit.id)
    live = [n.id for n in nodes if n.kind in ("op", "input") and n.id not in prepared.dead]
    assert sorted(prepared.unit_of) == sorted(live)
