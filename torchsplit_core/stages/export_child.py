"""The child's part of `export_stages`: export, cut, write, and run the files against the model."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from torchsplit_core.clients import ExportedClient, example_arguments, load_client, open_model
from torchsplit_core.files import write_text
from torchsplit_core.partitioning.extraction.build import build_program
from torchsplit_core.partitioning.extraction.divide import Division, divide
from torchsplit_core.stages.describe import describe_links, describe_part, describe_results, describe_slots
from torchsplit_core.stages.same import same_bits
from torchsplit_core.tracing.export import SEED, describe_program, export_program
from torchsplit_core.tracing.export_inputs import OTHER_BATCH, TRACED_BATCH, Arguments
from torchsplit_core.values import (
    InputFault,
    InternalFault,
    Progress,
    SplitClient,
    StageManifest,
    StagePart,
    ignore_progress,
)


def export_in_child(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Write the parts to `arguments["directory"]`; the manifest contract. Executes foreign code."""
    progress(0.05, "building the model")
    torch.manual_seed(SEED)
    client = load_client(arguments["source"], arguments["trust"])
    examples = {batch: example_arguments(client, batch) for batch in (TRACED_BATCH, OTHER_BATCH)}
    program = _program(client, examples)
    progress(0.35, "cutting")
    manifest = write_stages(
        program,
        arguments["stages"],
        examples,
        Path(arguments["directory"]),
        arguments["architecture_hash"],
        progress,
    )
    contract: dict[str, Any] = json.loads(write_text(replace(manifest, source=arguments["source"])))
    return contract


def write_stages(
    program: ExportedProgram,
    stages: Sequence[Sequence[str]],
    examples: Mapping[int, Arguments],
    directory: Path,
    architecture_hash: str,
    progress: Progress = ignore_progress,
) -> StageManifest:
    """Cut the program, write each part to the directory and run the files against it; their manifest.

    `examples` are arguments by batch size, the traced one among them. Raises InputFault where the program is
    not the one that was cut, and as `divide` does.
    """
    graph = describe_program(program, TRACED_BATCH)
    if graph["architecture_hash"] != architecture_hash:
        raise InputFault(
            "the cut",
            f"architecture {architecture_hash[:12]}…",
            f"it is of this model, whose architecture is {graph['architecture_hash'][:12]}…",
            "Profile and cut the model again.",
        )
    division = divide(program, stages)
    parts = _write(program, division, examples[TRACED_BATCH], directory, progress)
    verified: tuple[int, ...] = ()
    if not division.random:
        progress(0.7, "running the parts against the model")
        _verify(program, parts, directory, list(examples.values()))
        verified = tuple(examples)
    inputs, input_structure = describe_slots(program)
    outputs, output_structure, notes = describe_results(program)
    links, cut_bytes = describe_links(parts, inputs, outputs)
    return StageManifest(
        source="",
        architecture_hash=architecture_hash,
        torch_version=torch.__version__.partition("+")[0],
        traced_batch=TRACED_BATCH,
        inputs=inputs,
        input_structure=input_structure,
        outputs=outputs,
        output_structure=output_structure,
        stages=parts,
        links=links,
        cut_bytes=cut_bytes,
        verified_batches=verified,
        notes=(*graph["notes"], *division.notes, *notes),
    )


def _program(client: SplitClient, examples: Mapping[int, Arguments]) -> ExportedProgram:
    """The exported program of the model; a .pt2 is taken as it is."""
    if isinstance(client, ExportedClient):
        return client.program
    model = open_model(client)
    if not isinstance(model, torch.nn.Module):
        raise InputFault("get_model()", type(model).__name__, "it returns an nn.Module", "Return the module.")
    args, kwargs = examples[TRACED_BATCH]
    return export_program(model, args, kwargs, examples[OTHER_BATCH])


def _write(
    program: ExportedProgram, division: Division, example: Arguments, directory: Path, progress: Progress
) -> tuple[StagePart, ...]:
    """Each stage as a file, with the values of its inputs at the traced batch as its example inputs."""
    values = _named_inputs(program, example)
    parts = []
    for i, draft in enumerate(division.stages):
        progress(0.4 + 0.3 * i / len(division.stages), f"writing stage {i + 1} of {len(division.stages)}")
        taken = [values[name] for name in draft.inputs]
        stage = build_program(program, draft, [_kept(value) for value in taken])
        # What writes its own weights must not do so before they are in the file.
        runs = copy.deepcopy(stage) if division.writes_weights else stage
        with torch.no_grad():
            given = runs.module(check_guards=False)(*(_kept(value) for value in taken))
        values.update(zip(draft.outputs, given, strict=True))
        path = directory / f"stage{i}.pt2"
        torch.export.save(stage, path)
        parts.append(describe_part(program, draft, path, _digest(path)))
    return tuple(parts)


def _verify(
    program: ExportedProgram, parts: Sequence[StagePart], directory: Path, examples: Sequence[Arguments]
) -> None:
    """The files one after the other on every example, against the model. Raises InternalFault."""
    values = [_named_inputs(program, example) for example in examples]
    whole = program.module(check_guards=False)
    with torch.no_grad():
        expected = [
            pytree.tree_leaves(whole(*pytree.tree_map(_kept, args), **pytree.tree_map(_kept, kwargs)))
            for args, kwargs in examples
        ]
        for part in parts:
            stage = torch.export.load(directory / part.file).module(check_guards=False)
            for known in values:
                given = stage(*(known[value.name] for value in part.inputs))
                known.update(zip((value.name for value in part.outputs), given, strict=True))
            del stage
    slots, _, _ = describe_results(program)
    for known, leaves in zip(values, expected, strict=True):
        for slot, leaf in zip(slots, leaves, strict=True):
            found = slot.constant if slot.name is None else known[slot.name]
            if not same_bits(found, leaf):
                raise InternalFault(f"the parts give another {slot.name} than the model")


def _named_inputs(program: ExportedProgram, example: Arguments) -> dict[str, Any]:
    """The model's inputs by the names of the traced graph, as copies."""
    slots, _ = describe_slots(program)
    leaves = pytree.tree_leaves(example)
    return {slot.name: _kept(leaf) for slot, leaf in zip(slots, leaves, strict=True) if slot.name is not None}


def _kept(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
