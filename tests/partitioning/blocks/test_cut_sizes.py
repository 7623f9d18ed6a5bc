"""What crosses a cut at any batch: by hand where sizes are odd, and against tensors that the samples really make."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.support.partitioning.parts import SAMPLES, best_cut, graph_of, sample_program
from tests.support.seeds import repeated
from torchsplit_core.graph import TorchGraph
from torchsplit_core.model_source import example_arguments
from torchsplit_core.partitioning.blocks.cut_sizes import CutSizes
from torchsplit_core.values import GraphNode

Shape = tuple[int | str, ...] | None


def graph(shape: Shape, output_bytes: int, *, inputs: Shape = ("s0", 3)) -> TorchGraph:
    """One value of these sizes (float32) between the stages [x, made] and [read], traced at batch 2."""
    size = 2 * 3 * 4
    nodes = (
        GraphNode("x", "input", shape=inputs, dtype="float32", output_bytes=size),
        GraphNode("made", "op", inputs=("x",), shape=shape, dtype="float32", output_bytes=output_bytes),
        GraphNode("read", "op", inputs=("made",), shape=inputs, dtype="float32", output_bytes=size),
    )
    return TorchGraph(nodes, traced_batch=2)


STAGES = (("x", "made"), ("read",))


@pytest.mark.parametrize(("shape", "traced", "expected"), [
    (("s0", 5), 40, (0, 20)),
    ((7,), 28, (28, 0)),
    (("s0 + 3", 2), 40, (24, 8)),
    (("Max(s0, 32)", 1), 128, (128 - 2 * 384 / 126, 384 / 126)),  # as at 128
    (("s0", "s0"), 16, (0, 8)),  # faster than in proportion: right at the traced batch
    (("s0", "s1"), 2 * 9 * 4, (0, 36)),  # a length that the trace had as 9
    (("u0", 4), 2 * 4 * 4, (0, 16)),  # only the data decide: follows the batch
    (None, 48, (0, 24)),  # several tensors together
    (("Where(s0)", 2), 16, (0, 8)),  # no arithmetic: everything follows the batch
])  # fmt: skip
def test_by_hand(shape, traced, expected):
    (fixed,), (each,) = CutSizes(graph(shape, traced)).split(STAGES)
    assert (fixed, each) == pytest.approx(expected)
    assert fixed + 2 * each == traced


def test_a_size_rounded_up_is_never_told_too_small_above_the_trace():
    (fixed,), (each,) = CutSizes(graph(("(s0 + 6)//7", 10), 40)).split(STAGES)
    assert fixed + 2 * each == pytest.approx(40) and fixed >= 0
    for batch in (4, 8, 16, 32, 64, 128):
        assert fixed + batch * each >= (batch + 6) // 7 * 40 - 1e-9


def test_a_graph_of_one_batch_grows_where_an_input_is_read():
    fixed_batch = graph((2, 5), 40, inputs=(2, 3))
    assert CutSizes(fixed_batch).split(STAGES) == ((0.0,), (20.0,))
    table = GraphNode("table", "op", shape=(5,), dtype="float32", output_bytes=20)
    read = GraphNode("read", "op", inputs=("made", "table"), output_bytes=24)
    nodes = (*fixed_batch.nodes[:2], table, read)
    stages = (("x", "made", "table"), ("read",))
    assert CutSizes(TorchGraph(nodes, traced_batch=2)).split(stages) == ((20.0,), (20.0,))


class _Sized(torch.fx.Interpreter):
    """Runs a program and keeps the bytes of every value."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.sizes: dict[str, int] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        found = value if isinstance(value, tuple | list) else (value,)
        self.sizes[n.name] = sum(t.numel() * t.element_size() for t in found if isinstance(t, torch.Tensor))
        return value


def _random_cuts(traced: TorchGraph, seed: int) -> list[list[list[str]]]:
    """Cuts of the execution order at three random places."""
    draw = random.Random(f"cut sizes {seed}")
    names = [node.id for node in traced.nodes if node.kind in ("op", "input")]
    found = []
    for _ in range(5):
        ends = sorted(draw.sample(range(1, len(names)), 3))
        found.append([names[a:b] for a, b in zip([0, *ends], [*ends, len(names)], strict=True)])
    return found


def _crossing(traced: TorchGraph, stages: Sequence[Sequence[str]], sizes: dict[str, int]) -> list[int]:
    home = {name: number for number, stage in enumerate(stages) for name in stage}
    return [
        sum(sizes[name] for name in stage if any(home.get(u, number) != number for u in traced.users[name]))
        for number, stage in enumerate(stages[:-1])
    ]


@repeated("name", SAMPLES, kept=1)
def test_the_bytes_are_those_of_the_tensors_that_cross_at_any_batch(name):
    client, _, program = sample_program(name)
    traced = graph_of(program)
    cut = best_cut(traced, 3)
    cuts = [(list(map(list, cut.stages)), (cut.cut_bytes_fixed, cut.cut_bytes_per_request))]
    cuts += [(stages, CutSizes(traced).split(stages)) for stages in _random_cuts(traced, len(name))]
    for batch in (1, 4, 32):
        args, kwargs = example_arguments(client, batch)
        run = _Sized(program.graph_module)
        with torch.no_grad():
            run.run(*program._graph_module_flat_inputs(args, kwargs))
        for stages, (fixed, each) in cuts:
            told = [start + batch * slope for start, slope in zip(fixed, each, strict=True)]
            assert told == pytest.approx(_crossing(traced, stages, run.sizes))
    at_trace = [start + 2 * each for start, each in zip(*cuts[0][1], strict=True)]
    assert at_trace == pytest.approx(cut.cut_bytes)
