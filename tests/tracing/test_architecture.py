"""The architecture hash sees what changes the work and nothing else, the same from an export and from its file."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import sample_models
from benchmarks.argument_kinds import kinds
from tests.support.seeds import repeated
from tests.support.tracing.argument_pairs import KINDS_OF_THE_BENCHMARK, PAIRS, TWELVE, Calls
from tests.support.tracing.pt2_files import read_file
from torchsplit_core.graph.architecture import (
    former_architecture_hash,
    hash_model_architecture,
    uses_former_scheme,
)
from torchsplit_core.graph.serialization import graph_from_dict, graph_to_dict
from torchsplit_core.graph.torch_graph import TorchGraph, join_bodies
from torchsplit_core.tracing.export import export_program
from torchsplit_core.tracing.program_graph import convert_program
from torchsplit_core.values import GraphNode

X = torch.linspace(0, 1, 64).reshape(2, 4, 8)
SAMPLES = sorted((sample.name for sample in sample_models.SAMPLES), key=lambda name: name != "bert")


def exported(model: torch.nn.Module, *inputs: torch.Tensor) -> torch.export.ExportedProgram:
    return export_program(model.eval(), inputs, {})


def graph_of(model: torch.nn.Module, *inputs: torch.Tensor) -> TorchGraph:
    return convert_program(exported(model, *inputs), 2)


def hash_of(function: Callable[..., Any], *inputs: torch.Tensor) -> str:
    return hash_model_architecture(graph_of(Calls(function), *inputs))


def both_ways(program: torch.export.ExportedProgram, path: Path) -> TorchGraph:
    """The graph of a program, once its file has said the same of it."""
    graph = convert_program(program, 2)
    torch.export.save(program, path)
    read = read_file(path)
    assert [node.arguments for node in read.nodes] == [node.arguments for node in graph.nodes]
    assert hash_model_architecture(read) == hash_model_architecture(graph)
    assert graph_from_dict(json.loads(json.dumps(graph_to_dict(graph)))) == graph
    return graph


@repeated("pair", PAIRS, ids=lambda pair: pair.name, kept=24)
def test_one_argument_makes_another_architecture(pair, tmp_path):
    programs = [exported(Calls(function), *pair.inputs) for function in (pair.one, pair.other)]
    graphs = [both_ways(program, tmp_path / f"{i}.pt2") for i, program in enumerate(programs)]
    assert len({hash_model_architecture(graph) for graph in graphs}) == 2
    assert pair.kind in {kind for program in programs for kind, _ in kinds(program)}


def test_the_pairs_have_every_kind_that_the_benchmark_yields():
    assert {pair.kind for pair in PAIRS}.issuperset(KINDS_OF_THE_BENCHMARK)


def test_the_scheme_before_took_pools_for_one_and_this_one_does_not():
    pools = [graph_of(Calls(side), *TWELVE[0].inputs) for side in (TWELVE[0].one, TWELVE[0].other)]
    (former,) = {former_architecture_hash(graph) for graph in pools}
    assert len({hash_model_architecture(graph) for graph in pools}) == 2
    assert uses_former_scheme(replace(pools[0], architecture_hash=former))
    assert not uses_former_scheme(replace(pools[0], architecture_hash=hash_model_architecture(pools[0])))


def altered(value: Any, inputs: int) -> Iterator[Any]:
    """Other arguments, one change each, however deep it lies."""
    if isinstance(value, bool) or value is None:
        yield from (not value, 7, "other")
    elif isinstance(value, (int, float)):
        yield from (value + 1, str(value), None, [value])
    elif isinstance(value, str):
        yield value + "x"
    elif isinstance(value, list):
        yield [*value, 1]
        for place, item in enumerate(value):
            yield value[:place] + value[place + 1 :]
            yield from ([*value[:place], other, *value[place + 1 :]] for other in altered(item, inputs))
    elif value.keys() == {"input"}:
        yield from ({"input": other} for other in range(inputs) if other != value["input"])
        yield None
    else:
        ((form, content),) = value.items()
        yield {form: "another"} if form in ("body", "object") else {form: next(altered(content, inputs))}


def changes(node: GraphNode) -> Iterator[GraphNode]:
    """The node with one argument changed, renamed, left out or more."""
    yield replace(node, arguments={**node.arguments, "further": 0})
    for name, value in node.arguments.items():
        rest = {key: item for key, item in node.arguments.items() if key != name}
        yield replace(node, arguments=rest)
        yield replace(node, arguments={**rest, f"{name}_": value})
        for other in altered(value, len(node.inputs)):
            yield replace(node, arguments={**node.arguments, name: other})


@repeated("name", SAMPLES, kept=1)
def test_no_argument_of_a_sample_can_change_unseen(name):
    client = sample_models.load(name)
    graph = graph_of(client.get_model(), *client.get_example_inputs(2))
    # Layers repeat: the first that calls its operator in its way stands for all.
    ways = {json.dumps([node.target, node.arguments]): node for node in graph.nodes[::-1] if node.arguments}
    tried = 0
    for node in ways.values():
        others = {json.dumps(other.arguments): other for other in (node, *changes(node))}
        assert len({hash_model_architecture(alone(graph, other)) for other in others.values()}) == len(others)
        tried += len(others)
    assert tried > 30


def alone(graph: TorchGraph, node: GraphNode) -> TorchGraph:
    """The node with what it reads and its bodies: a hash of the whole model for every change takes long."""
    read = tuple(GraphNode(name, "input") for name in dict.fromkeys(node.inputs))
    bodies = {name: found for name, found in graph.subgraphs.items() if name == node.id}
    return TorchGraph((*read, node), subgraphs=bodies)


@repeated("name", SAMPLES, kept=1)
def test_a_sample_has_one_hash_whatever_its_batch_weights_and_route(name, tmp_path):
    client, other = sample_models.load(name), sample_models.load(name, seed=5)
    inputs = {batch: (client.get_example_inputs(batch), {}) for batch in (2, 3, 6)}
    one = exported(client.get_model().eval(), *inputs[2][0])
    assert one.state_dict.keys() == other.get_model().state_dict().keys()
    graph = both_ways(one, tmp_path / "any name at all.pt2")
    seeded = export_program(other.get_model().eval(), *inputs[6], inputs[3])
    assert hash_model_architecture(convert_program(seeded, 6)) == hash_model_architecture(graph)


class Branch(torch.nn.Module):
    """Two branches on a size that the data decide, a pool, a constant: what has names of torch's making."""

    def __init__(self, first: str, second: str, floor: float = 0.0) -> None:
        super().__init__()
        self.first, self.second, self.floor = first, second, floor
        self.add_module(first, torch.nn.Linear(8, 8))
        self.add_module(second, torch.nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low, high = getattr(self, self.first), getattr(self, self.second)
        count = torch.nonzero(x).shape[0]
        x = torch.cond(x.sum() > 0, lambda y: low(y), lambda y: high(y).clamp(self.floor), (x,))
        return x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]) + x.new_zeros(count).sum()


def test_names_of_parameters_modules_symbols_and_bodies_do_not_count():
    one, other = graph_of(Branch("a", "b"), X), graph_of(Branch("zeta", "alpha"), X)
    assert one.nodes != other.nodes
    assert hash_model_architecture(one) == hash_model_architecture(other)
    assert hash_model_architecture(one) != hash_model_architecture(graph_of(Branch("a", "b", 0.5), X))
    (name,) = one.subgraphs
    renamed = join_bodies({f"{body}_7": found for body, found in one.bodies(name).items()})
    nodes = tuple(
        replace(node, arguments=json.loads(json.dumps(node.arguments).replace('_0"}', '_0_7"}')))
        for node in one.nodes
    )
    again = replace(one, nodes=nodes, subgraphs={name: renamed})
    assert again.by_id[name].arguments != one.by_id[name].arguments
    assert hash_model_architecture(again) == hash_model_architecture(one)


def test_which_body_is_which_counts():
    graph = graph_of(Branch("a", "b"), X)
    (name,) = graph.subgraphs
    arguments = dict(graph.by_id[name].arguments)
    arguments["1"], arguments["2"] = arguments["2"], arguments["1"]
    nodes = tuple(replace(node, arguments=arguments) if node.id == name else node for node in graph.nodes)
    assert hash_model_architecture(replace(graph, nodes=nodes)) != hash_model_architecture(graph)


def test_what_an_assertion_says_does_not_count_but_what_it_asserts_does():
    def asserted(least, extra):
        def forward(x, ids):
            if extra:
                torch.nonzero(ids)  # takes the next symbol, so that the message names another
            size = ids.sum().item()
            torch._check(size >= least)
            return x + size

        return forward

    ids = torch.ones(2, 6, dtype=torch.int64)
    one = graph_of(Calls(asserted(3, 0)), X, ids)
    messages = [node.arguments["assert_msg"] for node in one.nodes if "assert_msg" in node.arguments]
    assert messages and all("u0" in text for text in messages)
    nodes = tuple(
        replace(node, arguments={**node.arguments, "assert_msg": "another"})
        if "assert_msg" in node.arguments
        else node
        for node in one.nodes
    )
    assert hash_model_architecture(replace(one, nodes=nodes)) == hash_model_architecture(one)
    assert hash_of(asserted(4, 0), X, ids) != hash_model_architecture(one)


@pytest.mark.parametrize(("one", "other"), [
    (lambda x: x * torch.ones(8), lambda x: x * torch.ones(1)),
    (lambda x: x * torch.tensor([1.0, 2.0]).repeat(4), lambda x: x * torch.tensor([1.0]).repeat(8)),
    (lambda x: x * torch.tensor([1, 2]).repeat(4), lambda x: x * torch.tensor([1.0, 2.0]).repeat(4)),
])  # fmt: skip
def test_shape_and_dtype_of_a_constant_count_and_its_values_do_not(one, other):
    assert hash_of(one, X) != hash_of(other, X)
    values = [lambda x, v=v: x * torch.tensor([v, 2.0]).repeat(4) for v in (1.0, 9.0)]
    assert hash_of(values[0], X) == hash_of(values[1], X)


def _autocast(dtype: torch.dtype) -> Callable[..., Any]:
    def forward(x):
        with torch.autocast("cpu", dtype=dtype):
            return torch.matmul(x, x.mT).float()

    return forward


def _graded(grad: bool) -> Callable[..., Any]:
    def forward(x):
        with torch.set_grad_enabled(grad):
            y = x * 2
        return y + 1

    return forward


HIGHER = {
    "cond": lambda by: lambda x: torch.cond(x.sum() > 0, lambda y: y * by, lambda y: y - 1, (x,)),
    "autocast": lambda by: _autocast(torch.bfloat16 if by == 2 else torch.float16),
    "grad": lambda by: _graded(by == 2),
    "while_loop": lambda by: (
        lambda x: while_loop(
            lambda i, c: i < by, lambda i, c: (i + 1, c * 2), (torch.zeros((), dtype=torch.int64), x)
        )[1]
    ),
    "scan": lambda by: lambda x: scan(lambda c, y: (c + y, c * by), torch.zeros(4, 8), x)[1],
    "map": lambda by: lambda x: map_rows(lambda y: y.sin() * by, x),
}


@repeated("name", HIGHER, kept=3)
def test_a_body_and_the_arguments_of_what_holds_it_count(name, tmp_path):
    graphs = [both_ways(exported(Calls(HIGHER[name](by)), X), tmp_path / "m.pt2") for by in (2, 3)]
    assert len({hash_model_architecture(graph) for graph in graphs}) == 2


def test_what_is_too_long_to_write_counts_by_its_digest(tmp_path):
    def stacked(swapped):
        def forward(x):
            rows = [x.sum(), x.amax()] * 200
            if swapped:
                rows[:2] = rows[1::-1]
            return torch.stack(rows) + torch.zeros(400)[list(range(300)) + [299] * 100]

        return forward

    graphs = [both_ways(exported(Calls(stacked(on)), X), tmp_path / "m.pt2") for on in (False, True)]
    for graph in graphs:
        (stack,) = [node for node in graph.ops if node.op == "stack"]
        assert len(stack.inputs) == 400
        assert stack.arguments["tensors"]["length"] == 400
    assert len({hash_model_architecture(graph) for graph in graphs}) == 2


def test_an_argument_that_has_no_json_is_written_by_its_name():
    def forward(x):
        full = torch.ops.aten.full.default([8], float("-inf"), dtype=torch.float32, device="cpu")
        image = x.unsqueeze(0).clone(memory_format=torch.channels_last)
        return torch.nan_to_num(image.squeeze(0) + full, nan=0.0) * 2

    by_op = {node.op: node.arguments for node in graph_of(Calls(forward), X).ops}
    assert by_op["full"] == {"size": [8], "fill_value": "-inf", "dtype": "float32", "device": "cpu"}
    assert by_op["clone"] == {"self": {"input": 0}, "memory_format": "channels_last"}
    assert by_op["add"] == {"self": {"input": 0}, "other": {"input": 1}}
    assert by_op["mul"] == {"self": {"input": 0}, "other": 2}
