"""Names of which no two may be alike."""

from __future__ import annotations

from collections.abc import Collection


def free_name(name: str, taken: Collection[str], mark: str = " ") -> str:
    """The name, or the name with `mark` and the first number, from 2 on, that is free."""
    candidate, number = name, 2
    while candidate in taken:
        candidate = f"{name}{mark}{number}"
        number += 1
    return candidate
