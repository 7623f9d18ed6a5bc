"""Writing a file so that a reader sees the old one or the new one, never half of it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from torchsplit_core.values import InputFault, system_reason


def replace_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Write `text` beside `path` and move it there. Raises InputFault where that cannot be done.

    A device or a pipe is written to: a file in its place would take it from everybody.
    """
    temporary = None
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            with path.open("w", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise InputFault(
            str(path), f"cannot be written: {system_reason(error)}", "Choose another path."
        ) from error


def move_into_place(path: Path, text: str) -> None:
    """Like `replace_file`, not synced: for states that need not survive a power cut. A path has one writer.

    Raises OSError.
    """
    fresh = path.with_name(f".{path.name}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
