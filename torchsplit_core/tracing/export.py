"""The child's side of `trace`: builds the model, exports it with a free batch, describes its graph.

Three routes are tried in order: non-strict (torch follows the Python code as it runs), strict (torch reads the bytecode
first), draft (for data-dependent control flow: torch follows the path of the example inputs, and reports its
assumptions).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram

from torchsplit_core.graph.architecture import hash_model_architecture
from torchsplit_core.graph.expert_modules import planned_names
from torchsplit_core.graph.serialization import graph_to_dict
from torchsplit_core.isolation import is_out_of_memory
from torchsplit_core.model_source import (
    example_arguments,
    load_client,
    name_source,
    not_a_module,
    open_model,
)
from torchsplit_core.tracing.draft_export import describe_assumptions, export_draft
from torchsplit_core.tracing.export_faults import ExportFailure, fault_of_export, fault_of_fixed_batch
from torchsplit_core.tracing.export_inputs import (
    OTHER_BATCH,
    TRACED_BATCH,
    Arguments,
    DynamicSizes,
    explicit_keywords,
    find_dynamic_sizes,
    find_largest_batch,
)
from torchsplit_core.tracing.export_results import mend_results, register_dataclasses
from torchsplit_core.tracing.fixed_batch import record_fixing_lines
from torchsplit_core.tracing.naming import BATCH_NOTE
from torchsplit_core.tracing.program_graph import convert_program
from torchsplit_core.values import InputFault, Progress

SEED = 0
"""A draft export follows the example inputs, so random ones must be the same every time."""
ROUTE = "torchsplit.route"
NOTES = "torchsplit.notes"
"""Keys of the exported graph module's meta."""


def export_in_child(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """The graph contract of `arguments["source"]`. Executes foreign code: only in a limited child."""
    progress(0.05, "building the model")
    torch.manual_seed(SEED)
    client = load_client(arguments["source"], arguments["trust"])
    with name_source(arguments["source"]):
        model = open_model(client)
        if not isinstance(model, torch.nn.Module):
            raise not_a_module(model)
        args, kwargs = example_arguments(client, TRACED_BATCH)
        other = example_arguments(client, OTHER_BATCH)
        progress(0.3, "exporting")
        program = export_program(model, args, kwargs, other)
    progress(0.9, "describing the graph")
    described = describe_program(program, TRACED_BATCH)
    names = [name for name, _ in model.named_modules()]
    plan = getattr(client, "expert_plan", None) or ()
    if experts := [name for pattern in plan for name in planned_names(str(pattern), names)]:
        described["experts"] = experts
    return described


def describe_program(program: ExportedProgram, traced_batch: int) -> dict[str, Any]:
    """The graph contract of an export, with its architecture hash and how it was made."""
    graph = convert_program(program, traced_batch)
    meta = program.graph_module.meta
    largest = find_largest_batch(program, traced_batch)
    return graph_to_dict(
        replace(
            graph,
            architecture_hash=hash_model_architecture(graph),
            route=meta.get(ROUTE, ""),
            notes=(*meta.get(NOTES, ()), *(() if largest is None else (BATCH_NOTE.format(largest),))),
            largest_batch=largest,
        )
    )


def export_program(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], other: Arguments | None = None
) -> ExportedProgram:
    """Export with a free batch; route and notes are in the graph module's meta.

    `other` are arguments of OTHER_BATCH rows, see `find_dynamic_sizes`. Raises InputFault in the user's terms if no
    route succeeds, or if the model fixes the batch.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise InputFault(
            "get_model()",
            f"returns TorchScript ({type(model).__name__}), which cannot be exported",
            "Return the module as it was before torch.jit.",
        )
    register_dataclasses((args, kwargs, other))
    sizes = find_dynamic_sizes(args, kwargs, other)
    with explicit_keywords(model, args, kwargs), mend_results(model, args, kwargs) as notes:
        route, program = _export_by_first_route(model, sizes)
    if route == "draft":
        notes += describe_assumptions(program)
    program.graph_module.meta |= {ROUTE: route, NOTES: notes}
    return program


def _export_by_first_route(model: torch.nn.Module, sizes: DynamicSizes) -> tuple[str, ExportedProgram]:
    """The first successful route, by name, and its export."""
    routes: dict[str, Callable[[], ExportedProgram]] = {
        "non-strict": lambda: _export(model, sizes, strict=False),
        "strict": lambda: _export(model, sizes, strict=True),
        "draft": lambda: export_draft(model, sizes),
    }
    failures: list[Exception] = []
    fixed: tuple[str, int, str] | None = None
    for name, attempt in routes.items():
        # A draft follows the example inputs, so it fixes at least as much as the others.
        if fixed is not None and name == "draft":
            break
        try:
            with record_fixing_lines() as lines:
                program = _attempt(attempt)
        except ExportFailure as failure:
            failures.append(failure.cause)
            continue
        fixed_dimension = sizes.first_fixed_dimension(program)
        if fixed_dimension is None:
            return name, program
        fixed = fixed or (*fixed_dimension, next(iter(lines), ""))
    if fixed is not None:
        raise fault_of_fixed_batch(*fixed)
    raise fault_of_export(*failures) from failures[0]


def _export(model: torch.nn.Module, sizes: DynamicSizes, *, strict: bool) -> ExportedProgram:
    shapes = sizes.dynamic_shapes(model)
    with torch.no_grad():
        return torch.export.export(model, sizes.args, sizes.kwargs, dynamic_shapes=shapes, strict=strict)


def _attempt(export: Callable[[], ExportedProgram]) -> ExportedProgram:
    """One export. Foreign code runs inside, so any exception may be raised: it becomes an ExportFailure."""
    try:
        return export()
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ExportFailure(error) from error
