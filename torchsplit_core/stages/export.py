"""Writing the parts of a cut model: the work is done in a limited child, the folder is changed at the end."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torchsplit_core.files import read_text
from torchsplit_core.files.fields import Whole
from torchsplit_core.isolation import (
    AnswerSchema,
    Limits,
    printable,
    require_execution_allowed,
    run_limited,
    schema_reader,
)
from torchsplit_core.isolation.sandbox.temp_dirs import remove_tree
from torchsplit_core.model_source import ModelSource, parse_source
from torchsplit_core.stages.export_folder import check_target, install_parts
from torchsplit_core.values import (
    InputFault,
    PartitionCandidate,
    Progress,
    StageManifest,
    ignore_progress,
    quoted,
)

EXPORT = "torchsplit_core.stages.export_child:export_in_child"


@dataclass(frozen=True, slots=True)
class ExportedCut:
    """Which of several candidates was written (from 0), and why each before it could not be."""

    number: int
    manifest: StageManifest
    refused: tuple[str, ...]


def export_stages(
    source: str,
    candidate: PartitionCandidate,
    directory: str | Path,
    *,
    architecture_hash: str,
    trust: bool = False,
    limits: Limits | None = None,
    progress: Progress = ignore_progress,
) -> StageManifest:
    """Write each stage of the candidate as a .pt2 with a free batch, and `stages.json`, to `directory`.

    The model is built (of a .pt2: loaded, which executes it, so it needs `trust`) in a limited child,
    cut, and the files are run there against it at two batch sizes. Raises InputFault for a source or
    folder that will not do, a graph that is not the one cut, and a cut through what is written in place.
    """
    return export_first(
        source,
        [candidate],
        directory,
        architecture_hash=architecture_hash,
        trust=trust,
        limits=limits,
        progress=progress,
    ).manifest


def export_first(
    source: str,
    candidates: Sequence[PartitionCandidate],
    directory: str | Path,
    *,
    architecture_hash: str,
    trust: bool = False,
    limits: Limits | None = None,
    progress: Progress = ignore_progress,
) -> ExportedCut:
    """Write the first of the candidates that nothing written in place forbids, as `export_stages` does.

    Raises InputFault as it does, one that says why for each where all of them are refused.
    """
    folder = Path(directory).expanduser().absolute()
    parsed = check_export(source, folder, trust)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _staging_folder(folder) as staging:
        arguments = {
            "source": parsed.text,
            "trust": trust,
            "cuts": [[list(stage) for stage in candidate.stages] for candidate in candidates],
            "architecture_hash": architecture_hash,
            "directory": staging,
        }
        number, manifest, refused = run_limited(
            EXPORT,
            arguments,
            limits=limits or _limits(folder.parent),
            progress=progress,
            subject=f"model {Path(parsed.path).name or source}",
            read=partial(_parse_reply, len(candidates)),
            readable=parsed.files,
            writable=(staging,),
        )
        manifest = replace(manifest, source=source)
        _check_files(Path(staging), manifest)
        install_parts(Path(staging), folder, manifest)
    return ExportedCut(number, manifest, refused)


def check_export(source: str, directory: Path, trust: bool) -> ModelSource:
    """The source, where its parts may be written to that folder. Raises InputFault; executes nothing."""
    check_target(directory)
    parsed = parse_source(source, trust=trust)
    if parsed.kind == "pt2" and not trust:
        raise InputFault(
            "model source",
            f"{quoted(source)} is not trusted, and taking the weights out of a .pt2 executes what it holds",
            "If you know the file, add --trust.",
        )
    if parsed.kind != "sample":
        require_execution_allowed(Path(parsed.path).name)
    return parsed


class _ExportReply(AnswerSchema):
    number: Whole
    manifest: dict[str, Any]
    refused: list[str]


def _parse_reply(candidates: int, reply: Any) -> tuple[int, StageManifest, tuple[str, ...]]:
    """What the child answers, of so many candidates. Raises ValueError for any other form."""
    content = schema_reader(_ExportReply)(reply)
    number, refused = content["number"], tuple(map(printable, content["refused"]))
    if number >= candidates or len(refused) != number:
        raise ValueError(f"number: {number} of {candidates} cuts, {len(refused)} of which are refused")
    manifest: StageManifest
    _, manifest = read_text(json.dumps(content["manifest"]), expected="torchsplit.stages")
    return number, manifest, refused


@contextmanager
def _staging_folder(folder: Path) -> Iterator[str]:
    """A folder that the child may write to, on the disk where the parts will lie."""
    staging = tempfile.mkdtemp(prefix=".torchsplit-stages-", dir=folder.parent)
    try:
        yield staging
    finally:
        remove_tree(Path(staging))


def _check_files(staging: Path, manifest: StageManifest) -> None:
    """Foreign code wrote there: what is moved on must be files, not links to others. Raises InputFault."""
    for part in manifest.stages:
        path = staging / part.file
        if path.is_symlink() or not path.is_file():
            raise InputFault(
                part.file, "is a link" if path.is_symlink() else "is missing", "Export the model again."
            )


def _limits(folder: Path) -> Limits:
    """Weights may be of any size: all parts together get what leaves a tenth of the free disk."""
    free = shutil.disk_usage(folder).free * 9 // 10
    return Limits(wall_s=1800.0, cpu_s=7200, file_bytes=None, total_file_bytes=free)
