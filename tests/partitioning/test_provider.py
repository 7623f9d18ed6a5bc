"""Candidates of a model: complete stages, true peaks, region cuts, and the limits of memory."""

from dataclasses import replace

import pytest

from tests.support.partitioning.parts import graph_of, sample_program
from tests.support.partitioning.profiles import GRAPH, even_profile, row
from torchsplit_core.partitioning import PartitionProvider, solve_partitioning_problem, verify_outcome
from torchsplit_core.partitioning.blocks.stage_memory import StageMemory, stage_weights
from torchsplit_core.partitioning.provider import reference_row
from torchsplit_core.values import InputFault, NodeProfile

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("stages", [1, 2, 3, 6])
@pytest.mark.parametrize("link", [None, 1e-6])
def test_stages_hold_every_operation_and_input_once(stages, link):
    outcome = solve_partitioning_problem(GRAPH, even_profile(GRAPH), stages=stages, link_gb_per_s=link)
    expected = sorted(n.id for n in GRAPH.nodes if n.kind in ("op", "input"))
    assert outcome.status == "optimal" and (outcome.source, outcome.architecture_hash) == ("model", "h")
    for candidate in outcome.candidates:
        assert sorted(name for stage in candidate.stages for name in stage) == expected
        assert len(candidate.stages) <= stages and len(candidate.cut_bytes) == len(candidate.stages) - 1
        assert sum(candidate.loads_ms) >= 10.0 - 1e-9


def test_the_best_region_cut_is_always_offered_and_ships_only_one_value_and_the_mask():
    profile = even_profile(GRAPH)
    provider = PartitionProvider(GRAPH, profile)
    assert provider.prepared.sideband == {"mask"} and provider.regions.cut_points == (
        "x", "out0", "out1", "out2",
    )  # fmt: skip
    request = provider.request(2, top_k=2)
    region = provider.region_candidates(request)[0]
    assert region.cut_bytes == (110,) and region.stages[0][-1] == "out1"
    assert region.stages in {c.stages for c in provider.candidates(request)}


def test_views_stay_with_their_producer():
    outcome = solve_partitioning_problem(GRAPH, even_profile(GRAPH), stages=6, top_k=9)
    for candidate in outcome.candidates:
        home = {name: i for i, stage in enumerate(candidate.stages) for name in stage}
        assert all(home[f"mm{i}"] == home[f"v{i}"] for i in range(4))


def test_cuts_are_limited_to_the_batches_of_their_graph():
    graph = replace(GRAPH, largest_batch=7)
    assert solve_partitioning_problem(graph, even_profile(graph), stages=2).largest_batch == 7


def test_a_model_without_operations_has_nothing_to_cut():
    inputs = replace(GRAPH, nodes=tuple(node for node in GRAPH.nodes if node.kind == "input"))
    with pytest.raises(InputFault, match="model: has no operations, so there is nothing to cut"):
        PartitionProvider(inputs, replace(even_profile(GRAPH), nodes=()))


def test_peak_memory_by_hand():
    # x (200) enters and is read last by out0; mask (10) is read by bias0 but kept for later stages.
    stage = ("x", "mask", "mm0", "v0", "bias0", "out0")
    # Live at out0: x 200, mask 10, bias0 100, and its own output 100; mm0 (its view is the same) has ended.
    assert StageMemory(GRAPH).peak_bytes(stage) == 1000 + 410
    assert stage_weights(GRAPH, stage) == {"w0"}
    # A later stage holds out0 and mask from its start: at out1 out0 100, mask 10, bias1 100, out1 100.
    assert StageMemory(GRAPH).peak_bytes(("mm1", "v1", "bias1", "out1")) == 1000 + 310
    # In the whole model out0, mask and mm1's output are alive at mm1 (210): 4790 more are mm1's own need.
    annotated = replace(GRAPH, metadata={"mm1": NodeProfile("mm1", 0.1, 100, 5000)})
    assert StageMemory(annotated).peak_bytes(("mm1", "v1", "bias1", "out1")) == 1000 + 210 + 4790
    # A stage of mm1 alone holds the same values; what a profile says of more than the model needs is not doubled.
    less = replace(GRAPH, metadata={"mm1": NodeProfile("mm1", 0.1, 100, 150)})
    assert StageMemory(less).peak_bytes(("mm1", "v1", "bias1", "out1")) == 1000 + 310


def test_memory_counts_weights_and_activations():
    profile = even_profile(GRAPH)
    free = solve_partitioning_problem(GRAPH, profile, stages=4)
    need = min(max(c.peak_memory_bytes) for c in free.candidates if len(c.stages) == 4)
    tight = solve_partitioning_problem(GRAPH, profile, stages=4, memory_bytes=need)
    assert tight.candidates and all(max(c.peak_memory_bytes) <= need for c in tight.candidates)
    weights_only = solve_partitioning_problem(GRAPH, profile, stages=4, memory_bytes=1000)
    assert weights_only.status == "timeout" and "activations" in weights_only.message
    assert solve_partitioning_problem(GRAPH, profile, stages=2, memory_bytes=1000).status == "infeasible"
    names = solve_partitioning_problem(GRAPH, profile, stages=4, memory_bytes=900)
    assert names.status == "infeasible" and "mm0" in names.message


def test_a_weight_read_twice_counts_in_both_stages():
    nodes = tuple(
        replace(n, inputs=tuple("w0" if i.startswith("w") else i for i in n.inputs)) for n in GRAPH.nodes
    )
    tied = replace(GRAPH, nodes=nodes)
    best = solve_partitioning_problem(tied, even_profile(tied), stages=2).candidates[0]
    assert all(peak > 1000 for peak in best.peak_memory_bytes)


def test_the_reference_row_is_measured_and_nearest_in_batch():
    rows = (row(1, 5.0), row(4, 9.0), row(2, 7.0, "estimated"), row(3, 8.0), row(2, 1.0, stage="part"))
    profile = even_profile(GRAPH, *rows)
    assert reference_row(profile, 3) == rows[3] and reference_row(profile, 100) == rows[1]
    assert (
        reference_row(even_profile(GRAPH, row(8, 3.0, "estimated"), row(2, 4.0, "estimated")), 2).latency_ms
        == 3.0
    )
    assert PartitionProvider(GRAPH, profile).time_ms("mm0") == pytest.approx(5.0 / 17)


@pytest.mark.parametrize(
    "change", [{"rows": ()}, {"nodes": ()}, {"architecture_hash": "other"}, {"rows": (row(stage="part"),)}]
)
def test_profiles_that_do_not_serve_are_refused(change):
    with pytest.raises(InputFault):
        solve_partitioning_problem(GRAPH, replace(even_profile(GRAPH), **change))


@pytest.mark.parametrize("name", ["bert", "clip"])
def test_traced_samples_are_cut_with_proof(name):
    graph = graph_of(sample_program(name)[2])
    profile = even_profile(graph)
    provider = PartitionProvider(graph, profile)
    provider.regions.verify()
    assert len(provider.regions.cut_points) > (5 if name == "bert" else 0)
    request = provider.request(2, link_gb_per_s=12.0)
    outcome = provider.solve(request)
    verify_outcome(request, outcome)
    assert outcome.status == "optimal" and len(outcome.candidates) > 1
    every = sorted(n.id for n in graph.nodes if n.kind in ("op", "input"))
    assert sorted(n for stage in outcome.candidates[0].stages for n in stage) == every
