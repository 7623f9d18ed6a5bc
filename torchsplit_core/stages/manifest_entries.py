"""Entries of the manifest of a cut program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from torchsplit_core.partitioning.extraction.stage_drafts import StageDraft
from torchsplit_core.tracing.export_inputs import free_input_sizes
from torchsplit_core.values import InputFault, SizeRange, StageLink, StagePart, StageSlot, StageValue
from torchsplit_core.values.stages import ValueKind

FLAT_NOTE = "the result's structure ({reason}) cannot be written to a file: its leaves come back as a tuple"
NUMBERS: tuple[tuple[type, ValueKind], ...] = (
    (torch.SymBool, "bool"),
    (bool, "bool"),
    (torch.SymInt, "int"),
    (int, "int"),
    (torch.SymFloat, "float"),
    (float, "float"),
)


def describe_part(program: ExportedProgram, draft: StageDraft, path: Path, sha256: str) -> StagePart:
    """The entry of a stage whose file is written."""
    weights = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs}
    tensors = {**program.state_dict, **program.constants}
    weight_values = [tensors[weights[name] or ""] for name in draft.weights]
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    return StagePart(
        name=path.stem,
        file=path.name,
        sha256=sha256,
        file_bytes=path.stat().st_size,
        operations=len(draft.operations) + len(draft.sizes),
        weight_bytes=sum(value.nbytes for value in weight_values if isinstance(value, torch.Tensor)),
        inputs=tuple(_value(name, values[name]) for name in draft.inputs),
        outputs=tuple(_value(name, values[name]) for name in draft.outputs),
    )


def describe_slots(program: ExportedProgram) -> tuple[tuple[StageSlot, ...], str]:
    """The leaves of (args, kwargs) and their structure. Raises InputFault if the structure cannot be written."""
    slots = tuple(
        _slot(spec.arg) for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT
    )
    try:
        return slots, pytree.treespec_dumps(program.call_spec.in_spec)
    except (NotImplementedError, TypeError) as error:
        raise InputFault(
            "get_example_inputs()",
            f"has inputs whose structure cannot be written: {error}",
            "Pass tensors and plain values in tuples, lists and dicts.",
        ) from error


def describe_results(program: ExportedProgram) -> tuple[tuple[StageSlot, ...], str, tuple[str, ...]]:
    """The leaves of the result, their structure ("": a flat tuple), and a note on a flat one."""
    slots = tuple(_slot(spec.arg) for spec in program.graph_signature.output_specs)
    try:
        return slots, pytree.treespec_dumps(program.call_spec.out_spec), ()
    except (NotImplementedError, TypeError) as error:
        return slots, "", (FLAT_NOTE.format(reason=" ".join(str(error).split())[:120]),)


def describe_sizes(program: ExportedProgram, holds_alone: bool) -> tuple[SizeRange, ...]:
    """The free sizes of the inputs that are limited: from the export's up, unless its graph `holds_alone` (batch 1)."""
    ranges = (
        SizeRange(symbol, 1 if holds_alone else value, most)
        for symbol, value, most in dict.fromkeys(free_input_sizes(program))
    )
    return tuple(limited for limited in ranges if limited.least > 1 or limited.most is not None)


def describe_links(
    parts: Sequence[StagePart], inputs: Sequence[StageSlot], outputs: Sequence[StageSlot]
) -> tuple[tuple[StageLink, ...], tuple[int, ...]]:
    """Which stage feeds which, and the bytes that each stage but the last makes for later ones."""
    producers: dict[str, str | None] = {slot.name: None for slot in inputs if slot.name is not None}
    sizes: dict[str, int] = {}
    for part in parts:
        sizes |= {value.name: value.bytes for value in (*part.inputs, *part.outputs)}
        producers |= dict.fromkeys((value.name for value in part.outputs), part.name)
    readers = [(part.name, [value.name for value in part.inputs]) for part in parts]
    readers.append(("", list(dict.fromkeys(slot.name for slot in outputs if slot.name is not None))))
    links: list[StageLink] = []
    for reader, names in readers:
        for source in dict.fromkeys(producers[name] for name in names):
            values = tuple(name for name in names if producers[name] == source)
            links.append(
                StageLink(source, reader or None, values, sum(sizes.get(name, 0) for name in values))
            )
    crossing = {value.name for part in parts for value in part.inputs}
    cut_bytes = tuple(
        sum(value.bytes for value in part.outputs if value.name in crossing) for part in parts[:-1]
    )
    return tuple(links), cut_bytes


def _slot(argument: Any) -> StageSlot:
    if isinstance(argument, ConstantArgument):
        return StageSlot(None, argument.value)
    return StageSlot(argument.name)


def _value(name: str, value: Any) -> StageValue:
    if isinstance(value, torch.Tensor):
        sizes = [size.node.hint if isinstance(size, torch.SymInt) else size for size in value.shape]
        shape = tuple(str(size.node.expr) if isinstance(size, torch.SymInt) else size for size in value.shape)
        known = all(size is not None for size in sizes)
        size = math.prod(sizes) * value.dtype.itemsize if known else 0
        return StageValue(name, "tensor", str(value.dtype).removeprefix("torch."), shape, size)
    for kind, kind_name in NUMBERS:
        if isinstance(value, kind):
            return StageValue(name, kind_name, bytes=8)
    raise InputFault(
        f"value {name}",
        f"is a {type(value).__name__}, and only tensors and numbers cross a cut",
        "Cut elsewhere.",
    )
