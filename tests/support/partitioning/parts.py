"""Models cut by hand and samples cut by the provider, as parts that run."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from torchsplit_core.graph import TorchGraph
from torchsplit_core.graph.serialization import graph_from_dict
from torchsplit_core.model_source import example_arguments, load_client, open_model
from torchsplit_core.partitioning import solve_partitioning_problem
from torchsplit_core.partitioning.extraction.stage_drafts import divide
from torchsplit_core.partitioning.extraction.stage_program import build_program
from torchsplit_core.stages.bit_equal import same_bits
from torchsplit_core.stages.export_child import write_stages
from torchsplit_core.stages.staged_model import StagedModel
from torchsplit_core.tracing.export import describe_program, export_program
from torchsplit_core.values import NodeProfile, PartitionCandidate, Profile, ProfileRow

SAMPLES = ("clip", "bert", "fastpitch", "ocr", "resnet50", "llama", "diamond", "cond")
ROW = ProfileRow("whole", "cpu", None, 2, 1, 200.0, 10.0, None, None, None, "measured")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def exported(model: torch.nn.Module, *args: Any, other: tuple[Any, ...], **kwargs: Any) -> ExportedProgram:
    """The program of a model; `other` are the positional arguments at a second batch size."""
    return export_program(model.eval(), args, kwargs, (other, kwargs))


def graph_of(program: ExportedProgram) -> TorchGraph:
    return graph_from_dict(describe_program(program, 2))


def best_cut(graph: TorchGraph, stages: int) -> PartitionCandidate:
    """The cut that shares the operations evenly, as if each took as long."""
    share = 1 / len(graph.ops)
    nodes = tuple(NodeProfile(op.id, share, op.output_bytes, 0) for op in graph.ops)
    profile = Profile("model", graph.architecture_hash, {}, (ROW,), nodes)
    return solve_partitioning_problem(graph, profile, stages=stages, top_k=1, time_limit_s=1.0).candidates[0]


def cut_after(program: ExportedProgram, *last: str) -> list[list[str]]:
    """Stages in execution order, each ending with the operation named; the inputs are in the first."""
    stages: list[list[str]] = [[]]
    for node in graph_of(program).nodes:
        if node.kind in ("op", "input"):
            stages[-1].append(node.id)
            if node.id in last:
                stages.append([])
    assert len(stages) == len(last) + 1, [node.id for node in graph_of(program).nodes]
    return stages


def parts_of(
    program: ExportedProgram, stages: Sequence[Sequence[str]], directory: Path, *args: Any, **kwargs: Any
) -> StagedModel:
    """The program's parts, written to the directory and loaded from there."""
    directory.mkdir(exist_ok=True)
    digest = describe_program(program, 2)["architecture_hash"]
    manifest = write_stages(program, stages, {2: (args, kwargs)}, directory, digest)
    return StagedModel(directory, manifest)


def run_unwritten(program: ExportedProgram, stages: Sequence[Sequence[str]]) -> Any:
    """The model as the programs of its parts, never written to a file: a function of its positional tensors."""
    drafted = divide(program, stages).stages
    parts = [build_program(program, draft, None).module(check_guards=False) for draft in drafted]

    def run(*args: Any) -> list[Any]:
        values = dict(zip(program.graph_signature.user_inputs, args, strict=True))
        for draft, part in zip(drafted, parts, strict=True):
            values.update(zip(draft.outputs, part(*(values[name] for name in draft.inputs)), strict=True))
        return [values[name] for name in program.graph_signature.user_outputs]

    return run


def drafts(program: ExportedProgram, *last: str) -> Any:
    return divide(program, cut_after(program, *last)).stages


def assert_same(found: Any, expected: Any) -> None:
    """Both results alike in structure and to the bit."""
    leaves, structure = pytree.tree_flatten(found)
    others, other = pytree.tree_flatten(expected)
    assert structure == other
    assert all(same_bits(one, two) for one, two in zip(leaves, others, strict=True))


def program_of(source: str, *, trust: bool = False) -> tuple[Any, torch.nn.Module, ExportedProgram]:
    """A client, its model and the program of batch 2, exported as a trace does, without its child."""
    client = load_client(source, trust)
    model = open_model(client)
    args, kwargs = example_arguments(client, 2)
    return client, model, export_program(model, args, kwargs, example_arguments(client, 3))


@cache
def sample_program(name: str) -> tuple[Any, torch.nn.Module, ExportedProgram]:
    """Those of a small sample: read, never changed."""
    return program_of(f"sample:{name}")
