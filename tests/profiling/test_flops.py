"""FLOPs from the graph alone agree with torch's own counter, and bytes with arithmetic by hand."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.support.profiling.export import sample, to_graph
from tests.support.seeds import repeated
from torchsplit_core.graph.sizes import bind_symbols, evaluate_size
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.profiling.flops import node_costs, op_name
from torchsplit_core.values import GraphNode, InputFault


def counted(model: nn.Module, args: tuple[Any, ...]) -> int:
    """torch's count; attention and recurrence as plain products, which the counter knows."""
    plain = torch.backends.mkldnn.flags(enabled=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), plain, FlopCounterMode(display=False) as counter:
        model(*args)
    return int(counter.get_total_flops())


@repeated("name", ["clip", "bert", "ocr", "diamond", "fastpitch", "resnet50", "llama"], kept=4)
def test_matrix_flops_of_the_samples_agree_with_torch(name):
    client, model, program = sample(name)
    costs = node_costs(to_graph(program), 5)
    matrix_flops = sum(cost.matrix_flops for cost in costs)
    assert matrix_flops == pytest.approx(counted(model, client.get_example_inputs(5)), rel=0.05)
    assert sum(cost.flops for cost in costs) > matrix_flops
    assert sum(cost.bytes_read for cost in costs) > sum(cost.bytes_written for cost in costs) > 0


class Zoo(nn.Module):
    """Operations that the samples lack."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(16, 8, num_layers=2, bidirectional=True, batch_first=True)
        self.grouped = nn.Conv1d(16, 32, 3, padding=1, groups=4)
        self.transposed = nn.ConvTranspose2d(1, 4, 3, stride=2, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mixed, _ = self.gru(x)
        thin = self.grouped(mixed.transpose(1, 2))
        wide = self.transposed(x.unsqueeze(1))
        scores = torch.baddbmm(torch.zeros(x.shape[0], 8, 8), x, x.transpose(1, 2))
        pairs = torch.einsum("bij,bkj->bik", x, mixed)
        return functional.scaled_dot_product_attention(x, x, mixed), thin, wide, scores, pairs


def test_recurrent_grouped_transposed_batched_and_einsum_agree_with_torch(make_graph):
    graph = make_graph(Zoo(), (torch.randn(2, 8, 16),))
    total = sum(cost.matrix_flops for cost in node_costs(graph, 6))
    assert total == pytest.approx(counted(Zoo().eval(), (torch.randn(6, 8, 16),)), rel=0.05)
    steps = {cost.id: cost.kernel_count for cost in node_costs(graph, 4)}
    assert steps["gru"] == 8 * 4 + 1  # steps × layers × directions, and the product of all inputs


def test_a_cond_costs_its_dearer_branch():
    graph = to_graph(sample("cond")[2])
    cost = next(cost for cost in node_costs(graph, 3) if op_name(graph.by_id[cost.id]) == "cond")
    assert cost.matrix_flops == 2 * 3 * 16 * (4 * 16) * 2  # the thorough path: two products of 16 × 64


class Permuted(nn.Module):
    """A product, then a view that lies in order, a permuted one, and the copy that a reshape makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, 8)
        self.product = nn.Linear(8, 4, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.product(self.table(ids))
        return x.reshape(ids.shape[0], 12).view(-1, 3, 4).transpose(1, 2).reshape(ids.shape[0], 12)


def test_bytes_of_gather_product_views_and_copy(make_graph):
    graph = make_graph(Permuted(), (torch.zeros(2, 3, dtype=torch.int64),))
    costs = {cost.id: cost for cost in node_costs(graph, 10)}
    rows = 10 * 3
    assert costs["embedding"].bytes_read == rows * 8 * 4 + rows * 8  # rows picked and ids, not the table
    product = costs["linear"]
    assert (product.flops, product.bytes_read) == (2 * rows * 8 * 4, rows * 8 * 4 + 8 * 4 * 4)
    assert (product.bytes_written, product.kernel_count, product.unit) == (rows * 4 * 4, 1, "matmul")
    for free in ("reshape", "view", "transpose"):
        assert (costs[free].bytes_read, costs[free].kernel_count) == (0, 0)
    assert costs["reshape_1"].bytes_written == rows * 4 * 4


def test_rows_of_experts_pass_the_weights_of_one_expert_each():
    graph = TorchGraph(
        (
            GraphNode("rows", "input", shape=("s0", 8), dtype="float32", output_bytes=2 * 8 * 4),
            GraphNode("counts", "input", shape=(4,), dtype="int64", output_bytes=32),
            GraphNode("up", "parameter", shape=(4, 8, 16), dtype="float32", output_bytes=2048),
            GraphNode("down", "parameter", shape=(4, 16, 8), dtype="float32", output_bytes=2048),
            GraphNode(
                "out", "op", target="torchsplit.experts.default", shape=("s0", 8), dtype="float32",
                inputs=("rows", "counts", "up", "down"),
            ),
        ),
        traced_batch=2,
        route="non-strict",
    )  # fmt: skip
    (cost,) = node_costs(graph, 6)
    assert cost.unit == "matmul" and cost.matrix_flops == 2 * 6 * (8 * 16 + 16 * 8)


@pytest.mark.parametrize("prefix", ["aten.", "torch.ops.aten.", "aten::"])
def test_operation_names_of_every_spelling(prefix):
    assert op_name(GraphNode("n", "op", target=f"{prefix}linear.default")) == "linear"
    assert op_name(GraphNode("n", "op", target="<built-in function getitem>")) == "getitem"
    assert op_name(GraphNode("n", "op", target="_operator.getitem")) == "getitem"
    assert op_name(GraphNode("n", "op", target="torch.ops.higher_order.cond")) == "cond"


def test_batch_symbol_follows_and_a_free_length_stays():
    node = GraphNode("x", "input", shape=("s0", "s1", 3), dtype="float32", output_bytes=2 * 7 * 3 * 4)
    graph = TorchGraph((node,), traced_batch=2)
    assert bind_symbols(graph, 16) == {"s0": 16, "s1": 7}


def test_free_sizes_of_an_export_of_ours_follow_the_batch_wherever_they_stand():
    tokens = GraphNode("x", "input", shape=(5, "s0", 4), dtype="float32", output_bytes=5 * 2 * 4 * 4)
    patches = GraphNode("p", "input", shape=("s1", 4), dtype="float32", output_bytes=32 * 4 * 4)
    edges = GraphNode("e", "input", shape=(2, "s2"), dtype="int64", output_bytes=2 * 12 * 8)
    exported = TorchGraph((tokens, patches, edges), traced_batch=2, route="strict")
    assert bind_symbols(exported, 8) == {"s0": 8, "s1": 128, "s2": 48}
    # Whoever exported a .pt2 may have left a length free as well.
    assert bind_symbols(replace(exported, route="read"), 8) == {"s0": 2, "s1": 128, "s2": 12}


def test_graph_without_symbols_scales_activations_but_not_weights():
    graph = TorchGraph(
        (
            GraphNode("w", "parameter", shape=(4, 8), dtype="float32", output_bytes=128),
            GraphNode("x", "input", shape=(2, 8), dtype="float32", output_bytes=64),
            GraphNode(
                "y", "op", target="aten.linear.default", inputs=("x", "w"), shape=(2, 4), dtype="float32"
            ),
        ),
        traced_batch=2,
    )
    (cost,) = node_costs(graph, 6)
    assert (cost.flops, cost.bytes_read, cost.bytes_written) == (2 * 6 * 8 * 4, 6 * 8 * 4 + 128, 6 * 4 * 4)


@pytest.mark.parametrize(
    ("text", "value"),
    [("4*s0", 20), ("(s0 + 1)//2", 3), ("s0**2", 25), ("Max(1, s0 - 9)", 1), ("-s0 + 8", 3), ("7", 7)],
)
def test_sizes_are_computed(text, value):
    assert evaluate_size(text, {"s0": 5}) == value


@pytest.mark.parametrize("text", [
    "__import__('os').system('x')", "s9", "s0.real", "[1][0]", "2**999999999", "s0//0", "1 +",
    "lambda: 1", "True",
])  # fmt: skip
def test_anything_but_arithmetic_is_refused(text):
    with pytest.raises(InputFault):
        evaluate_size(text, {"s0": 5})


@pytest.mark.parametrize("batch", [0, -1, True, 1.5, 10**9])
def test_a_batch_size_that_is_none_is_refused(batch):
    with pytest.raises(InputFault, match="batch size"):
        node_costs(TorchGraph(()), batch)
