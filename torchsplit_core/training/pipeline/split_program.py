"""A model split into a chain of parts for training: traced with a dynamic batch size, cut at its blocks.

Each part is a program of its own with the model's weights; a pipeline stage is several consecutive parts. The chain and
the order of its blocks are those from which strategies are estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.partitioning.extraction.stage_drafts import StageDraft, divide
from torchsplit_core.strategy.graph_model.blocks import BlockChain as TracedChain
from torchsplit_core.strategy.graph_model.blocks import chain_of
from torchsplit_core.strategy.graph_model.costs import GraphCosts
from torchsplit_core.strategy.graph_model.stage_partition import partition_evenly
from torchsplit_core.tracing.export import ROUTE, export_program
from torchsplit_core.tracing.export_inputs import OTHER_BATCH, TRACED_BATCH
from torchsplit_core.tracing.program_graph import convert_program
from torchsplit_core.training.pipeline.blocks import BlockCosts, ranges_of
from torchsplit_core.values import InputFault

REMEDY = "Fix pipeline to 1, or change the model."


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that a part reads or makes: sizes (numbers or expressions of the batch), type, whether it trains."""

    shape: tuple[Any, ...]
    dtype: torch.dtype
    trains: bool

    def sizes(self, batch: int) -> tuple[int, ...]:
        """Its sizes in a batch of `batch` samples."""
        return tuple(
            size if isinstance(size, int) else int(size.subs(dict.fromkeys(size.free_symbols, batch)))
            for size in self.shape
        )

    def example(self, batch: int, device: torch.device) -> torch.Tensor:
        """An uninitialised tensor of its sizes."""
        return torch.empty(self.sizes(batch), dtype=self.dtype, device=device, requires_grad=self.trains)


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What a model returns, flattened: `names` of its tensors, or None for a plain value in `values`; the structure."""

    names: tuple[str | None, ...]
    values: tuple[Any, ...]
    structure: pytree.TreeSpec

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors, in order."""
        return tuple(name for name in self.names if name is not None)

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The model's result with these tensors."""
        remaining = iter(tensors)
        leaves = [
            value if name is None else next(remaining)
            for name, value in zip(self.names, self.values, strict=True)
        ]
        return pytree.tree_unflatten(leaves, self.structure)


@dataclass(frozen=True, slots=True)
class SplitProgram:
    """The parts of a model in execution order, one for each of its `blocks` with the operations around it.

    `inputs`: names of the model's inputs, in the order of its arguments. `values`: the program's tensors by name.
    """

    program: ExportedProgram
    blocks: BlockCosts
    parts: tuple[StageDraft, ...]
    inputs: tuple[str, ...]
    result: OutputSpec
    values: dict[str, TensorSpec]

    def boundary_tensors(self, place: int) -> tuple[str, ...]:
        """What earlier parts produce and part `place`, a later one or the model's caller reads; empty for part 0."""
        produced = [name for part in self.parts[:place] for name in part.outputs]
        read = {name for part in self.parts[place:] for name in part.inputs} | {*self.result.tensors}
        return tuple(name for name in produced if name in read)


def split_model(model: nn.Module, batch: Callable[[int], tuple[Any, ...]]) -> SplitProgram:
    """Split a model in training mode; `batch(n)` returns inputs of n samples.

    Raises InputFault for a model that cannot be traced, whose path depends on data, or that is no chain: one that
    returns to a block, or has a weight that two blocks read.
    """
    _check_untied(model)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    args = batch(TRACED_BATCH)
    program = export_program(model, args, {}, (batch(OTHER_BATCH), {}))
    # Tracing has run the model once, which may change its buffers.
    for name, buffer in model.named_buffers():
        buffer.data.copy_(buffers[name])
    graph = convert_program(program, TRACED_BATCH)
    chain = chain_of(graph)
    why = chain.no_stages
    if program.graph_module.meta[ROUTE] == "draft":
        why = "its path depends on data"
    if why:
        raise _not_splittable(why)
    members: list[list[str]] = [[] for _ in chain.blocks]
    for name, place in chain.part_of.items():
        members[place].append(name)
    parts = divide(program, members).stages
    if len(parts) < len(chain.blocks):
        raise _not_splittable(
            f"{len(chain.blocks) - len(parts)} of its blocks compute nothing that the result needs"
        )
    inputs = tuple(str(name) for name in program.graph_signature.user_inputs)
    blocks = _block_costs(program, graph, chain, parts)
    split = SplitProgram(program, blocks, parts, inputs, _output_spec(program), _tensor_specs(program))
    _check_values(split, args)
    return split


def _block_costs(
    program: ExportedProgram, graph: TorchGraph, chain: TracedChain, parts: Sequence[StageDraft]
) -> BlockCosts:
    """What each part computes, holds and saves; a tensor that several parts save counts for the first."""
    loads, moved, activations = ([0.0] * len(parts) for _ in range(3))
    counted: set[str] = set()
    for cost in GraphCosts(graph, TRACED_BATCH, "whole").operations:
        place = chain.part_of[cost.id]
        loads[place] += cost.matrix_flops
        moved[place] += cost.moved_bytes
        activations[place] += (
            sum(size for name, size in cost.saved.items() if name not in counted) / TRACED_BATCH
        )
        counted |= set(cost.saved)
    specs = {spec.arg.name: str(spec.target) for spec in program.graph_signature.input_specs}
    sizes = {name: tensor.nbytes for name, tensor in program.state_dict.items()}
    weight_bytes = [float(sum(sizes.get(specs[name], 0) for name in part.weights)) for part in parts]
    return BlockCosts(chain.blocks, tuple(loads), tuple(moved), tuple(weight_bytes), tuple(activations))


def _check_untied(model: nn.Module) -> None:
    """Raises InputFault for a weight with two names, which two stages would each have as their own."""
    names: dict[int, str] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        first = names.setdefault(id(weight), name)
        if first != name:
            raise _not_splittable(
                f"{first} and {name} are one weight, which two stages would each have as their own"
            )


def _output_spec(program: ExportedProgram) -> OutputSpec:
    (leaves,) = program.graph.output_node().args
    assert isinstance(leaves, tuple | list)
    names = tuple(leaf.name if isinstance(leaf, Node) else None for leaf in leaves)
    values = tuple(None if isinstance(leaf, Node) else leaf for leaf in leaves)
    structure = program.call_spec.out_spec
    assert structure is not None
    return OutputSpec(names, values, structure)


def _tensor_specs(program: ExportedProgram) -> dict[str, TensorSpec]:
    """Every tensor of the program by name; floating-point ones that follow from a trained weight have a gradient."""
    signature, specs = program.graph_signature, dict[str, TensorSpec]()
    trained = {
        spec.arg.name
        for spec in signature.input_specs
        if spec.kind == InputKind.PARAMETER and program.state_dict[str(spec.target)].requires_grad
    }
    reached = set(trained)
    for node in program.graph.nodes:
        traced = node.meta.get("val")
        if any(source.name in reached for source in node.all_input_nodes):
            reached.add(node.name)
        if isinstance(traced, torch.Tensor):
            shape = tuple(size if isinstance(size, int) else size.node.expr for size in traced.shape)
            trains = node.name in reached and traced.dtype.is_floating_point
            specs[node.name] = TensorSpec(shape, traced.dtype, trains)
    return specs


def _check_values(chain: SplitProgram, args: tuple[Any, ...]) -> None:
    """Raises InputFault for values that parts cannot pass on, and input sizes that are neither fixed nor the batch."""
    for name, leaf in zip(chain.inputs, pytree.tree_leaves((args, {})), strict=True):
        value = chain.values.get(name)
        if value is not None and value.sizes(TRACED_BATCH) != tuple(leaf.shape):
            raise _not_splittable(f"its input {name} has a size that is neither fixed nor the batch")
    for place in range(1, len(chain.parts)):
        lost = [name for name in chain.boundary_tensors(place) if name not in chain.values]
        if lost:
            raise _not_splittable(f"block {chain.blocks.names[place]} reads {lost[0]}, which is no tensor")


def partition_stages(chain: SplitProgram, stages: int, layers: Sequence[int] = ()) -> tuple[range, ...]:
    """The parts of each stage: as many as `layers` say, otherwise the division whose longest stage is shortest.

    Raises InputFault for more stages than blocks, and for layers that are not those of the model.
    """
    names, loads = chain.blocks.names, chain.blocks.flops
    count = len(names)
    if count < stages:
        raise _not_splittable(f"it has {count} blocks for {stages} stages")
    if not layers:
        # A part without matrix products takes time, too.
        least = max(loads) / 1000 or 1.0
        return partition_evenly([load + least for load in loads], stages)
    if sum(layers) != count:
        raise InputFault(
            "the strategy's layers",
            f"are {' + '.join(map(str, layers))}, but the model has {count} blocks, {names[0]} to {names[-1]}",
            "Find a strategy for this model.",
        )
    return ranges_of(layers)


def _not_splittable(why: str) -> InputFault:
    return InputFault("the strategy's pipeline", f"cannot cut the model into stages: {why}", REMEDY)
