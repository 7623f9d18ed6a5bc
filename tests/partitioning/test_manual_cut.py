"""Cuts behind values that a person named, against every contiguous cut; and why a cut lies where it does."""

import random
from itertools import product

import pytest

from tests.support.partitioning.profiles import GRAPH, even_profile
from tests.support.seeds import in_blocks
from torchsplit_core.graph import TorchGraph
from torchsplit_core.partitioning import PartitionProvider, cut_behind, cut_reasons, verify_candidate
from torchsplit_core.partitioning.blocks.block_graph import contract
from torchsplit_core.values import GraphNode, InputFault

LINK = 1e-4


def provider_of(graph=GRAPH):
    return PartitionProvider(graph, even_profile(graph))


def random_graph(seed):
    rng = random.Random(seed)
    nodes = [GraphNode("x", "input", output_bytes=100)]
    for i in range(rng.randint(3, 9)):
        known = [n.id for n in nodes]
        reads = tuple(dict.fromkeys(rng.choices(known, k=rng.randint(1, 2))))
        size = rng.choice((10, 100, 1000))
        nodes.append(GraphNode(f"n{i}", "op", target="aten.mm.default", inputs=reads, output_bytes=size))
    read = {i for n in nodes for i in n.inputs}
    nodes.append(GraphNode("output", "output", inputs=tuple(n.id for n in nodes if n.id not in read)))
    return TorchGraph(tuple(nodes), architecture_hash="h", traced_batch=2)


def needs(request, stages, names):
    """Whether every stage but the last holds what its value needs, and nothing that needs the value."""
    reads = {}
    for edge in request.edges:
        reads.setdefault(edge.target, set()).add(edge.source)

    def above(name):
        found, stack = {name}, [name]
        while stack:
            for element in reads.get(stack.pop(), ()):
                if element not in found:
                    found.add(element)
                    stack.append(element)
        return found

    stage_of = {n: i for i, stage in enumerate(stages) for n in stage}
    for cut, name in enumerate(names):
        assert all(stage_of[n] <= cut for n in above(name))
        assert all(stage_of[n] > cut for n in stage_of if n != name and name in above(n))


@in_blocks("seed", range(40))
def test_a_cut_behind_a_value_has_before_it_all_that_the_value_needs(seed):
    graph = random_graph(seed)
    provider = provider_of(graph)
    request = provider.request(2, 1, LINK)
    read = {edge.source for edge in request.edges}
    bound = provider.solve(request).bound_ms
    grouped = {n.id for n in request.nodes if n.group is not None}
    for node in request.nodes:
        if node.id not in read:
            with pytest.raises(InputFault, match="nothing is computed behind"):
                cut_behind(provider, [node.id], link_gb_per_s=LINK)
            continue
        cut = cut_behind(provider, [node.id], link_gb_per_s=LINK)
        verify_candidate(request, cut)
        assert cut.max_load_ms >= bound * (1 - 1e-9) and len(cut.stages) == 2
        if not grouped:
            needs(request, cut.stages, [node.id])


@in_blocks("seed", range(40))
def test_several_cuts_nest_in_the_order_of_the_graph(seed):
    graph = random_graph(seed)
    provider = provider_of(graph)
    request = provider.request(3, 1, LINK)
    blocks = contract(request)
    read = {edge.source for edge in request.edges}
    inner = [request.nodes[b.nodes[0]].id for b in blocks.blocks if request.nodes[b.nodes[0]].id in read]
    for pair in product(inner, inner):
        if inner.index(pair[0]) >= inner.index(pair[1]):
            continue
        cut = cut_behind(provider, reversed(pair), link_gb_per_s=LINK)
        verify_candidate(request, cut)
        needs(request, cut.stages, pair)


def test_what_belongs_to_neither_side_goes_where_it_is_better():
    # a long branch beside the chosen value: with it behind the cut the parts are 2 and 5 operations
    names = ["a", "b", *(f"c{i}" for i in range(4)), "z"]
    nodes = [GraphNode("x", "input", output_bytes=4)]
    reads = {
        "a": ("x",), "b": ("a",), "c0": ("x",), "c1": ("c0",), "c2": ("c1",), "c3": ("c2",), "z": ("b", "c3"),
    }  # fmt: skip
    nodes += [GraphNode(n, "op", target="aten.mm.default", inputs=reads[n], output_bytes=4) for n in names]
    nodes.append(GraphNode("output", "output", inputs=("z",)))
    provider = provider_of(TorchGraph(tuple(nodes), architecture_hash="h", traced_batch=2))
    cut = cut_behind(provider, ["b"])
    assert cut.stages == (("x", "a", "b"), ("c0", "c1", "c2", "c3", "z"))
    assert cut.loads_ms == (pytest.approx(20 / 7), pytest.approx(50 / 7))
    other = cut_behind(provider, ["c3"])
    assert other.stages == (("x", "c0", "c1", "c2", "c3"), ("a", "b", "z"))


def test_results_that_nothing_needs_stay_with_what_they_read():
    cut = cut_behind(provider_of(), ["mm0", "out2"], link_gb_per_s=LINK)
    assert "check" in cut.stages[0]


def test_the_figures_are_those_of_the_same_cut_among_the_candidates():
    provider = provider_of()
    best = provider.solve(provider.request(2, 5, LINK)).candidates
    region = provider.region_candidates(provider.request(2, 1, LINK))[0]
    cut = cut_behind(provider, ["out1"], link_gb_per_s=LINK)
    assert cut == region and cut.max_load_ms >= best[0].max_load_ms
    assert cut.times_ms[2] == pytest.approx((5.0, 5.0), abs=1.0) and cut.latency_ms > 10.0


def test_on_unequal_devices_the_longest_part_runs_on_the_fastest():
    cut = cut_behind(provider_of(), ["out0"], time_factors=(4.0, 2.0, 1.0))
    assert cut.devices == (1, 2)
    assert cut.loads_ms == tuple(t * f for t, f in zip(cut.times_ms[2], (2.0, 1.0), strict=True))
    with pytest.raises(InputFault, match="3 stages for 2 devices"):
        cut_behind(provider_of(), ["out0", "out1"], time_factors=(1.0, 2.0))


@pytest.mark.parametrize(("names", "words"), [
    (["w0"], "'w0' is no operation or input"),
    (["gone"], "'gone' is no operation or input"),
    (["out3"], "nothing is computed behind 'out3'"),
    (["mm0", "v0"], "in the same unit as another"),
])  # fmt: skip
def test_what_cannot_end_a_stage_is_refused(names, words):
    with pytest.raises(InputFault, match=words):
        cut_behind(provider_of(), names)


def test_a_cut_at_a_cut_point_is_explained_by_the_one_value_that_crosses():
    provider = provider_of()
    (reason,) = cut_reasons(provider, cut_behind(provider, ["out1"]))
    assert (reason.cut_point, reason.inside, reason.after) == ("out1", None, 1)
    assert [(v.id, v.output_bytes, v.sideband) for v in reason.crossing] == [
        ("out1", 100, False),
        ("mask", 10, True),
    ]
    assert cut_reasons(provider, provider.solve(provider.request(1)).candidates[0]) == ()


def test_a_cut_inside_a_block_names_the_region_it_runs_through():
    provider = provider_of()
    reasons = cut_reasons(provider, cut_behind(provider, ["v1", "out2"]))
    assert [reason.cut_point for reason in reasons] == [None, "out2"]
    assert reasons[0].ends == ("out0", "out1") and {v.id for v in reasons[0].crossing} == {
        "v1", "out0", "mask",
    }  # fmt: skip
    region = provider.regions.regions[reasons[0].inside]
    assert (region.start, region.end) == ("out0", "out1") and reasons[1].inside is None
