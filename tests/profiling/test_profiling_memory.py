"""Liveness by hand on a small chain, and the parts of the estimate on real graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

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


def test_a_value_lives_until_the_last_reader_of_its_views() -> None:
    estimate = estimate_memory(chain(), 3)
    unit = 3 * 4
    assert estimate.weight_bytes == 40
    assert dict(estimate.node_peak_bytes) == {
        "a": 400 * unit,
        "seen": 400 * unit,
        "b": 600 * unit,
        "c": 650 * unit,
        "d": 650 * unit,
    }
    assert (estimate.peak_bytes, estimate.peak_node) == (40 + 650 * unit, "c")


def test_parts_add_up_and_only_activations_grow_with_the_batch(make_graph: Any) -> None:
    client = sample_models.load("resnet50", "small")
    graph = make_graph(client.get_model(), client.get_example_inputs(2))
    small, large = estimate_memory(graph, 2), estimate_memory(graph, 8)
    for estimate in (small, large):
        parts = estimate.weight_bytes + estimate.activation_bytes + estimate.transient_bytes
        assert estimate.peak_bytes == parts
    assert large.weight_bytes == small.weight_bytes
    assert large.activation_bytes == 4 * small.activation_bytes
    model = client.get_model()
    held = sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])
    assert abs(small.weight_bytes - held) < 1000  # the counters of the batch norms are not in the graph


def test_context_counts_on_a_gpu_alone() -> None:
    estimate = estimate_memory(chain(), 1)
    assert estimate.instance_gib(cuda=True) - estimate.instance_gib(cuda=False) == CUDA_CONTEXT_BYTES / 2**30


def test_convolution_and_branch_need_more_while_they_run(make_graph: Any) -> None:
    graph = make_graph(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), (torch.randn(2, 3, 8, 8),))
    estimate = estimate_memory(graph, 2)
    image, out = 2 * 3 * 64 * 4, 2 * 4 * 36 * 4
    assert estimate.node_peak_bytes["conv2d"] == image + out + image
    client = sample_models.load("cond", "small")
    branch = estimate_memory(make_graph(client.get_model(), client.get_example_inputs(2)), 4)
    hidden = 4 * (4 * 16) * 4  # the thorough branch holds its hidden layer before and after the activation
    assert branch.node_peak_bytes["cond"] >= 2 * hidden
