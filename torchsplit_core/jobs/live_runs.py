"""What a running measurement of a scenario says of itself, moment by moment: a file that lives as long as the run.

It is no result: nothing lists it, and what a killed run left is replaced by the next.
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
    """The moments of one scenario's run: a JSON object a line, the first with what is expected."""

    def __init__(self, workspace: Workspace, scenario: str) -> None:
        key = hashlib.sha256(f"{workspace.id}/{scenario}".encode()).hexdigest()[:16]
        self.path: Path = workspace.store.root / FOLDER / f"{key}.jsonl"

    def begin(self, expected: dict[str, Any]) -> None:
        """Forget what was there; `expected` is drawn beside what comes."""
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text(json.dumps(expected) + "\n", encoding="utf-8")

    def add(self, sample: dict[str, Any]) -> None:
        """One more."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(sample) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All so far; empty where no run is or was left. A line that is being written is left for the next look."""
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
        """Remove it."""
        self.path.unlink(missing_ok=True)
