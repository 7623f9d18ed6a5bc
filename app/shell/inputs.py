"""Checks of inputs that several pages share: rows of nodes, a text file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchsplit_core.values import InputFault


def check_nodes(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raises InputFault for a fleet without a row, or with a gap in a row."""
    if not rows:
        raise InputFault("Fleet", "has no row", "Add one.")
    if any(row.get(field) is None for row in rows for field in ("nodes", "GPUs a node", "type")):
        raise InputFault("Fleet", "has a row without nodes, GPUs or type", "Fill the row, or remove it.")


def text_of(data: bytes, name: str) -> str:
    """A file's text. Raises InputFault where the file is no text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputFault(name, "is binary data, not text", "Choose another file.") from error
