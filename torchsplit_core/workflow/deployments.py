"""Writes a plan's deployment to disk: manifests, the models' exported parts and the core package for the image."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchsplit_core import bundle
from torchsplit_core.telemetry import schema, span
from torchsplit_core.values import (
    InputFault,
    PartitionCandidate,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    Progress,
    StageManifest,
    Variant,
    ignore_progress,
    system_reason,
)

if TYPE_CHECKING:
    from torchsplit_core.deployment import CustomImage

_PACKAGE = "torchsplit_core"


def deploy(
    outcome: PlanOutcome,
    directory: Path,
    formats: Sequence[str] | None = None,
    *,
    request: PlanRequest | None = None,
    images: Mapping[str, str] | None = None,
    commands: Mapping[str, str] | None = None,
    sources: Mapping[str, str] | None = None,
    trust: bool = False,
    progress: Progress = ignore_progress,
) -> tuple[Path, ...]:
    """Write the plan's deployment files; for workloads also `image/models` with the parts of each model.

    Without `formats`: the GPU partitioning formats if the plan uses GPUs, and with a request the workloads too.
    `images` and `commands`, by model, are for models in custom images; a model without a source gets a placeholder.
    `sources`, by model: what is loaded in place of the request's sources, whose names only a workspace may know.
    Raises InputFault for an unknown format, a plan without slices, and workloads whose model cannot be exported in
    parts (including a .py or .pt2 without `trust`).
    """
    from torchsplit_core.deployment import (
        IMAGE_ROOT,
        custom_images,
        models_to_write,
        part_folders,
        placeholder_manifest,
        write_deployment,
    )
    from torchsplit_core.deployment import deploy as make
    from torchsplit_core.latency_slo.verdict import plan_verdict

    model_images = None if request is None else custom_images(request, images, commands)
    chosen = tuple(formats or default_formats(outcome, model_images))
    used = models_to_write(outcome, chosen, request, model_images)
    folders = part_folders(outcome)
    verdict_text = plan_verdict(request, outcome).sentence
    if used:
        # Check everything first: writing the parts takes minutes.
        make(
            outcome,
            chosen,
            request,
            {(m.name, v.name): placeholder_manifest(m, v) for m, v in used},
            model_images,
            verdict_text,
        )
        used = tuple((replace(m, source=(sources or {}).get(m.name, m.source)), v) for m, v in used)
        _check_sources(used, [_model_folder(directory, folders[m.name, v.name]) for m, v in used], trust)
    manifests: dict[tuple[str, str], StageManifest] = {}
    for number, (model, variant) in enumerate(used):

        def part_progress(share: float, text: str, number: int = number, name: str = model.name) -> None:
            progress((number + share) / len(used), f"{name}: {text}")

        folder = _model_folder(directory, folders[model.name, variant.name])
        manifests[model.name, variant.name] = _write_parts(model, variant, folder, trust, part_progress)
    files = make(outcome, chosen, request, manifests, model_images, verdict_text)
    paths = write_deployment(files, directory)
    if used:
        _copy_package(directory / IMAGE_ROOT / _PACKAGE)
    return tuple(paths)


def _model_folder(directory: Path, parts: str) -> Path:
    """The folder of the parts of that name."""
    from torchsplit_core.deployment import IMAGE_ROOT

    return directory / IMAGE_ROOT / "models" / parts


def _check_sources(used: Sequence[tuple[PlanModel, Variant]], folders: Sequence[Path], trust: bool) -> None:
    """Raises InputFault for an invalid or untrusted source, and for a folder that cannot be written."""
    from torchsplit_core.stages.export import check_export

    for (model, _), folder in zip(used, folders, strict=True):
        assert model.source is not None
        check_export(model.source, folder.expanduser().absolute(), trust)
    models_folder = folders[0].parent
    try:
        models_folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=models_folder):
            pass
    except OSError as error:
        raise _unwritable_fault(models_folder, error) from error


def _unwritable_fault(path: Path, error: OSError) -> InputFault:
    return InputFault("--output", f"{path} cannot be written: {system_reason(error)}", "Name another folder.")


def default_formats(outcome: PlanOutcome, model_images: Mapping[str, CustomImage] | None) -> tuple[str, ...]:
    """Every format for such a plan: GPU partitioning if it uses a GPU, and with a request the workloads.

    `model_images`: the models that run in images of their own, None without the request.
    """
    from torchsplit_core.deployment import FORMATS, omitted_by

    # If no format fits, the first one's fault says what is missing.
    return tuple(name for name in FORMATS if not omitted_by(outcome, name, model_images)[1]) or FORMATS


def _write_parts(
    model: PlanModel, variant: Variant, folder: Path, trust: bool, progress: Progress
) -> StageManifest:
    """Write one .pt2 per stage to `folder` and check the stages' outputs against the whole model's."""
    from torchsplit_core.stages import export_stages
    from torchsplit_core.tracing import trace

    assert model.source is not None
    with span(schema.TRACE, model=model.source):
        graph = trace(model.source, trust=trust, progress=lambda share, text: progress(share / 3, text))
    stages = tuple(stage.nodes for stage in variant.stages)
    if len(stages) == 1:
        stages = (tuple(node.id for node in graph.nodes if node.kind == "op"),)
    nothing = (0,) * (len(stages) - 1)
    candidate = PartitionCandidate(stages, (0.0,) * len(stages), 0.0, nothing, (0,) * len(stages))
    return export_stages(
        model.source,
        candidate,
        folder,
        architecture_hash=graph.architecture_hash,
        trust=trust,
        progress=lambda share, text: progress((1 + 2 * share) / 3, text),
    )


def _copy_package(target: Path) -> None:
    """Copy the core's source, which the image runs, without dashboard and samples."""
    ignored = shutil.ignore_patterns("__pycache__", bundle.FOLDER)
    try:
        shutil.copytree(bundle.CORE, target, ignore=ignored, dirs_exist_ok=True)
    except OSError as error:
        raise _unwritable_fault(target, error) from error
