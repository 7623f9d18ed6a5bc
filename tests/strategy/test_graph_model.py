"""Traced models: what a graph costs forward and backward, what it keeps, its chain, the search over its choices."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.strategy.graph_model.blocks import chain_of
from torchsplit_core.strategy.graph_model.costs import GraphCosts
from torchsplit_core.strategy.graph_model.model import GraphCostModel
from torchsplit_core.strategy.graph_model.solve import TRACKED_MEMORY, search_graph_strategy
from torchsplit_core.strategy.graph_model.space import WITHOUT_SIZES
from torchsplit_core.strategy.graph_model.stage_partition import partition_evenly
from torchsplit_core.strategy.search.homogeneous import NOT_RUN
from torchsplit_core.strategy.supported import RUNNERS, TRAIN
from torchsplit_core.values import GraphNode, InputFault, Profile, ProfileRow
from torchsplit_core.values.strategy.request import (
    MeasuredStep,
    SourceSizes,
    StrategyFix,
    StrategyNodes,
    StrategyRequest,
)
from torchsplit_core.values.strategy.run import RunStep
from torchsplit_core.values.training import ParallelConfig, TrainingJob

WIDTH = 64


def value(name: str, target: str, inputs: tuple[str, ...], module: str, width: int = WIDTH) -> GraphNode:
    return GraphNode(
        name,
        "op",
        target,
        f"torch.ops.aten.{target}.default",
        inputs,
        module,
        ("s0", width),
        "float32",
        8 * width,
    )


def weight(name: str, module: str, shape: tuple[int, ...] = (WIDTH, WIDTH)) -> GraphNode:
    size = 4
    for one in shape:
        size *= one
    return GraphNode(name, "parameter", module=module, shape=shape, dtype="float32", output_bytes=size)


def chain(blocks: int = 4, *, shared: bool = False) -> TorchGraph:
    """Blocks of linear, gelu and an addition around both, then a head."""
    nodes = [GraphNode("x", "input", shape=("s0", WIDTH), dtype="float32", output_bytes=8 * WIDTH)]
    last = "x"
    for place in range(blocks):
        own = 0 if shared else place
        if place == own:
            nodes.append(weight(f"w{place}", f"layers.{place}.fc"))
        nodes += [
            value(f"fc{place}", "linear", (last, f"w{own}"), f"layers.{place}.fc"),
            value(f"act{place}", "gelu", (f"fc{place}",), f"layers.{place}"),
            value(f"sum{place}", "add", (last, f"act{place}"), f"layers.{place}"),
        ]
        last = f"sum{place}"
    nodes += [weight("w_head", "head"), value("y", "linear", (last, "w_head"), "head")]
    nodes.append(GraphNode("output", "output", inputs=("y",)))
    return TorchGraph(tuple(nodes), "hash", 2)


def asked(batch: int = 32, nodes: int = 2, kind: str = "A100-40GB", **fix: object) -> StrategyRequest:
    return StrategyRequest(
        SourceSizes("sample:chain"),
        (StrategyNodes(nodes, 4, kind),),
        TrainingJob(batch, "fp32"),
        StrategyFix(**fix),  # type: ignore[arg-type]
        5,
    )


def test_a_product_makes_two_products_backward_and_keeps_its_input_alone() -> None:
    costs = {one.id: one for one in GraphCosts(chain(2), 8, "whole").operations}
    assert costs["fc1"].matrix_flops == 2 * 8 * WIDTH * WIDTH and costs["fc1"].factors == 2
    assert costs["fc1"].saved == {"sum0": 4.0 * 8 * WIDTH}
    # Nobody asks for the gradient of what the model is given, which is there anyway.
    assert costs["fc0"].factors == 1 and costs["fc0"].saved == {}
    assert costs["act0"].saved == {"fc0": 4.0 * 8 * WIDTH}
    assert costs["sum0"].saved == {} and costs["sum0"].factors == 0


def test_half_precision_halves_what_is_kept_and_autocast_keeps_copies_of_wide_values() -> None:
    half = {one.id: one for one in GraphCosts(chain(2), 8, "half").operations}
    assert half["fc1"].saved == {"sum0": 2.0 * 8 * WIDTH}
    graph = chain(2)
    wide = [replace(node, op="softmax", target="torch.ops.aten.softmax.int") if node.id == "act0" else node
            for node in graph.nodes]  # fmt: skip
    auto = {one.id: one for one in GraphCosts(replace(graph, nodes=tuple(wide)), 8, "autocast").operations}
    assert auto["fc1"].saved == {"sum0 in half": 2.0 * 8 * WIDTH}
    assert auto["act0"].saved == {"act0": 4.0 * 8 * WIDTH}


def test_blocks_are_a_chain_in_the_order_in_which_they_run() -> None:
    model = GraphCostModel(chain(3))
    assert model.chain.blocks == ("layers.0", "layers.1", "layers.2") and not model.chain.no_cut
    assert model.parameters == (WIDTH**2, WIDTH**2, 2 * WIDTH**2)
    assert model.around_parameters == (0, 0, WIDTH**2)
    assert model.chain.part_of["y"] == 2 and "y" not in model.chain.within


def test_blocks_that_share_a_weight_or_come_back_are_not_cut() -> None:
    assert "w0" in chain_of(chain(3, shared=True)).no_cut
    graph = chain(3)
    back = [replace(node, module="layers.0") if node.id == "act2" else node for node in graph.nodes]
    assert "layers.0" in chain_of(replace(graph, nodes=tuple(back))).no_cut
    assert chain_of(chain(1)).no_cut == "it has no repeated blocks"


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_a_chain_is_cut_as_evenly_as_can_be(stages: int) -> None:
    loads = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    found = partition_evenly(loads, stages)
    assert [place for part in found for place in part] == list(range(8)) and all(map(len, found))
    best = min(
        max(sum(loads[begin:end]) for begin, end in zip((0, *cuts), (*cuts, 8), strict=True))
        for cuts in combinations(range(1, 8), stages - 1)
    )
    assert max(sum(loads[place] for place in part) for part in found) == best


def test_every_choice_is_reckoned_and_the_fastest_that_fits_is_first() -> None:
    found = search_graph_strategy(asked(), chain())
    assert found.status == "optimal" and len(found.candidates) == 5
    seconds = [one.seconds_per_step for one in found.candidates]
    assert seconds == sorted(seconds) and found.bound_s == seconds[0]
    assert found.considered == found.statistics["reckoned"] + sum(one.count for one in found.refused)  # type: ignore[operator]
    assert WITHOUT_SIZES in {one.reason for one in found.refused}
    assert all(one.tensor == one.context == one.expert == 1 for one in found.candidates)
    for one in found.candidates:
        parts = one.parts_s
        assert parts.compute + parts.data_communication + parts.optimizer + parts.pipeline_bubble + (
            parts.pipeline_communication
        ) == pytest.approx(one.seconds_per_step)


def test_recomputation_keeps_less_and_takes_longer() -> None:
    plain, some, full = (
        search_graph_strategy(
            asked(512, data=8, pipeline=1, micro_batch=64, shard="none", recompute=how), chain(16)
        ).candidates[0]
        for how in ("none", "selective", "full")
    )
    assert plain.memory_gib.activations > full.memory_gib.activations
    # All that a block keeps here is its input and its product, which selective recomputation keeps too.
    assert some.memory_gib.activations >= plain.memory_gib.activations
    assert plain.parts_s.compute < some.parts_s.compute < full.parts_s.compute


def test_sharding_divides_the_states_and_a_pipeline_the_weights() -> None:
    whole, sharded = (
        search_graph_strategy(asked(data=8, shard=how), chain()).candidates[0].memory_gib
        for how in ("none", "fsdp")
    )
    assert sharded.optimizer == pytest.approx(whole.optimizer / 8)
    staged = search_graph_strategy(asked(pipeline=4, data=2, shard="none"), chain()).candidates[0]
    # The last stage has a block and the head: two of five weights.
    assert staged.memory_gib.optimizer == pytest.approx(whole.optimizer * 2 / 5)
    assert staged.parts_s.pipeline_bubble > 0 and staged.parts_s.pipeline_communication > 0


@pytest.mark.parametrize(
    ("fix", "where"),
    [
        ({"tensor": 2}, "fix.tensor"),
        ({"context": 2}, "fix.context"),
        ({"expert": 2}, "fix.expert"),
        ({"interleave": 2}, "fix.interleave"),
        ({"sequence_parallel": True}, "fix.sequence_parallel"),
        ({"offload": "optimizer"}, "fix.offload"),
        ({"data": 3}, "fix"),
        ({"micro_batch": 7}, "fix"),
        ({"shard": "none", "offload": "parameters"}, "fix"),
    ],
)
def test_what_a_graph_does_not_say_is_refused_with_its_reason(fix: dict[str, object], where: str) -> None:
    with pytest.raises(InputFault) as fault:
        search_graph_strategy(asked(**fix), chain())
    assert fault.value.where == where


def test_a_pipeline_over_a_model_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(InputFault, match="read the weight"):
        search_graph_strategy(asked(pipeline=2), chain(3, shared=True))
    found = search_graph_strategy(asked(), chain(3, shared=True))
    assert any("cannot be cut into stages" in one.reason for one in found.refused)
    assert all(one.pipeline == 1 for one in found.candidates)


def test_unlike_nodes_and_eight_bits_are_refused_for_a_traced_model() -> None:
    request = asked()
    with pytest.raises(InputFault) as fault:
        search_graph_strategy(replace(request, fleet=request.fleet * 2), chain())
    assert fault.value.where == "fleet"
    with pytest.raises(InputFault) as fault:
        search_graph_strategy(replace(asked(kind="H100-SXM5-80GB"), training=TrainingJob(32, "fp8")), chain())
    assert fault.value.where == "training.precision"


def test_measured_steps_move_the_estimate_and_narrow_its_interval() -> None:
    request = asked(data=8, pipeline=1)
    before = search_graph_strategy(request, chain()).candidates[0]
    one_step = search_graph_strategy(
        asked(4, 1, data=1, pipeline=1, micro_batch=4, shard="none", recompute="none"), chain()
    )
    seconds = one_step.candidates[0].seconds_per_step if one_step.candidates else 0.0
    source = SourceSizes("sample:chain", None, (MeasuredStep(4, 2 * seconds), MeasuredStep(4, 2 * seconds)))
    after = search_graph_strategy(replace(request, model=source), chain()).candidates[0]
    assert 1.2 < after.seconds_per_step / before.seconds_per_step < 2.0
    assert after.high_s / after.low_s < before.high_s / before.low_s


def test_steps_of_finished_runs_calibrate_where_fewer_than_three_are_given() -> None:
    request = asked(data=8, pipeline=1)
    before = search_graph_strategy(request, chain()).candidates[0]
    choices = ParallelConfig(data=8, micro_batch=4)
    run = RunStep("first", "2026-11-26T20:54:33Z", choices, 32, 1.0)
    other = replace(run, run="by tensors", choices=replace(choices, data=4, tensor=2))
    uneven = replace(run, run="uneven", global_batch=30)
    (calibration,) = search_graph_strategy(request, chain(), runs=(other, uneven, run)).calibrated_by
    assert calibration.run == "first" and calibration.devices == 8 and calibration.seconds == 1.0
    runs = tuple(replace(run, run=name, seconds=2 * calibration.estimated_s) for name in "abcd")
    outcome = search_graph_strategy(request, chain(), runs=runs)
    assert [entry.run for entry in outcome.calibrated_by] == ["a", "b", "c"]
    assert "'a', finished 2026-11-26T20:54:33Z, 32 samples on 8 devices" in outcome.message
    after = outcome.candidates[0]
    assert 1.2 < after.seconds_per_step / before.seconds_per_step < 2.0
    assert after.high_s / after.low_s < before.high_s / before.low_s
    source = SourceSizes("sample:chain", None, (MeasuredStep(4, 1e-3), MeasuredStep(8, 1e-3)))
    given = search_graph_strategy(replace(request, model=source), chain(), runs=runs)
    assert [entry.run for entry in given.calibrated_by] == ["a"]


def test_a_processor_far_off_what_was_assumed_is_believed_once_it_is_measured() -> None:
    fix = {"data": 1, "pipeline": 1, "micro_batch": 4, "shard": "none", "recompute": "none"}
    request = replace(asked(4, **fix), fleet=(StrategyNodes(1, 1, "CPU-4c"),))
    assumed = search_graph_strategy(request, chain()).candidates[0]
    seconds = 2.5 * assumed.seconds_per_step
    source = SourceSizes("sample:chain", None, (MeasuredStep(4, seconds),))
    found = search_graph_strategy(replace(request, model=source), chain()).candidates[0]
    assert found.low_s < seconds < found.high_s
    assert found.seconds_per_step == pytest.approx(seconds, rel=0.02)


def test_rows_of_a_profile_calibrate_the_device_that_they_are_of() -> None:
    request = replace(asked(data=8), fleet=(StrategyNodes(8, 1, "CPU-4c"),))
    row = ProfileRow("whole", "CPU", "4c", 4, 1, 4 / 0.5, 500.0, None, None, None, "measured")
    slower = Profile("sample:chain", "hash", rows=(row,))
    plain = search_graph_strategy(request, chain()).candidates[0]
    measured = search_graph_strategy(request, chain(), slower).candidates[0]
    assert measured.seconds_per_step > 10 * plain.seconds_per_step
    other = Profile("sample:chain", "hash", rows=(replace(row, profile="8c"),))
    assert search_graph_strategy(request, chain(), other).candidates[0] == plain
    with pytest.raises(InputFault) as fault:
        search_graph_strategy(request, chain(), replace(slower, architecture_hash="another"))
    assert fault.value.where == "model.profile"


def test_what_torch_tracks_as_too_large_is_refused_and_the_next_is_taken() -> None:
    told: list[ParallelConfig] = []

    def tracker(choices: ParallelConfig) -> int:
        told.append(choices)
        return 10**12 if len(told) == 1 else 10**6

    first = search_graph_strategy(asked(), chain())
    found = search_graph_strategy(asked(), chain(), tracker=tracker)
    assert found.candidates[0] == first.candidates[1] and len(told) == 2
    assert TRACKED_MEMORY in {one.reason for one in found.refused}
    assert found.considered == first.considered


def test_nothing_that_fits_says_what_is_missing() -> None:
    graph = chain(2)
    huge = 400_000
    nodes = [
        replace(node, shape=(huge, huge), output_bytes=4 * huge * huge) if node.id == "w_head" else node
        for node in graph.nodes
    ]
    found = search_graph_strategy(asked(), replace(graph, nodes=tuple(nodes)))
    assert found.status == "infeasible" and "GiB more" in found.message
    assert found.considered == sum(one.count for one in found.refused)


def test_what_fits_of_a_graph_runs() -> None:
    request = asked(pipeline=2)
    for runners in (RUNNERS, TRAIN):
        outcome = search_graph_strategy(replace(request, top_k=1000), chain(), runners=runners)
        shards = {(entry.shard, entry.offload) for entry in outcome.candidates}
        assert ("fsdp", "parameters") in shards
        assert outcome.considered == len(outcome.candidates) + sum(entry.count for entry in outcome.refused)
        assert not [entry for entry in outcome.refused if entry.reason == NOT_RUN]
    half = replace(request, training=TrainingJob(32, "fp16"))
    with pytest.raises(InputFault, match='add "precision" to may_need'):
        search_graph_strategy(half, chain())
    assert search_graph_strategy(replace(half, may_need=("precision",)), chain()).candidates
