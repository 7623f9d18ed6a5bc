"""The lines of a file that grows, or is replaced by a shorter one: only what is new is read at each look."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

MOST_BYTES = 64 * 2**20
"""Of one look; what is beyond comes with the next."""


class Lines:
    """The JSON objects of a file, a line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode, self._offset = 0, 0

    def fresh(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether all before is forgotten (the file is another one), and the whole lines since the last look.

        A line that is no JSON object is left out.
        """
        try:
            with self.path.open("rb") as stream:
                again = self._turned(stream.fileno())
                stream.seek(self._offset)
                whole, newline, _ = stream.read(MOST_BYTES).rpartition(b"\n")
        except OSError:
            # Gone, or not there yet.
            again, self._inode, self._offset = self._offset > 0, 0, 0
            return again, []
        self._offset += len(whole) + len(newline)
        return again, [found for line in whole.splitlines() if (found := _object(line)) is not None]

    def _turned(self, descriptor: int) -> bool:
        """Whether it is another file than at the last look: it is then read from its beginning."""
        told = os.fstat(descriptor)
        again = self._inode != 0 and (told.st_ino != self._inode or told.st_size < self._offset)
        if again:
            self._offset = 0
        self._inode = told.st_ino
        return again


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
