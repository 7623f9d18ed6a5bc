"""Hugging Face architectures, as transformers gives them, trace by the product's own path."""

import json
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

# The benchmarks are scripts of the repository, no installed package.
from benchmarks.argument_kinds import kinds
from benchmarks.huggingface_models import ARCHITECTURES, BOTH, VISION, Architecture
from tests.support.paths import ROOT
from tests.support.seeds import repeated
from tests.support.tracing.argument_pairs import PAIRS
from tests.support.tracing.pt2_files import read_file as read_pt2_file
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file
from torchsplit_core.graph.architecture import hash_model_architecture
from torchsplit_core.graph.preparation.prepare import prepare
from torchsplit_core.graph.regions import region_tree
from torchsplit_core.graph.serialization import graph_from_dict
from torchsplit_core.tracing.export import describe_program, export_program
from torchsplit_core.tracing.export_results import CACHE_NOTE, mend_results

TESTED = [one for one in ARCHITECTURES if not one.slow]
KINDS = {"text", "language", "vision", "speech", "detection", "mixture of experts", "state space"}
OF_EVERY_KIND_FIRST = sorted(
    TESTED, key=lambda one: next(other for other in TESTED if other.kind == one.kind) is not one
)
CLIENT = """
import sys
sys.path.insert(0, {root!r})
from benchmarks.huggingface_models import ARCHITECTURES

class Client:
    batch_sizes = (1, 2)
    entry = next(one for one in ARCHITECTURES if one.name == {name!r})
    def get_model(self): return self.entry.build()
    def get_example_inputs(self, batch_size): return (), self.entry.inputs(batch_size)
"""


def exported(architecture: Architecture, model: torch.nn.Module) -> ExportedProgram:
    """What the child does, without the child: a process of its own costs seconds."""
    return export_program(model, (), architecture.inputs(2), ((), architecture.inputs(3)))


def results(value: Any) -> list[torch.Tensor]:
    """The tensors that a model returns, in order."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def test_the_architectures_tested_are_many_and_of_every_kind():
    assert len(TESTED) >= 25
    assert {one.kind for one in TESTED} >= KINDS
    assert len({one.name for one in ARCHITECTURES}) == len(ARCHITECTURES)


@repeated("architecture", OF_EVERY_KIND_FIRST, kept=1, ids=lambda one: one.name)
def test_an_architecture_traces_with_a_free_batch_and_has_cuts(architecture, tmp_path):
    model = architecture.build()
    program = exported(architecture, model)
    graph = graph_from_dict(describe_program(program, 2))
    assert graph.route == "non-strict"
    assert CACHE_NOTE not in graph.notes or architecture.kind != VISION
    assert len(graph.ops) > 40
    assert [node.kind for node in graph.nodes].count("output") == 1
    given = architecture.inputs(2)
    assert {node.id for node in graph.input_nodes} >= given.keys()
    for name, value in given.items():
        batch, *others = graph.by_id[name].shape or ()
        assert str(batch).startswith("s")
        assert others == list(value.shape[1:])
    assert sum(node.source.startswith("modeling_") for node in graph.ops) > 10

    prepared = prepare(graph)
    cuts = region_tree(prepared).cut_points
    # Two towers have no chain through both; every other stack can be cut between its layers.
    assert len(cuts) >= (1 if architecture.kind in (BOTH, "time series") else 2)
    assert set(cuts) <= set(prepared.main_ids)

    # Its file says the same of it, arguments and all, and the table of pairs knows every kind of argument.
    torch.export.save(program, tmp_path / "model.pt2")
    read = read_pt2_file(tmp_path / "model.pt2")
    assert (read.nodes, read.subgraphs) == (graph.nodes, graph.subgraphs)
    assert hash_model_architecture(read) == graph.architecture_hash
    assert {kind for kind, _ in kinds(program)} <= {pair.kind for pair in PAIRS}

    # The trace is the model: other data at a batch that it never saw gives the same results.
    other = {name: value.flip(-1) for name, value in architecture.inputs(5).items()}
    with torch.no_grad(), mend_results(model, (), other):
        wanted, found = results(model(**other)), results(program.module(check_guards=False)(**other))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def llama() -> tuple[torch.nn.Module, dict[str, Any]]:
    """A model with a cache, after its trace, and its graph."""
    architecture = next(one for one in TESTED if one.name == "LLaMA")
    model = architecture.build()
    return model, describe_program(exported(architecture, model), 2)


def test_a_cache_is_turned_off_for_the_trace_and_told_of(llama):
    model, described = llama
    graph = graph_from_dict(described)
    assert graph.notes == (CACHE_NOTE,)
    assert model.config.use_cache is True  # the user's model is as it was
    (output,) = [node for node in graph.nodes if node.kind == "output"]
    assert len(output.inputs) == 1


def test_a_file_with_a_raw_model_is_traced_from_the_command_line(llama, tmp_path, capsys):
    (tmp_path / "net.py").write_text(CLIENT.format(root=str(ROOT), name="LLaMA"))
    output = tmp_path / "net.graph.json"
    assert main(["trace", f"{tmp_path / 'net.py'}:Client", "--trust", "-o", str(output)]) == 0
    said = capsys.readouterr().err
    _, graph = read_file(str(output), expected="torchsplit.graph")
    assert json.loads(output.read_text())["route"] == graph.route == "non-strict"
    assert "note: use_cache" in said
    assert f"{len(graph.nodes)} nodes" in said
    assert graph.architecture_hash == llama[1]["architecture_hash"]
