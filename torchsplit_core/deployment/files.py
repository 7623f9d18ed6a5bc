"""Deployment files as values, and their writing to disk or an archive."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from torchsplit_core.files import replace_file
from torchsplit_core.values import InternalFault


@dataclass(frozen=True, slots=True)
class DeploymentFile:
    """One file: its path under the output directory (with /), its text, whether it is a script."""

    name: str
    text: str
    executable: bool = False


def write_deployment(files: Iterable[DeploymentFile], directory: str | Path) -> tuple[Path, ...]:
    """Write each file under `directory` (created if missing) and return their paths.

    Each file is written atomically; other files of the directory stay. Raises InternalFault for a name that leads
    outside, InputFault if the directory cannot be written.
    """
    root = Path(directory)
    written = []
    for file in files:
        relative = PurePosixPath(file.name)
        if relative.is_absolute() or ".." in relative.parts or not relative.parts:
            raise InternalFault(f"deployment file {file.name!r} leads out of its directory")
        target = root.joinpath(*relative.parts)
        replace_file(target, file.text, 0o755 if file.executable else 0o644)
        written.append(target)
    return tuple(written)


def zip_files(files: Iterable[DeploymentFile]) -> bytes:
    """All files as one zip archive; scripts are executable."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            entry = zipfile.ZipInfo(file.name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if file.executable else 0o100644) << 16
            archive.writestr(entry, file.text)
    return buffer.getvalue()
