"""Live samples of a running measurement of a scenario, in a file that exists as long as the run.

The file is not an artifact: nothing lists it, and the next run replaces what a killed run left.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from torchsplit_core.workspace.store import Workspace

FOLDER = "live"


class LiveRunFile:
    """The samples of one scenario's run, one JSON object per line; the first line has the expected values."""

    def __init__(self, workspace: Workspace, scenario: str) -> None:
        key = hashlib.sha256(f"{workspace.id}/{scenario}".encode()).hexdigest()[:16]
        self.path: Path = workspace.store.root / FOLDER / f"{key}.jsonl"

    def begin(self, expected: dict[str, Any]) -> None:
        """Replace the file; `expected` is drawn beside the samples."""
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text(json.dumps(expected) + "\n", encoding="utf-8")

    def add(self, sample: dict[str, Any]) -> None:
        """Append a sample."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(sample) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All samples so far; empty without a file. A line still being written is left for the next read."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except OSError:
            return []
        samples = []
        for line in lines:
            with contextlib.suppress(ValueError):
                samples.append(json.loads(line))
        return samples

    def end(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)
