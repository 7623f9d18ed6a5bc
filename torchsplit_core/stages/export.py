"""Writes the parts of a cut model: a limited child makes the files, and the folder is replaced at the end."""

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
    """The candidate that was written (`number` from 0), and why each before it could not be."""

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

    A limited child builds the model, cuts it and runs the files against it at two batch sizes. A .pt2 is executed when
    it is loaded, so it needs `trust`. Raises InputFault for an unusable source or folder, a graph other than the one
    that was cut, and a cut through memory that is written in place.
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
    """Write the first candidate whose cut in-place writes allow, as `export_stages` does.

    Raises InputFault as that does; if no candidate is allowed, with the reason for each.
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
    """Check source and folder without executing anything. Raises InputFault."""
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
    """The child's reply for so many candidates. Raises ValueError if it is invalid."""
    content = schema_reader(_ExportReply)(reply)
    number, refused = content["number"], tuple(map(printable, content["refused"]))
    if number >= candidates or len(refused) != number:
        raise ValueError(f"number: {number} of {candidates} cuts, {len(refused)} of which are refused")
    manifest: StageManifest
    _, manifest = read_text(json.dumps(content["manifest"]), expected="torchsplit.stages")
    return number, manifest, refused


@contextmanager
def _staging_folder(folder: Path) -> Iterator[str]:
    """A temporary folder for the child, on the disk of the target."""
    staging = tempfile.mkdtemp(prefix=".torchsplit-stages-", dir=folder.parent)
    try:
        yield staging
    finally:
        remove_tree(Path(staging))


def _check_files(staging: Path, manifest: StageManifest) -> None:
    """Check that the parts, written by foreign code, are files and no links. Raises InputFault."""
    for part in manifest.stages:
        path = staging / part.file
        if path.is_symlink() or not path.is_file():
            raise InputFault(
                part.file, "is a link" if path.is_symlink() else "is missing", "Export the model again."
            )


def _limits(folder: Path) -> Limits:
    """Weights may have any size: all parts together may fill nine tenths of the free disk."""
    free = shutil.disk_usage(folder).free * 9 // 10
    return Limits(wall_s=1800.0, cpu_s=7200, file_bytes=None, total_file_bytes=free)
