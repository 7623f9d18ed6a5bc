"""The three routes of an export, what the batch decides, and what is said where none passes."""

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.tracing.pt2_files import read_file
from torchsplit_core.graph.preparation.prepare import prepare
from torchsplit_core.graph.serialization import graph_from_dict, graph_to_text
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.tracing.export import describe_program, export_program
from torchsplit_core.tracing.export_inputs import find_largest_batch
from torchsplit_core.values import InputFault

Inputs = Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]
FILE = Path(__file__).name


def rows(batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.ones(batch, 4),), {}


def traced(model: nn.Module, inputs: Inputs = rows) -> TorchGraph:
    """As the child traces a client's model."""
    args, kwargs = inputs(2)
    program = export_program(model.eval(), args, kwargs, inputs(3))
    return graph_from_dict(describe_program(program, 2))


def shapes(graph: TorchGraph) -> list[tuple[int | str, ...] | None]:
    return [node.shape for node in graph.input_nodes]


@dataclass
class Pair:
    value: Tensor
    label: Tensor | None = None


@torch.library.custom_op("coverage::shapeless", mutates_args=())
def shapeless(x: Tensor) -> Tensor:
    """An operator of a user's own without a fake kernel."""
    return x.clone()


class Plain(nn.Module):
    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.body = body

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return self.body(x, *args, **kwargs)


def limited(x: Tensor) -> Tensor:
    return x * 100 if x.shape[0] >= 8 else x + 1


def branch(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x + 1
    return -x


def until_large(x: Tensor) -> Tensor:
    while x.sum() < 100:
        x = x * 2
    return x


def some(x: Tensor) -> Tensor:
    return x + torch.topk(x.flatten(), int((x > 0).sum())).values.sum()


def test_the_first_route_is_without_bytecode():
    graph = traced(Plain(torch.relu))
    assert (graph.route, graph.notes) == ("non-strict", ())


@pytest.mark.parametrize("body", [some, lambda x: x.reshape(len(x), 2, 2)])
def test_where_that_fails_or_fixes_the_batch_the_strict_route_is_taken(body):
    graph = traced(Plain(body))
    assert (graph.route, graph.notes) == ("strict", ())
    assert shapes(graph) == [("s0", 4)]


@pytest.mark.parametrize(
    ("body", "line"), [(branch, "if x.sum() > 0:"), (until_large, "while x.sum() < 100:")]
)
def test_a_way_that_data_decide_is_traced_as_a_draft_that_says_so(body, line):
    graph = traced(Plain(body))
    assert graph.route == "draft"
    assert shapes(graph) == [("s0", 4)]
    assert len(graph.notes) == 1
    number = Path(__file__).read_text().splitlines().index(f"    {line}") + 1
    assert graph.notes[0].startswith(f"{FILE}:{number}: `{line}` depends on values of the data")
    # torch checks at run time what it took for granted: no part of what a cut sees.
    assert not any("assert" in unit.id for unit in prepare(graph).units)


def test_an_operator_without_a_fake_kernel_is_traced_as_a_draft_that_says_so():
    graph = traced(Plain(lambda x: torch.ops.coverage.shapeless(x) + 1))
    assert graph.route == "draft"
    assert "coverage.shapeless.default has no fake kernel" in graph.notes[0]
    assert {"shapeless", "add"} <= {node.op for node in graph.ops}


@pytest.mark.parametrize(("body", "inputs", "found"), [
    (lambda x: x.mean(0), lambda n: ((torch.ones(5, n, 4),), {}), [(5, "s0", 4)]),
    (lambda x, edges: x.index_add(0, edges[1], x[edges[0]]),
     lambda n: ((torch.ones(3 * n, 4), torch.zeros(2, 6 * n, dtype=torch.int64)), {}),
     [("s0", 4), (2, "s1")]),
    (lambda x, table: x @ table, lambda n: ((torch.ones(n, 2), torch.ones(2, 4)), {}), [("s0", 2), (2, 4)]),
    (lambda x, y=None, scale=1.0: {"out": x["a"] * scale + x["b"][0]},
     lambda n: (({"a": torch.ones(n, 4), "b": [torch.ones(n, 4)]},), {"y": None, "scale": 3.0}),
     [("s0", 4), ("s0", 4)]),
    (lambda x, **more: x + more["bias"] if more["wanted"] else x,
     lambda n: ((torch.ones(n, 4),), {"bias": torch.ones(n, 4), "wanted": True}), [("s0", 4), ("s0", 4)]),
    (lambda x: Pair(x.value + 1), lambda n: ((Pair(torch.ones(n, 4)),), {}), [("s0", 4)]),
], ids=["second dimension", "edges", "table", "containers", "keywords", "dataclass"])  # fmt: skip
def test_the_batch_is_found_wherever_it_stands(body, inputs, found):
    graph = traced(Plain(body), inputs)
    assert [shape for shape in shapes(graph) if shape is not None] == found
    assert graph.route == "non-strict"


def test_modules_that_settle_in_their_first_run_are_traced():
    graph = traced(nn.Sequential(nn.LazyLinear(8), nn.ReLU()))
    assert graph.ops[0].shape == ("s0", 8)


def test_the_model_is_left_as_it_was():
    model = Plain(lambda x, **more: x + more["bias"])
    before = dict(vars(model))
    traced(model, lambda n: ((torch.ones(n, 4),), {"bias": torch.ones(n, 4)}))
    assert vars(model).keys() == before.keys()


def packed() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)))  # type: ignore[no-any-return]


class Typed(nn.Module):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x if mask is None else x * mask


def halves(x: Tensor) -> Any:
    return [row * 2 for row in x]


@pytest.mark.parametrize(("model", "inputs", "said"), [
    (Plain(halves), rows,
     rf"input x: .*fixed to the example's batch size at {FILE}:\d+\..*no loop over the batch"),
    (Plain(lambda x: x.to_sparse()), rows, rf"forward at {FILE}.*without data.*dense instead of sparse"),
    (Plain(lambda x: pickle.loads(pickle.dumps(x))), rows,
     rf"forward at {FILE}.*computes outside torch.*custom_op"),
    (Plain(lambda x, y: x), lambda n: ((torch.ones(n, 4), object()), {}),
     r"has an input that is no tensor.*in forward"),
    (torch.jit.trace(nn.Linear(4, 4), torch.ones(2, 4)), rows, r"returns TorchScript.*before torch\.jit"),
    (packed(), rows, r"weights that are packed.*torch\.ao\.quantization"),
    (Plain(lambda x: (x, {"f": len})), rows, r"result\[1\]\['f'\]: is of type builtin"),
    (Plain(lambda x: 1 / 0), rows,
     rf"^forward on the example inputs: raised ZeroDivisionError.*{FILE}.*without gradients"),
    (Typed(), lambda n: ((torch.ones(n, 4),), {"masks": 1}),
     r"'masks'\. Return what it takes \(x: .*mask: .*None"),
    (Typed(), lambda n: ((torch.ones(2, 4),), {}), r"returns no tensor with a size that follows batch_size"),
    (Plain(lambda x, n: x), lambda n: ((torch.ones(n, 4), n), {}),
     r"\[0\]\[1\]: is 2, but 3 .*x\.shape\[0\]"),
    (Plain(lambda x: x), lambda n: (([torch.ones(4)] * n,), {}), r"2 values and 3.*Stack the samples"),
    (Plain(lambda x: x), lambda n: ((torch.ones(n, *[4] * (n - 1)),), {}), r"has 2 dimensions, but 3 for"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_what_remains_is_explained(model, inputs, said):
    with pytest.raises(InputFault, match=said) as caught:
        traced(model, inputs)
    assert "\n" not in str(caught.value)


def test_a_way_that_even_a_draft_cannot_follow_names_the_line():
    def kept(x):
        found = x[x > 0]
        return found.sum() + x if found.shape[0] > 0 else x

    with pytest.raises(
        InputFault, match=rf"forward at {FILE}:\d+: takes a path .*GuardOnDataDep.*torch\.cond.*torch\._check"
    ):
        traced(Plain(kept))


def test_a_branch_on_the_batch_limits_the_graph_of_an_export_and_of_its_file(tmp_path):
    args, kwargs = rows(2)
    program = export_program(Plain(limited), args, kwargs, rows(3))
    torch.export.save(program, tmp_path / "limited.pt2")
    exported = graph_from_dict(describe_program(program, 2))
    for graph in (exported, read_file(tmp_path / "limited.pt2")):
        assert graph.largest_batch == 7
        assert graph.notes == (
            "The graph holds for batches of at most 7: parts of the model refuse larger ones.",
        )
    assert graph_from_dict(json.loads(graph_to_text(exported))) == exported
    free = traced(Plain(lambda x: x + 1))
    assert free.largest_batch is None and free.notes == ()


def test_a_longest_sequence_limits_no_batch(tmp_path):
    sizes = {0: torch.export.Dim("rows", max=16), 1: torch.export.Dim("length", max=8)}
    program = torch.export.export(nn.ReLU(), (torch.ones(2, 4),), dynamic_shapes=(sizes,))
    torch.export.save(program, tmp_path / "sequence.pt2")
    assert find_largest_batch(program, 2) == read_file(tmp_path / "sequence.pt2").largest_batch == 16
