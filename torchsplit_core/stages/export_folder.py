"""The folder of a cut model, `stages.json` and a .pt2 for each stage: opening, checking, replacing.

Loading a .pt2 executes code that it may carry. A folder is therefore opened only if this user's own export wrote it
(the store records the SHA-256 of its manifest) or the user trusts it, and a part only if its SHA-256 is the one in the
manifest.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import BinaryIO

from torchsplit_core.files import read_text, replace_file, write_text
from torchsplit_core.isolation import require_execution_allowed
from torchsplit_core.values import InputFault, StageManifest, StagePart, quoted, system_reason
from torchsplit_core.workspace.store import default_root

MANIFEST = "stages.json"
LARGEST_MANIFEST_BYTES = 64 * 2**20
PROVENANCE_FOLDER = "written_stages"
"""Folder of the store with an empty file, named by its SHA-256, for each manifest that was written here."""


def open_manifest(directory: str | Path, *, trust: bool = False) -> StageManifest:
    """The manifest of a folder whose parts may be loaded: written here, or trusted.

    Raises InputFault for a missing or invalid manifest, for one that is neither, and, in a process that may not execute
    uploads, for parts of anything but a sample.
    """
    path = Path(directory) / MANIFEST
    try:
        content = path.read_bytes() if path.stat().st_size <= LARGEST_MANIFEST_BYTES else b""
    except OSError as error:
        raise InputFault(
            str(path),
            f"cannot be read: {system_reason(error)}",
            "Name a folder that `torchsplit partition SOURCE --profile PROFILE --export DIR` wrote.",
        ) from error
    manifest: StageManifest
    _, manifest = read_text(content.decode(errors="replace"), origin=str(path), expected="torchsplit.stages")
    if not trust and not _provenance_file(content).is_file():
        raise InputFault(
            str(path),
            "was not written here and is not trusted, and loading parts executes what they hold",
            "If you know where they are from, add trust=True.",
        )
    if trust or not manifest.source.startswith("sample:"):
        require_execution_allowed(str(path))
    return manifest


def open_part(directory: str | Path, part: StagePart) -> BinaryIO:
    """Open a part's file once its SHA-256 is checked. Raises InputFault."""
    path = Path(directory) / part.file
    try:
        stream = path.open("rb")
    except OSError as error:
        raise InputFault(
            str(path), f"cannot be read: {system_reason(error)}", "Export the model again."
        ) from error
    digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != part.sha256:
        stream.close()
        raise InputFault(
            str(path),
            f"has the SHA-256 {digest[:12]}…, but {part.sha256[:12]}… was written",
            "Export the model again.",
        )
    stream.seek(0)
    return stream


def check_target(directory: Path) -> None:
    """Refuse a folder that holds anything but an earlier export. Raises InputFault."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise InputFault("--export", f"{quoted(str(directory))} is not a folder", "Name a new folder.")
    known = set(_previous_files(directory)) | {MANIFEST}
    foreign = sorted(entry.name for entry in directory.iterdir() if entry.name not in known)
    if foreign:
        raise InputFault(
            "--export",
            f"{quoted(str(directory))} holds {quoted(foreign[0])}, which is no part of an earlier export",
            "Name a new or empty folder.",
        )


def install_parts(written: Path, directory: Path, manifest: StageManifest) -> None:
    """Replace an earlier export in `directory` by the parts in `written`; the manifest comes last."""
    text = write_text(manifest)
    replace_file(_provenance_file(text.encode()), "")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        previous = _previous_files(directory)
        (directory / MANIFEST).unlink(missing_ok=True)
        for name in previous:
            (directory / name).unlink(missing_ok=True)
        for part in manifest.stages:
            shutil.move(written / part.file, directory / part.file)
    except OSError as error:
        raise InputFault(
            "--export",
            f"{quoted(str(directory))} cannot be written: {system_reason(error)}",
            "Name another folder.",
        ) from error
    replace_file(directory / MANIFEST, text)


def _previous_files(directory: Path) -> tuple[str, ...]:
    """The files of the export in a folder; none if it has no readable manifest."""
    try:
        _, manifest = read_text((directory / MANIFEST).read_text(), expected="torchsplit.stages")
    except (OSError, UnicodeDecodeError, InputFault):
        return ()
    return tuple(part.file for part in manifest.stages)


def _provenance_file(content: bytes) -> Path:
    return default_root() / PROVENANCE_FOLDER / hashlib.sha256(content).hexdigest()
