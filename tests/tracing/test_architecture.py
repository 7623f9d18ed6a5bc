"""The architecture hash sees what changes the work and nothing else, the same from an export and from its file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.argument_kinds import kinds
from tests.support.tracing.argument_pairs import KINDS_OF_THE_BENCHMARK, PAIRS, TWELVE, Calls, Pair
from tests.support.tracing.pt2_files import read_file
from torchsplit_core.graph.architecture import former_architecture_hash, hash_model_architecture
from torchsplit_core.graph.serialization import graph_from_dict, graph_to_dict
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.tracing.convert import graph_of_program
from torchsplit_core.tracing.export import export_program


def exported(model: torch.nn.Module, *inputs: torch.Tensor) -> torch.export.ExportedProgram:
    return export_program(model.eval(), inputs, {})


def graph_of(model: torch.nn.Module, *inputs: torch.Tensor) -> TorchGraph:
    return graph_of_program(exported(model, *inputs), 2)


def both_ways(program: torch.export.ExportedProgram, path: Path) -> TorchGraph:
    """The graph of a program, once its file has said the same of it."""
    graph = graph_of_program(program, 2)
    torch.export.save(program, path)
    read = read_file(path)
    assert read == graph
    assert hash_model_architecture(read) == hash_model_architecture(graph)
    assert graph_from_dict(graph_to_dict(graph)) == graph
    return graph


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_one_argument_makes_another_architecture(pair: Pair, tmp_path: Path) -> None:
    programs = [exported(Calls(function), *pair.inputs) for function in (pair.one, pair.other)]
    graphs = [both_ways(program, tmp_path / f"{i}.pt2") for i, program in enumerate(programs)]
    assert len({hash_model_architecture(graph) for graph in graphs}) == 2
    assert pair.kind in {kind for program in programs for kind, _ in kinds(program)}


def test_the_pairs_have_every_kind_that_the_benchmark_yields() -> None:
    assert {pair.kind for pair in PAIRS}.issuperset(KINDS_OF_THE_BENCHMARK)


def test_the_scheme_before_took_pools_for_one_and_this_one_does_not() -> None:
    pools = [graph_of(Calls(side), *TWELVE[0].inputs) for side in (TWELVE[0].one, TWELVE[0].other)]
    assert len({former_architecture_hash(graph) for graph in pools}) == 1
    assert len({hash_model_architecture(graph) for graph in pools}) == 2
