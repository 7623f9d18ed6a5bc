"""Standard input in a file's place: `-` names it."""

from __future__ import annotations

import sys
from pathlib import Path

from torchsplit_core.values import InputFault

STANDARD = "-"
NAME = "standard input"
"""What messages call it."""

_read: object = None
"""The stream that has been read."""


def origin_of(path: str | Path) -> str:
    """What messages call a path."""
    return NAME if str(path) == STANDARD else str(path)


def standard_input(most_bytes: int) -> bytes:
    """All of it, at most one byte more than `most_bytes`. Raises InputFault the second time, and where it is closed."""
    global _read
    if sys.stdin is None:
        raise InputFault(NAME, "is closed", "Name a file.")
    if _read is sys.stdin:
        raise InputFault(NAME, "is named twice, and can be read once", "Name a file for the other.")
    _read = sys.stdin
    return sys.stdin.buffer.read(most_bytes + 1)
