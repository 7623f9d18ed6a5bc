"""The exported program of one stage, bit-equal to the traced model: nodes are copied, not traced again.

Operations, their order, recorded shapes and symbols stay, and so does a free batch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from torchsplit_core.partitioning.extraction.stage_drafts import StageDraft

_UNQUOTABLE = re.compile(r'["\\\x00-\x1f]')


def build_program(
    program: ExportedProgram, draft: StageDraft, example: Sequence[Any] | None
) -> ExportedProgram:
    """The draft as a program of positional arguments that returns a tuple.

    `example`: values of its inputs, stored in the program for profiling; None: none.
    """
    nodes = {node.name: node for node in program.graph.nodes}
    graph, copies = Graph(), {}
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    for name in (*draft.weights, *draft.inputs):
        copies[name] = graph.placeholder(name)
        copies[name].meta = dict(nodes[name].meta)
    for name, tensor, dimension in draft.sizes:
        copies[name] = graph.create_node(
            "call_function", torch.ops.aten.sym_size.int, (copies[tensor], dimension), name=name
        )
        copies[name].meta = dict(nodes[name].meta)
    bodies: dict[str, Any] = {}

    def copy_of(read: Node) -> Node:
        if read.name not in copies and read.op == "get_attr":  # the body of a cond or while
            bodies[str(read.target)] = getattr(program.graph_module, str(read.target))
            copies[read.name] = graph.node_copy(read)
        return copies[read.name]

    for name in draft.operations:
        copies[name] = graph.node_copy(nodes[name], copy_of)
    graph.output(tuple(copies[name] for name in draft.outputs))
    inputs = [_named(copies[name]) for name in draft.inputs]
    outputs = [_named(copies[name]) for name in draft.outputs]
    signature = ExportGraphSignature(
        [
            *(specs[name] for name in draft.weights),
            *(InputSpec(InputKind.USER_INPUT, argument, None) for argument in inputs),
        ],
        [OutputSpec(OutputKind.USER_OUTPUT, argument, None) for argument in outputs],
    )
    call = ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=pytree.tree_structure(((0,) * len(inputs), {})),
        out_spec=pytree.tree_structure((0,) * len(outputs)),
        forward_arg_names=list(draft.inputs),
    )
    targets = {specs[name].target for name in draft.weights}
    return ExportedProgram(
        root=bodies,
        graph=graph,
        graph_signature=signature,
        state_dict={name: value for name, value in program.state_dict.items() if name in targets},
        range_constraints=_constraints(program, graph),
        module_call_graph=[ModuleCallEntry("", call)],
        example_inputs=None if example is None else (tuple(example), {}),
        constants={name: value for name, value in program.constants.items() if name in targets},
        verifiers=list(program.verifiers),
    )


def rename_unquotable_weights(program: ExportedProgram) -> None:
    """Rename, in place, weights whose names torch cannot write into the code that it makes of a program.

    torch puts names between quotes as they are. The weight gets the name of its value in the graph.
    """
    for spec in program.graph_signature.input_specs:
        if spec.target is None or not _UNQUOTABLE.search(spec.target):
            continue
        for tensors in (program.state_dict, program.constants):
            if spec.target in tensors:
                tensors[spec.arg.name] = tensors.pop(spec.target)
        spec.target = spec.arg.name


def _named(node: Node) -> TensorArgument | SymIntArgument:
    if isinstance(node.meta.get("val"), torch.Tensor):
        return TensorArgument(node.name)
    return SymIntArgument(node.name)


def _constraints(program: ExportedProgram, graph: Graph) -> dict[Any, Any]:
    """The ranges of the stage's symbols."""
    symbols: set[Any] = set()
    for node in graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
            for size in sizes:
                if isinstance(size, torch.SymInt):
                    symbols |= size.node.expr.free_symbols
    return {
        symbol: constraint for symbol, constraint in program.range_constraints.items() if symbol in symbols
    }
