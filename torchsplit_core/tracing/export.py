"""The child's part of `trace`: build the model, export it with a free batch, describe its graph."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from torchsplit_core.clients import example_arguments, foreign_code, load_client, open_model
from torchsplit_core.graph.graph_json import graph_to_dict
from torchsplit_core.isolation import is_out_of_memory
from torchsplit_core.tracing.architecture import hash_model_architecture
from torchsplit_core.tracing.convert import graph_of_program
from torchsplit_core.tracing.export_faults import ExportFailure, fault_of_export
from torchsplit_core.values import InputFault, Progress

TRACED_BATCH = 2
"""An example batch of 1 would make torch take the batch for a constant."""


def export_in_child(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """The graph contract of `arguments["source"]`. Executes foreign code: only in a limited child."""
    progress(0.05, "building the model")
    client = load_client(arguments["source"], arguments["trust"])
    model = open_model(client)
    if not isinstance(model, torch.nn.Module):
        raise InputFault("get_model()", type(model).__name__, "it returns an nn.Module", "Return the module.")
    args, kwargs = example_arguments(client, TRACED_BATCH)
    progress(0.3, "exporting")
    program = export_program(model, args, kwargs)
    progress(0.9, "describing the graph")
    return describe_program(program, TRACED_BATCH)


def describe_program(program: ExportedProgram, traced_batch: int) -> dict[str, Any]:
    """The graph contract of an export, with its architecture hash."""
    graph = graph_of_program(program, traced_batch)
    return graph_to_dict(replace(graph, architecture_hash=hash_model_architecture(graph)))


def export_program(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """Export with dimension 0 of every tensor free: without running Python's bytecode first, then strictly.

    Raises InputFault in the user's terms where neither passes, or where the model fixes the batch.
    """
    shapes = pytree.tree_map(_free_batch, (args, kwargs))
    if not any(leaf is not None for leaf in pytree.tree_leaves(shapes)):
        raise InputFault(
            f"get_example_inputs({TRACED_BATCH})",
            "no tensor with that many rows",
            "every tensor has the batch in dimension 0",
            "Build each input with batch_size rows.",
        )
    by_name = _by_parameter(model, shapes)
    try:
        program = _attempt(model, args, kwargs, by_name, strict=False)
    except ExportFailure as first:
        try:
            program = _attempt(model, args, kwargs, by_name, strict=True)
        except ExportFailure as second:
            # Where the model does not even run, that is what to say.
            with foreign_code("the model on its example inputs"), torch.no_grad():
                model(*args, **kwargs)
            raise fault_of_export(first.cause, second.cause) from first.cause
    _refuse_a_fixed_batch(program)
    return program


def _free_batch(leaf: Any) -> dict[int, Any] | None:
    """The dynamic shape of one example value."""
    batched = isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == TRACED_BATCH
    return {0: Dim.AUTO} if batched else None


def _by_parameter(model: torch.nn.Module, shapes: tuple[Any, Any]) -> Any:
    """Dynamic shapes as torch.export wants them: by position, or by name once there are keyword arguments."""
    positional, named = shapes
    if not named:
        return positional
    names = list(inspect.signature(model.forward).parameters)
    return dict(zip(names, positional, strict=False)) | named


def _attempt(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any, *, strict: bool
) -> ExportedProgram:
    """One export. Foreign code runs inside, so any exception may come out: it becomes an ExportFailure."""
    try:
        with torch.no_grad():
            return torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=strict)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ExportFailure(error) from error


def _refuse_a_fixed_batch(program: ExportedProgram) -> None:
    """Dim.AUTO silently fixes a batch that the model's code fixes."""
    inputs = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op != "placeholder" or node.name not in inputs or not isinstance(value, torch.Tensor):
            continue
        # A batch that was fixed on the way may still be a SymInt, of a constant expression.
        if value.dim() and not _is_free(value.shape[0]) and value.shape[0] == TRACED_BATCH:
            raise InputFault(
                f"input {node.name}",
                f"batch of {TRACED_BATCH}",
                "the model takes any batch size",
                "Its code fixes the batch: use x.shape[0] instead of a number in view, reshape or expand.",
            )


def _is_free(size: int | torch.SymInt) -> bool:
    return isinstance(size, torch.SymInt) and not size.node.expr.is_number
