"""Programs of HiGHS as LP text, for golden files."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def highs_text(highs: Any, rows: Sequence[str], columns: Sequence[str]) -> str:
    """A program of HiGHS as LP text with these names."""
    assert (highs.getNumRow(), highs.getNumCol()) == (len(rows), len(columns))
    for number, name in enumerate(rows):
        highs.passRowName(number, name)
    for number, name in enumerate(columns):
        highs.passColName(number, name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.lp"
        highs.writeModel(str(path))
        # The first line names the version's writer.
        return path.read_text(encoding="utf-8").split("\n", 1)[1]
