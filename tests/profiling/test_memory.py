"""Liveness by hand on a small chain, and the parts of the estimate on real graphs."""

from dataclasses import replace

import pytest

import sample_models
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.profiling.memory import CUDA_CONTEXT_BYTES, estimate_memory
from torchsplit_core.values import GraphNode


def op(name: str, target: str, inputs: tuple[str, ...], width: int) -> GraphNode:
    return GraphNode(
        name, "op", target=f"aten.{target}.default", inputs=inputs, shape=("s0", width), dtype="float32"
    )


def chain() -> TorchGraph:
    """x (100) → a (300) → view of a → b (200), c (50) reads b and the view; a lives as long as its view."""
    return TorchGraph(
        (
            GraphNode("w", "parameter", shape=(10,), dtype="float32"),
            GraphNode("x", "input", shape=("s0", 100), dtype="float32"),
            op("a", "relu", ("x",), 300),
            op("seen", "view", ("a",), 300),
            op("b", "relu", ("a",), 200),
            op("c", "add", ("b", "seen"), 50),
            op("d", "relu", ("c",), 500),
            GraphNode("output", "output", inputs=("d",)),
        ),
        traced_batch=2,
    )


def test_a_value_lives_until_the_last_reader_of_its_views():
    estimate = estimate_memory(chain(), 3)
    unit = 3 * 4
    assert estimate.weight_bytes == 40
    assert dict(estimate.node_peak_bytes) == {
        "a": 400 * unit, "seen": 400 * unit, "b": 600 * unit, "c": 650 * unit, "d": 650 * unit,
    }  # fmt: skip
    assert (estimate.peak_bytes, estimate.peak_node) == (40 + 650 * unit, "c")


@pytest.mark.torch
def test_parts_add_up_and_only_activations_grow_with_the_batch(make_graph):
    client = sample_models.load("resnet50", "small")
    graph = make_graph(client.get_model(), client.get_example_inputs(2))
    small, large = estimate_memory(graph, 2), estimate_memory(graph, 8)
    for estimate in (small, large):
        parts = estimate.weight_bytes + estimate.activation_bytes + estimate.transient_bytes
        assert estimate.peak_bytes == parts
    assert large.weight_bytes == small.weight_bytes
    assert large.node_peak_bytes["relu_2"] == 4 * small.node_peak_bytes["relu_2"]
    model = client.get_model()
    held = sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])
    assert abs(small.weight_bytes - held) < 1000  # the counters of the batch norms are not in the graph


def test_context_counts_on_a_gpu_alone():
    estimate = estimate_memory(chain(), 1)
    assert estimate.instance_gib(cuda=True) - estimate.instance_gib(cuda=False) == CUDA_CONTEXT_BYTES / 2**30


@pytest.mark.torch
def test_a_branch_needs_more_while_it_runs(make_graph):
    client = sample_models.load("cond", "small")
    branch = estimate_memory(make_graph(client.get_model(), client.get_example_inputs(2)), 4)
    hidden = 4 * (4 * 16) * 4  # the thorough branch holds its hidden layer before and after the activation
    assert branch.node_peak_bytes["cond"] >= 2 * hidden


def placed(name: str, inputs: tuple[str, ...], module: str, width: int = 100) -> GraphNode:
    """An operation in a module."""
    return replace(op(name, "relu", inputs, width), module=module)


def alive(*nodes: GraphNode) -> dict[str, float]:
    """Values of 100 numbers alive at each node, the input x of as many included, at batch 1."""
    graph = TorchGraph((
        GraphNode("x", "input", shape=("s0", 100), dtype="float32"),
        *nodes,
        GraphNode("output", "output", inputs=(nodes[-1].id,)),
    ))  # fmt: skip
    return {name: found / 400 for name, found in estimate_memory(graph, 1).node_peak_bytes.items()}


def test_what_a_module_was_passed_lives_until_it_returns():
    """`block` reads a at its start alone, and holds it while it goes on; without modules a would be gone."""
    inside = [
        placed("b", ("a",), "block.one"), placed("c", ("b",), "block.two"), placed("d", ("c",), "block"),
    ]  # fmt: skip
    held = alive(placed("a", ("x",), ""), *inside, placed("e", ("d",), ""))
    assert held == {"a": 2, "b": 3, "c": 4, "d": 4, "e": 3}
    flat = alive(*(placed(name, (source,), "") for name, source in zip("abcde", "xabcd", strict=True)))
    assert flat == {"a": 2, "b": 3, "c": 3, "d": 3, "e": 3}


def test_a_module_that_is_called_twice_returns_twice():
    held = alive(
        placed("a", ("x",), ""), placed("b", ("a",), "block"), placed("c", ("b",), "block"),
        placed("d", ("c",), ""), placed("e", ("d",), "block"), placed("f", ("e",), "block"),
    )  # fmt: skip
    assert held == {"a": 2, "b": 3, "c": 4, "d": 3, "e": 3, "f": 4}


def test_a_list_of_blocks_is_called_by_nobody_and_a_sequence_of_layers_is():
    """A list lets go of what its first block was passed; a sequence of single layers holds it to its end."""
    blocks = [
        placed("b", ("a",), "list.0.inner"), placed("c", ("b",), "list.0.inner"),
        placed("d", ("c",), "list.1.inner"), placed("e", ("d",), "list.1.inner"),
    ]  # fmt: skip
    assert alive(placed("a", ("x",), ""), *blocks) == {"a": 2, "b": 3, "c": 4, "d": 3, "e": 4}
    layers = [
        placed(name, (source,), f"sequence.{number}")
        for number, (name, source) in enumerate(zip("bcde", "abcd", strict=True))
    ]
    assert alive(placed("a", ("x",), ""), *layers) == {"a": 2, "b": 3, "c": 4, "d": 4, "e": 4}


def test_an_operation_in_place_needs_no_memory_of_its_own():
    in_place = replace(op("b", "relu_", ("a",), 100), target="aten.relu_.default")
    assert alive(op("a", "relu", ("x",), 100), in_place, op("c", "relu", ("b",), 100)) == {
        "a": 2, "b": 2, "c": 3,
    }  # fmt: skip


def test_an_image_without_rows_takes_nothing():
    def node(name, kind, shape, *inputs):
        return GraphNode(
            name, kind, target="aten.conv2d.default", inputs=inputs, shape=shape, dtype="float32"
        )

    graph = TorchGraph((
        node("w", "parameter", (8, 8, 3, 3)),
        node("x", "input", ("s0", 8, 0, 4)),
        node("y", "op", ("s0", 8, 0, 4), "x", "w"),
    ))  # fmt: skip
    assert estimate_memory(graph, 1).peak_bytes == 8 * 8 * 9 * 4
