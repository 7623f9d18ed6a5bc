"""The child of `export_stages`: exports and cuts the model, writes the parts and runs them against it."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from torchsplit_core.files import write_text
from torchsplit_core.graph.architecture import OF_FORMER_SCHEME, former_architecture_hash
from torchsplit_core.graph.serialization import graph_from_dict
from torchsplit_core.model_source import (
    ExportedClient,
    example_arguments,
    foreign_code,
    load_client,
    open_model,
)
from torchsplit_core.partitioning.extraction.stage_drafts import Division, divide
from torchsplit_core.partitioning.extraction.stage_program import build_program, rename_unquotable_weights
from torchsplit_core.stages.bit_equal import nearly_same, same_bits
from torchsplit_core.stages.manifest_entries import (
    describe_links,
    describe_part,
    describe_results,
    describe_sizes,
    describe_slots,
)
from torchsplit_core.tracing.export import ROUTE, SEED, describe_program, export_program
from torchsplit_core.tracing.export_inputs import OTHER_BATCH, TRACED_BATCH, Arguments, find_largest_batch
from torchsplit_core.tracing.export_results import mend_results
from torchsplit_core.values import (
    InputFault,
    InternalFault,
    Progress,
    SplitClient,
    StageManifest,
    StagePart,
    ignore_progress,
)

ALONE_NOTE = "At batch 1 the graph does not give the model's result: the parts refuse this batch."


def export_in_child(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Write the parts of the first possible cut of `arguments["cuts"]` to `arguments["directory"]`.

    Replies with the manifest, the number of the cut, and why each before it was refused. Executes foreign code.
    """
    progress(0.05, "building the model")
    torch.manual_seed(SEED)
    client = load_client(arguments["source"], arguments["trust"])
    alone = None
    if isinstance(client, ExportedClient):
        program = client.program
        examples = {batch: example_arguments(client, batch) for batch in _batches(program)}
    else:
        examples = {batch: example_arguments(client, batch) for batch in (TRACED_BATCH, OTHER_BATCH)}
        model, program = _export_model(client, examples)
        with suppress(InputFault):  # a client may have no inputs of batch 1
            alone = model, example_arguments(client, 1)
    progress(0.35, "cutting")
    digest = arguments["architecture_hash"]
    _checked_graph(program, next(iter(examples)), digest)
    number, refused = first_divisible_cut(program, arguments["cuts"])
    stages = arguments["cuts"][number]
    manifest = write_stages(program, stages, examples, Path(arguments["directory"]), digest, progress, alone)
    contract = json.loads(write_text(replace(manifest, source=arguments["source"])))
    return {"manifest": contract, "number": number, "refused": refused}


def first_divisible_cut(
    program: ExportedProgram, cuts: Sequence[Sequence[Sequence[str]]]
) -> tuple[int, list[str]]:
    """The index of the first cut that `divide` accepts, and its faults for those before.

    Raises InputFault if it accepts none, with the faults of all cuts.
    """
    refused: list[InputFault] = []
    for number, stages in enumerate(cuts):
        try:
            divide(program, stages)
        except InputFault as fault:
            refused.append(fault)
        else:
            return number, [str(fault) for fault in refused]
    if len(refused) == 1:
        raise refused[0]
    reasons = " ".join(f"{i}: {fault}" for i, fault in enumerate(refused, start=1))
    raise InputFault(
        "the cuts",
        f"are all refused: {reasons}",
        "Ask for more candidates (--top-k) or another number of stages.",
    )


def write_stages(
    program: ExportedProgram,
    stages: Sequence[Sequence[str]],
    examples: Mapping[int, Arguments],
    directory: Path,
    architecture_hash: str,
    progress: Progress = ignore_progress,
    alone: tuple[torch.nn.Module, Arguments] | None = None,
) -> StageManifest:
    """Cut the program, write its parts and run the files against it; returns the manifest.

    `examples` are arguments by batch size, the traced one first. `alone`: the model and its arguments of batch 1, where
    it is compared with the program: an export does not follow a branch on a size of 1, and does not say so.
    Raises InputFault if the program is not the one that was cut, and as `divide` does.
    """
    traced = next(iter(examples))
    graph = _checked_graph(program, traced, architecture_hash)
    rename_unquotable_weights(program)
    division = divide(program, stages)
    holds_alone = alone is None or bool(division.random) or _holds_alone(program, *alone)
    parts = _write(program, division, examples[traced], directory, progress)
    verified: tuple[int, ...] = ()
    if not division.random:
        progress(0.7, "running the parts against the model")
        _verify(program, parts, directory, list(examples.values()), _copy if division.writes else _identity)
        verified = tuple(examples)
    inputs, input_structure = describe_slots(program)
    outputs, output_structure, notes = describe_results(program)
    links, cut_bytes = describe_links(parts, inputs, outputs)
    return StageManifest(
        source="",
        architecture_hash=architecture_hash,
        torch_version=torch.__version__.partition("+")[0],
        traced_batch=traced,
        inputs=inputs,
        input_structure=input_structure,
        outputs=outputs,
        output_structure=output_structure,
        stages=parts,
        links=links,
        cut_bytes=cut_bytes,
        verified_batches=verified,
        notes=(*graph["notes"], *division.notes, *notes, *(() if holds_alone else (ALONE_NOTE,))),
        sizes=describe_sizes(program, holds_alone),
    )


def _checked_graph(program: ExportedProgram, traced: int, architecture_hash: str) -> dict[str, Any]:
    """The program's graph. Raises InputFault if it is not the one that was cut."""
    graph = describe_program(program, traced)
    if graph["architecture_hash"] != architecture_hash:
        if architecture_hash == former_architecture_hash(graph_from_dict(graph)):
            raise InputFault(
                "the cut",
                f"is of architecture {architecture_hash[:12]}…, {OF_FORMER_SCHEME}",
                "Then cut it again.",
            )
        raise InputFault(
            "the cut",
            f"is of architecture {architecture_hash[:12]}…, but this model's is {graph['architecture_hash'][:12]}…",
            "Profile and cut the model again.",
        )
    return graph


def _export_model(
    client: SplitClient, examples: Mapping[int, Arguments]
) -> tuple[torch.nn.Module, ExportedProgram]:
    """The model and its export."""
    model = open_model(client)
    if not isinstance(model, torch.nn.Module):
        raise InputFault(
            "get_model()", f"returned a {type(model).__name__}, not an nn.Module", "Return the module."
        )
    args, kwargs = examples[TRACED_BATCH]
    with _restored_buffers(model):
        return model, export_program(model, args, kwargs, examples[OTHER_BATCH])


@contextmanager
def _restored_buffers(model: torch.nn.Module | ExportedProgram) -> Iterator[None]:
    """Restore, at the end of the `with` block, the state that a run of the model changes."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in before and buffer.shape == before[name].shape:
                    buffer.copy_(before[name])


def _holds_alone(program: ExportedProgram, model: torch.nn.Module, arguments: Arguments) -> bool:
    """Whether the program gives the model's result at batch 1; also where the model does not run there.

    The program of a draft export follows the values of its example, and its notes say so: nothing is compared.
    """
    if program.graph_module.meta.get(ROUTE) == "draft":
        return True

    def run(runnable: Callable[..., Any]) -> list[Any]:
        args, kwargs = pytree.tree_map(_copy, arguments)
        with foreign_code("forward"), torch.no_grad():
            leaves: list[Any] = pytree.tree_leaves(runnable(*args, **kwargs))
        return leaves

    try:
        with ExitStack() as mended:
            with _restored_buffers(model):
                mended.enter_context(mend_results(model, *pytree.tree_map(_copy, arguments)))
            with _restored_buffers(model):
                expected = run(model)
    except InputFault:
        return True
    try:
        with _restored_buffers(program):
            given = run(program.module(check_guards=False))
    except InputFault:
        return False
    return len(given) == len(expected) and all(map(nearly_same, given, expected))


def _batches(program: ExportedProgram) -> tuple[int, ...]:
    """The batch size of a .pt2's export, and one more if its batch is free."""
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if (
            node.name in program.graph_signature.user_inputs
            and isinstance(value, torch.Tensor)
            and value.dim()
        ):
            size = value.shape[0]
            if not isinstance(size, torch.SymInt):
                return (size,)
            batch: int = size.node.hint
            return batch, batch - 1 if batch == find_largest_batch(program, batch) else batch + 1
    raise InputFault("the .pt2", "has no tensor among its inputs", "Pass another model.")


def _write(
    program: ExportedProgram, division: Division, example: Arguments, directory: Path, progress: Progress
) -> tuple[StagePart, ...]:
    """Write each stage to a file; its example inputs are its values at the traced batch."""
    keep_value = _copy if division.writes else _identity
    values = _named_inputs(program, example)
    parts = []
    for i, draft in enumerate(division.stages):
        progress(0.4 + 0.3 * i / len(division.stages), f"writing stage {i + 1} of {len(division.stages)}")
        stage_inputs = [values[name] for name in draft.inputs]
        stage = build_program(program, draft, stage_inputs)
        # Running must not change, in place, what is saved.
        runnable = copy.deepcopy(stage) if division.writes else stage
        with torch.no_grad():
            stage_outputs = runnable.module(check_guards=False)(*map(keep_value, stage_inputs))
        values.update(zip(draft.outputs, map(keep_value, stage_outputs), strict=True))
        path = directory / f"stage{i}.pt2"
        torch.export.save(stage, path)
        parts.append(describe_part(program, draft, path, _digest(path)))
    return tuple(parts)


def _verify(
    program: ExportedProgram,
    parts: Sequence[StagePart],
    directory: Path,
    examples: Sequence[Arguments],
    keep_value: Callable[[Any], Any],
) -> None:
    """Run the files in order on every example and compare with the model. Raises InternalFault.

    `keep_value` copies values if the model writes in place: the next example may change what a value is a view of.
    """
    values = [_named_inputs(program, pytree.tree_map(keep_value, example)) for example in examples]
    whole = program.module(check_guards=False)
    with torch.no_grad():
        expected = [
            pytree.tree_map(keep_value, pytree.tree_leaves(whole(*args, **kwargs)))
            for args, kwargs in (pytree.tree_map(keep_value, example) for example in examples)
        ]
        for part in parts:
            stage = torch.export.load(directory / part.file).module(check_guards=False)
            for known_values in values:
                stage_outputs = stage(*(known_values[value.name] for value in part.inputs))
                known_values.update(
                    zip((value.name for value in part.outputs), map(keep_value, stage_outputs), strict=True)
                )
            del stage
    slots, _, _ = describe_results(program)
    for known_values, leaves in zip(values, expected, strict=True):
        for slot, leaf in zip(slots, leaves, strict=True):
            result = slot.constant if slot.name is None else known_values[slot.name]
            if not same_bits(result, leaf):
                raise InternalFault(f"the parts give another {slot.name} than the model")


def _named_inputs(program: ExportedProgram, example: Arguments) -> dict[str, Any]:
    """The model's inputs by their names in the graph."""
    slots, _ = describe_slots(program)
    leaves = pytree.tree_leaves(example)
    return {slot.name: leaf for slot, leaf in zip(slots, leaves, strict=True) if slot.name is not None}


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _identity(value: Any) -> Any:
    return value


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
