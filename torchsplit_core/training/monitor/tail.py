"""Reads the lines of a file that grows, or is replaced by a shorter one: each read takes only what is new."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

MOST_BYTES = 64 * 2**20
"""Maximum bytes of one read; the rest comes with the next."""


class JsonTail:
    """The JSON objects of a file, one per line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode, self._offset = 0, 0

    def read_new(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether the file was replaced, so that earlier lines are void, and the complete lines since the last call.

        A line that is no JSON object is left out.
        """
        try:
            with self.path.open("rb") as stream:
                replaced = self._was_replaced(stream.fileno())
                stream.seek(self._offset)
                whole, newline, _ = stream.read(MOST_BYTES).rpartition(b"\n")
        except OSError:
            # Deleted, or not yet created.
            replaced, self._inode, self._offset = self._offset > 0, 0, 0
            return replaced, []
        self._offset += len(whole) + len(newline)
        return replaced, [record for line in whole.splitlines() if (record := _object(line)) is not None]

    def _was_replaced(self, descriptor: int) -> bool:
        """Whether it is another file than at the last read; that one is then read from its beginning."""
        status = os.fstat(descriptor)
        replaced = self._inode != 0 and (status.st_ino != self._inode or status.st_size < self._offset)
        if replaced:
            self._offset = 0
        self._inode = status.st_ino
        return replaced


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
