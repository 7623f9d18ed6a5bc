"""Every step of the preparation alone, left out, and put back; what the report says of each."""

from itertools import chain, combinations

import networkx as nx
import pytest

from tests.support.graph.cases import leaf, masked_encoder, op, regions_by_definition, traced_at_random
from tests.support.seeds import in_blocks
from torchsplit_core.graph import (
    ALL_STEPS,
    STEPS,
    TorchGraph,
    fates,
    preparation_report,
    prepare,
    region_tree,
)
from torchsplit_core.graph.preparation.prepare import live_nodes
from torchsplit_core.graph.preparation.step_report import STEP_OF
from torchsplit_core.values import GraphNode, InputFault

SUBSETS = list(chain.from_iterable(combinations(ALL_STEPS, count) for count in range(len(ALL_STEPS) + 1)))
ENCODER = masked_encoder()
RAW = prepare(ENCODER, ())


def alone(prepared):
    """The units of several nodes, without those of one."""
    return {unit.id: unit.members for unit in prepared.units if len(unit.members) > 1}


def test_without_any_step_every_node_is_a_unit_and_every_read_an_edge():
    names = [node.id for node in ENCODER.nodes if node.kind != "output"]
    assert sorted(RAW.by_id) == sorted(names) and not alone(RAW)
    assert sorted((e.source, e.target) for e in RAW.edges) == sorted(
        (read, node.id) for node in ENCODER.nodes if node.kind != "output" for read in node.inputs
    )
    assert all(edge.value == edge.source for edge in RAW.edges)
    assert (RAW.dead, RAW.sideband, RAW.steps) == ((), frozenset(), ())
    assert RAW.by_id["w0"].kind == "weight" and RAW.by_id["w0"].output_bytes == 4000
    assert {unit.weight_bytes for unit in RAW.units} == {0}
    assert RAW.by_id["angles"].kind == RAW.by_id["assertion"].kind == "op"
    assert region_tree(RAW).cut_points == ()


def test_dead_alone_sets_aside_what_no_output_needs():
    prepared = prepare(ENCODER, ("dead",))
    assert prepared.dead == ("assertion",)
    assert prepared.units == tuple(unit for unit in RAW.units if unit.id != "assertion")
    assert prepared.edges == tuple(edge for edge in RAW.edges if edge.target != "assertion")
    assert prepared.sideband == frozenset()
    graph = TorchGraph((
        leaf("x"), leaf("w", "parameter"), leaf("v", "parameter"), op("a", "x", "w"), op("unused", "a", "v"),
        GraphNode("output", "output", inputs=("a",)),
    ))  # fmt: skip
    assert "v" in prepare(graph, ()).by_id and "v" not in prepare(graph, ("dead",)).by_id
    assert fates(prepare(graph))["v"].became == "dead"


def test_constants_alone_join_their_one_reader():
    prepared = prepare(ENCODER, ("constants",))
    assert alone(prepared) == {f"qkv{i}": (f"wt{i}", f"qkv{i}") for i in range(3)}
    assert [unit.id for unit in prepared.units if unit.kind == "constant"] == ["angles"]
    assert {e for e in prepared.edges if e.target == "qkv1" and e.source == "w1"}
    assert (prepared.dead, prepared.sideband) == ((), frozenset())
    assert {unit.id for unit in RAW.units} - {unit.id for unit in prepared.units} == {"wt0", "wt1", "wt2"}


def test_aliases_alone_join_their_producer_and_views_of_weights_do_not():
    prepared = prepare(ENCODER, ("aliases",))
    assert alone(prepared) == {
        **{f"qkv{i}": (f"qkv{i}", f"split{i}", f"q{i}", f"k{i}") for i in range(3)},
        **{f"attn{i}": (f"attn{i}", f"view{i}") for i in range(3)},
    }
    assert "wt0" in prepared.by_id and {unit.kind for unit in prepared.units} == {"input", "weight", "op"}
    assert (prepared.dead, prepared.sideband) == ((), frozenset())


def test_weights_alone_are_charged_to_all_that_read_them():
    prepared = prepare(ENCODER, ("weights",))
    weights = {unit.id for unit in RAW.units if unit.kind == "weight"}
    assert prepared.by_id.keys() == RAW.by_id.keys() - weights and not alone(prepared)
    assert {unit.id: unit.weight_bytes for unit in prepared.units if unit.weights} == {
        "embed": 5000, "angles": 64, "wt0": 4000, "wt1": 4000, "wt2": 4000,
    }  # fmt: skip
    assert prepared.edges == tuple(edge for edge in RAW.edges if edge.source not in weights)


def test_the_side_band_alone_takes_masks_from_the_values_that_count():
    prepared = prepare(ENCODER, ("side-band",))
    assert (prepared.units, prepared.edges) == (RAW.units, RAW.edges)
    assert prepared.sideband == {"mask", "cast", "bias", "positions", "angles"}
    assert not set(prepared.main_ids) & prepared.sideband
    assert all(source not in prepared.sideband for source, _ in prepared.main_edges)


@pytest.mark.parametrize("steps", [steps for steps in SUBSETS if "aliases" in steps])
def test_a_view_with_symbolic_sizes_is_fused_whatever_else_is_done(steps):
    graph = TorchGraph((
        leaf("x"), leaf("w", "parameter"), op("n", "x", target="aten.sym_size.int", size=0),
        op("a", "x", "w"), op("v", "a", "n", target="aten.view.default"),
        GraphNode("output", "output", inputs=("v",)),
    ))  # fmt: skip
    assert prepare(graph, steps).unit_of["v"] == "a"


def test_a_small_parameter_is_no_side_band_and_a_small_buffer_is():
    graph = TorchGraph((
        leaf("x"), leaf("p", "parameter", 1), leaf("b", "buffer", 1), op("a", "x", "p", "b"), op("z", "a", "p", "b"),
        GraphNode("output", "output", inputs=("z",)),
    ))  # fmt: skip
    assert prepare(graph, ("side-band",)).sideband == {"b"}


def test_a_constant_of_a_parameter_that_counts_as_a_value_is_no_side_band():
    graph = TorchGraph((
        leaf("x"), leaf("w", "parameter"), op("table", "w", size=1), op("a", "x", "table"), op("b", "a", "table"),
        GraphNode("output", "output", inputs=("b",)),
    ))  # fmt: skip
    assert prepare(graph).sideband == {"table"}
    assert prepare(graph, ("constants", "side-band")).sideband == frozenset()
    assert prepare(graph, ("weights", "side-band")).sideband == frozenset()


@pytest.mark.parametrize("left_out", ALL_STEPS)
def test_what_leaving_one_step_out_costs_the_encoder(left_out):
    """Its views lie inside the blocks: they cost no cut point."""
    found = region_tree(prepare(ENCODER, [name for name in ALL_STEPS if name != left_out])).cut_points
    expected = {
        "dead": ("ids",), "constants": (), "aliases": ("ids", "embed", "add0", "add1"), "weights": (),
        "side-band": (),
    }  # fmt: skip
    assert found == expected[left_out]


@in_blocks("seed", range(250))
def test_any_steps_give_units_that_hold_each_live_operation_once_without_a_cycle(seed):
    graph = traced_at_random(seed)
    needed = live_nodes(graph)
    for steps in SUBSETS:
        prepared = prepare(graph, steps)
        kinds = {"op", "input"} if "weights" in steps else {"op", "input", "parameter", "buffer", "constant"}
        live = [n.id for n in graph.nodes if n.kind in kinds and ("dead" not in steps or n.id in needed)]
        assert sorted(name for unit in prepared.units for name in unit.members) == sorted(live), steps
        place = {unit.id: i for i, unit in enumerate(prepared.units)}
        assert all(place[edge.source] < place[edge.target] for edge in prepared.edges), steps
        read = {
            (i, prepared.unit_of[node.id])
            for node in graph.nodes if node.id in prepared.unit_of
            for i in node.inputs if prepared.unit_of.get(i) not in (None, prepared.unit_of[node.id])
        }  # fmt: skip
        assert {(e.value, e.target) for e in prepared.edges} == read, steps
        closed = [e for e in prepared.edges if e.target in prepared.sideband]
        assert all(edge.source in prepared.sideband for edge in closed), steps
        assert bool(prepared.dead) == ("dead" in steps and any(n.id not in needed for n in graph.ops)), steps


@in_blocks("seed", range(40))
def test_the_regions_of_any_steps_are_those_of_the_definition(seed):
    graph = traced_at_random(seed, 9)
    for steps in SUBSETS:
        prepared = prepare(graph, steps)
        tree = region_tree(prepared)
        tree.verify()
        defined = regions_by_definition(prepared.main_ids, prepared.main_edges)
        chains = [region.elements for region in tree.regions if region.kind == "chain"]
        assert {pair for chain in chains for pair in combinations(chain, 2)} == set(defined), steps
        for region in tree.regions:
            assert set(region.ids) == defined[region.start, region.end], steps


@in_blocks("seed", range(30))
def test_a_step_left_out_and_put_back_gives_what_was_before(seed):
    graph = traced_at_random(seed)
    before = prepare(graph)
    assert before.steps == ALL_STEPS
    for left_out in ALL_STEPS:
        steps = [name for name in ALL_STEPS if name != left_out]
        assert prepare(graph, steps).steps == tuple(steps)
        assert prepare(graph, [left_out, *reversed(steps), left_out]) == before


@in_blocks("seed", range(60))
def test_what_the_first_steps_do_is_the_same_with_and_without_those_behind(seed):
    graph = traced_at_random(seed)

    def did(*steps):
        found = fates(prepare(graph, steps))
        return {
            name: fate.became for name, fate in found.items() if STEP_OF.get(fate.became) in ALL_STEPS[:3]
        }

    for weights, sideband in ((("weights",), ()), ((), ("side-band",)), (("weights",), ("side-band",))):
        assert did(*ALL_STEPS[:3], *weights, *sideband) == did(*ALL_STEPS[:3])


def test_the_fate_of_every_node_of_the_encoder():
    fate = fates(prepare(ENCODER))
    assert list(fate) == [name for name in ENCODER.topological_ids if name != "output"]
    assert (fate["assertion"].became, fate["assertion"].to) == ("dead", ())
    assert (fate["wt0"].became, fate["wt0"].to) == ("folded", ("qkv0",))
    assert (fate["q2"].became, fate["q2"].to) == ("fused", ("qkv2",))
    assert (fate["w1"].became, fate["w1"].to) == ("charged", ("qkv1",))
    assert (fate["bias"].became, fate["bias"].beside) == ("side-band", True)
    assert (fate["add0"].became, fate["add0"].to, fate["add0"].beside) == ("kept", (), False)


def test_a_view_of_a_mask_joins_it_and_goes_beside_with_it():
    nodes = [*ENCODER.nodes[:-1], op("turned", "bias", target="aten.view.default", size=10)]
    graph = TorchGraph(
        (*nodes, op("last", "turned", "add2"), GraphNode("output", "output", inputs=("last",)))
    )
    found = fates(prepare(graph))["turned"]
    assert (found.became, found.to, found.beside) == ("fused", ("bias",), True)


def test_a_view_of_a_constant_that_several_read_joins_it():
    graph = TorchGraph((
        leaf("x"), leaf("c", "buffer"), op("table", "c"), op("turned", "table", target="aten.view.default"),
        op("a", "x", "table", "turned"), op("b", "a", "turned"), GraphNode("output", "output", inputs=("b",)),
    ))  # fmt: skip
    found = fates(prepare(graph))["turned"]
    assert (found.became, found.to) == ("fused", ("table",))


def test_a_tied_weight_is_charged_to_all_its_readers():
    graph = TorchGraph((
        leaf("x"), leaf("w", "parameter"), op("a", "x", "w"), op("b", "a", "w"),
        GraphNode("output", "output", inputs=("b",)),
    ))  # fmt: skip
    assert fates(prepare(graph))["w"].to == ("a", "b")


@in_blocks("seed", range(40))
def test_every_node_has_one_fate_and_it_is_where_the_units_say(seed):
    graph = traced_at_random(seed)
    for steps in SUBSETS:
        prepared = prepare(graph, steps)
        found = fates(prepared)
        assert set(found) == {node.id for node in graph.nodes if node.kind != "output"}
        assert {STEP_OF[f.became] for f in found.values() if f.became != "kept"} <= set(steps)
        for name, fate in found.items():
            unit = prepared.unit_of.get(name)
            assert (unit is None) == (fate.became in ("dead", "charged")), (steps, name)
            if fate.became in ("folded", "fused"):
                assert fate.to == (unit,) and unit != name
            assert fate.beside == (unit in prepared.sideband)


def test_the_report_follows_the_graph_from_step_to_step():
    rows = preparation_report(ENCODER)
    assert [row.step for row in rows] == [None, *STEPS]
    assert [(row.units, row.cut_points, row.regions) for row in rows] == [
        (36, 0, 2), (35, 0, 3), (32, 0, 3), (20, 0, 3), (15, 0, 3), (11, 4, 4),
    ]  # fmt: skip
    assert [row.cut_points_without for row in rows] == [None, 1, 0, 4, 0, 0]
    assert [len(row.touched) for row in rows] == [0, 1, 3, 12, 5, 4]
    assert rows[1].touched == {"assertion": ()} and rows[2].touched["wt1"] == ("qkv1",)
    assert rows[3].touched["view0"] == ("attn0",) and rows[4].touched["embedding"] == ("embed",)
    assert list(rows[5].touched) == ["mask", "cast", "angles", "bias"]


@pytest.mark.parametrize("seed", range(20))
def test_a_row_of_the_report_is_the_graph_after_its_step(seed):
    graph = traced_at_random(seed)
    for steps in SUBSETS[::3]:
        rows = preparation_report(graph, steps)
        assert [row.step.name for row in rows if row.step] == list(steps)
        for count, row in enumerate(rows):
            prepared = prepare(graph, steps[:count])
            drawn = nx.DiGraph(prepared.main_edges)
            drawn.add_nodes_from(prepared.main_ids)
            assert (row.units, row.edges) == (drawn.number_of_nodes(), drawn.number_of_edges())
            assert row.cut_points == len(region_tree(prepared).cut_points)
            assert set(row.touched).isdisjoint(chain(*(other.touched for other in rows[:count])))


def test_another_name_is_no_step():
    with pytest.raises(InputFault, match="inline"):
        prepare(ENCODER, ("dead", "inline"))
    assert len({step.name for step in STEPS}) == 5 and all(step.about.endswith(".") for step in STEPS)
