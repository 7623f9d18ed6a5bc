"""Graphs of the samples: contents, bodies of cond, equality with the saved .pt2, the hash."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import sample_models
from tests.support.seeds import repeated
from tests.support.tracing.pt2_files import read_file
from torchsplit_core.graph.serialization import graph_from_dict, graph_to_dict
from torchsplit_core.graph.torch_graph import TorchGraph, join_bodies
from torchsplit_core.tracing import hash_model_architecture, trace
from torchsplit_core.tracing.export import export_program
from torchsplit_core.tracing.naming import source_and_code
from torchsplit_core.tracing.program_graph import convert_program


def program_of(model: torch.nn.Module, *inputs: torch.Tensor) -> torch.export.ExportedProgram:
    return export_program(model.eval(), inputs, {})


def sample(name: str, size: str = "small", seed: int = 0) -> TorchGraph:
    """The sample's graph without a child process, which costs seconds."""
    client = sample_models.load(name, size, seed)
    graph = graph_of(client.get_model(), *client.get_example_inputs(2))
    return replace(graph, architecture_hash=hash_model_architecture(graph))


def graph_of(model: torch.nn.Module, *inputs: torch.Tensor) -> TorchGraph:
    return convert_program(program_of(model, *inputs), 2)


@pytest.fixture(scope="module")
def bert() -> TorchGraph:
    return trace("sample:bert")


def test_bert_has_unique_ids_in_topological_order(bert):
    seen = set()
    for node in bert.nodes:
        assert node.id not in seen
        assert seen.issuperset(node.inputs)
        seen.add(node.id)
    assert [node.kind for node in bert.nodes].count("output") == 1
    assert [node.id for node in bert.input_nodes] == ["ids", "attention_mask", "segments"]


def test_bert_says_modules_shapes_types_sizes_and_source_lines(bert):
    modules = {node.module for node in bert.ops}
    assert {"embeddings.norm", "encoder.layer.1.attention.query", "pooler"} <= modules
    node = next(node for node in bert.ops if node.module == "encoder.layer.1.intermediate")
    assert (node.op, node.target) == ("linear", "aten.linear.default")
    assert (node.shape, node.dtype, node.output_bytes) == (("s0", 16, 128), "float32", 2 * 16 * 128 * 4)
    file, line = node.source.split(":")
    assert file == "bert.py"
    text = Path(sample_models.__file__).with_name("bert.py").read_text().splitlines()[int(line) - 1]
    assert "self.intermediate" in text
    assert node.code == text.strip()
    weight = bert.by_id[node.inputs[1]]
    assert (weight.kind, weight.target, weight.output_bytes) == (
        "parameter", "encoder.layer.1.intermediate.weight", 128 * 32 * 4
    )  # fmt: skip
    assert next(n for n in bert.nodes if n.kind == "buffer").target == "embeddings.position_ids"
    assert bert.traced_batch == 2
    assert bert.architecture_hash == hash_model_architecture(bert)


def test_no_node_names_this_machine(bert):
    assert "/" not in "".join(node.source + node.module for node in bert.nodes)


def test_cond_has_its_two_bodies_as_subgraphs_and_stays_one_node():
    graph = sample("cond")
    (branch,) = [node for node in graph.ops if node.op == "cond"]
    assert set(graph.subgraphs) == {branch.id}
    bodies = graph.bodies(branch.id)
    assert list(bodies) == ["true_graph_0", "false_graph_0"]
    quick, thorough = bodies.values()
    assert join_bodies(bodies) == graph.subgraphs[branch.id]
    assert [node.op for node in quick.ops] == ["linear"]
    assert [node.op for node in thorough.ops] == ["linear", "gelu", "linear"]
    assert branch.output_bytes == 2 * 16 * 4


@repeated(
    "name", sorted((sample.name for sample in sample_models.SAMPLES), key=lambda name: name != "bert"), kept=1
)
def test_a_saved_pt2_reads_as_the_very_same_graph(name, tmp_path):
    client = sample_models.load(name)
    program = program_of(client.get_model(), *client.get_example_inputs(2))
    torch.export.save(program, tmp_path / "model.pt2")
    exported = convert_program(program, 2)
    read = read_file(tmp_path / "model.pt2")
    assert read == exported
    assert hash_model_architecture(read) == hash_model_architecture(exported)


def test_a_pt2_is_traced_without_torch_in_the_same_words(tmp_path, bert):
    client = sample_models.load("bert", seed=3)
    path = tmp_path / "bert.pt2"
    torch.export.save(program_of(client.get_model(), *client.get_example_inputs(2)), path)
    heard = []
    found = trace(str(path), progress=lambda share, text: heard.append(text))
    assert (bert.route, found.route) == ("non-strict", "read")
    assert replace(found, route=bert.route) == bert
    assert heard == ["reading the file"]


class Odd(torch.nn.Module):
    """Tied weights, several outputs, sizes that the data decide, a symbolic size passed on."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(10, 4)
        self.head = torch.nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(4))
        self.offset = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, ids: torch.Tensor) -> dict[str, object]:
        x = self.embed(ids) * self.scale + self.offset
        flat = x.reshape(ids.shape[0] * ids.shape[1], 4)
        best, _ = x.max(dim=1)
        return {
            "head": self.head(flat), "best": best, "where": torch.nonzero(ids), "part": x.chunk(2, dim=-1)[1],
        }  # fmt: skip


def test_an_odd_model_reads_the_same_both_ways(tmp_path):
    program = program_of(Odd(), torch.ones(2, 5, dtype=torch.int64))
    torch.export.save(program, tmp_path / "odd.pt2")
    graph, read = convert_program(program, 2), read_file(tmp_path / "odd.pt2")
    assert hash_model_architecture(read) == hash_model_architecture(graph)
    for one in (graph, read):
        (weight,) = [node for node in one.nodes if node.kind == "parameter"]
        assert set(one.users[weight.id]) == {"embedding", "linear"}
        assert [node.target for node in one.nodes if node.kind in ("buffer", "constant")] == [
            "scale",
            "offset",
        ]
        assert one.by_id["linear"].shape == ("5*s0", 10)
        assert one.by_id["linear"].output_bytes == 10 * 10 * 4
        assert one.by_id["nonzero"].shape == ("u0", 2)
        several = one.by_id["max_1"]
        picked = [one.by_id[name] for name in one.users["max_1"]]
        assert several.shape is None
        assert several.output_bytes == 2 * 4 * 4 + 2 * 4 * 8 == sum(node.output_bytes for node in picked)


def test_the_hash_ignores_weights_names_lines_and_batch_but_not_structure(bert):
    size = sample_models.load("diamond").get_example_inputs(2)[0]

    def chain(depth, width=16, activation=torch.nn.ReLU):
        layers = [torch.nn.Linear(16, width), *(torch.nn.Linear(width, width) for _ in range(depth))]
        return torch.nn.Sequential(*layers, activation())

    one = hash_model_architecture(graph_of(chain(2), size))
    assert len(one) == 64
    assert one == hash_model_architecture(graph_of(chain(2), size))
    wrapped = torch.nn.Sequential(torch.nn.Sequential(chain(2)))
    assert one == hash_model_architecture(graph_of(wrapped, size))
    others = [chain(3), chain(2, width=17), chain(2, activation=torch.nn.GELU), chain(2).double()]
    found = [
        hash_model_architecture(graph_of(model, size.to(next(model.parameters()).dtype))) for model in others
    ]
    assert len({one, *found}) == 5

    moved = tuple(replace(node, source="", code="", module="", output_bytes=7) for node in bert.nodes)
    assert hash_model_architecture(replace(bert, nodes=moved, traced_batch=8)) == bert.architecture_hash


def test_the_hash_follows_edges_and_the_bodies_of_cond():
    graph = sample("diamond")
    ops = {node.id: node for node in graph.ops}
    join = next(node for node in graph.ops if node.op == "add")
    rewired = replace(join, inputs=(join.inputs[0], join.inputs[0]))
    nodes = tuple(rewired if node.id == join.id else node for node in graph.nodes)
    assert len(ops) == len(graph.ops)
    assert hash_model_architecture(replace(graph, nodes=nodes)) != graph.architecture_hash

    graph = sample("cond")
    bodies = dict(graph.bodies("cond"))
    bodies["true_graph_0"] = bodies["false_graph_0"]
    changed = replace(graph, subgraphs={"cond": join_bodies(bodies)})
    assert hash_model_architecture(changed) != graph.architecture_hash


def test_two_seeds_have_one_hash_and_the_large_size_another():
    hashes = {sample("llama", seed=seed).architecture_hash for seed in (0, 5)}
    assert len(hashes) == 1
    hashes.add(sample("diamond", "large").architecture_hash)
    hashes.add(sample("diamond").architecture_hash)
    assert len(hashes) == 3


def test_a_graph_survives_its_file(bert):
    assert graph_from_dict(graph_to_dict(bert)) == bert
    cond = sample("cond")
    assert graph_from_dict(graph_to_dict(cond)) == cond


TORCH_FRAME = (
    '  File "/v/site-packages/torch/nn/modules/linear.py", line 134, in forward\n    return F.linear(x)'
)


@pytest.mark.parametrize(("stack_trace", "found"), [
    ("", ("", "")),
    (TORCH_FRAME, ("", "")),
    (f'File "/m/net.py", line 7, in f\n    self.a(x)  \n{TORCH_FRAME}', ("net.py:7", "self.a(x)")),
    (f'File "/m/net.py", line 7, in forward\n{TORCH_FRAME}', ("net.py:7", "")),
    ('File "/m/net.py", line 7, in forward', ("net.py:7", "")),
    ('File "/m/a.py", line 1, in f\n    a()\n  File "C:\\m\\b.py", line 2, in g\n    b()', ("b.py:2", "b()")),
    (f'File "/m/net.py", line 7, in f\n    {"y" * 300}', ("net.py:7", "y" * 200)),
])  # fmt: skip
def test_the_code_of_a_node_is_the_text_under_its_innermost_frame(stack_trace, found):
    assert source_and_code(stack_trace) == found
